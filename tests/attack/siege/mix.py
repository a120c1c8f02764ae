"""A random mix of attacks on a broker with three steady clients (canaries): no message may be lost, and no gap may
exceed a second.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path

from tests.attack.siege.attacks import ATTACKS
from tests.attack.siege.canary import Canary
from tests.attack.siege.target import Target

GAP_S_MAX = 1.0
_AT_A_TIME = 2
_REPORT_S = 10.0


async def mix(folder: Path, seconds: float, seed: int | None, names: list[str] | None) -> int:
    """Attacks a broker for ``seconds``; returns 0 if all promises were kept."""
    seed = random.randrange(1 << 30) if seed is None else seed
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    chosen = [name for name in names or ATTACKS if not ATTACKS[name].guarded and name not in _HARMFUL]
    async with Target(folder / "mix") as target:
        canaries = [Canary(target.addresses, number) for number in range(3)]
        for canary in canaries:
            await canary.start()
        await asyncio.sleep(3)
        for canary in canaries:
            canary.span()
        idle, ends = target.memory_bytes(), time.monotonic() + seconds
        attackers = [asyncio.create_task(_attackers(target, rng, chosen, ends)) for _ in range(_AT_A_TIME)]
        worst_gap_s = worst_p99_ms = 0.0
        most = 0
        while time.monotonic() < ends and not target.ended:
            await asyncio.sleep(_REPORT_S)
            spans = [canary.span() for canary in canaries]
            gap_s, p99_ms = max(span.gap_s for span in spans), max(span.p99_ms() for span in spans)
            most = max(most, target.memory_bytes())
            worst_gap_s, worst_p99_ms = max(worst_gap_s, gap_s), max(worst_p99_ms, p99_ms)
            left = max(0.0, ends - time.monotonic())
            print(
                f"{left:6.0f} s left  p99 {p99_ms:7.0f} ms  gap {gap_s:5.2f} s  {target.memory_bytes() / 1e6:5.0f} MB",
                flush=True,
            )
        await asyncio.gather(*attackers)
        await asyncio.sleep(5)
        after = target.memory_bytes()
        lost = [await canary.finish() for canary in canaries]
        refused = [text for canary in canaries for text in canary.refused]
        stop = await target.stop()
    print(f"lost {sum(lost)}, refused {len(refused)} {refused[:3]}, worst gap {worst_gap_s:.2f} s, worst p99 of 10 s")
    print(f"{worst_p99_ms:.0f} ms, memory {idle / 1e6:.0f} → {most / 1e6:.0f} → {after / 1e6:.0f} MB, stop {stop}")
    return int(bool(sum(lost)) or worst_gap_s > GAP_S_MAX)


_HARMFUL = {"config-keys"}
"""Attacks with options that an administrator may set although they harm others; the mix leaves them out."""


async def _attackers(target: Target, rng: random.Random, names: list[str], ends: float) -> None:
    while time.monotonic() < ends and not target.ended:
        name = rng.choice(names)
        seconds = min(rng.uniform(3, 15), max(1.0, ends - time.monotonic()))
        print(f"  {name} for {seconds:.0f} s", flush=True)
        words = ["-m", "tests.attack.siege.attacker", name, target.addresses.to_json(), str(seconds)]
        null = asyncio.subprocess.DEVNULL
        attacker = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=null, stderr=null)
        try:
            await asyncio.wait_for(attacker.wait(), seconds + 10)
        except TimeoutError:
            attacker.kill()
            await attacker.wait()
