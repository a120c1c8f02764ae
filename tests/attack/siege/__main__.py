"""Runs attacks, one after another or mixed, and reports their effect on other clients."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.attack.siege.attacks import ATTACKS, Attack
from tests.attack.siege.canary import Canary
from tests.attack.siege.mix import mix
from tests.attack.siege.target import Stop, Target

_QUIET_S = 4.0
_AFTER_S = 6.0
_BEFORE_STOP_S = 2.5


class Row(NamedTuple):
    """The result of one attack."""

    name: str
    quiet_ms: float
    p99_ms: float
    gap_s: float
    turn_s: float
    turn_cpu_s: float
    processor_s: float
    lost: int
    refused: int
    idle_bytes: int
    most_bytes: int
    after_bytes: int
    stop: Stop
    note: str

    def cells(self) -> list[str]:
        idle, most, after = (f"{size / 1e6:.0f}" for size in (self.idle_bytes, self.most_bytes, self.after_bytes))
        times = [f"{self.quiet_ms:.0f}", f"{self.p99_ms:.0f}", f"{self.gap_s:.2f}"]
        times += [f"{self.turn_s * 1000:.0f}", f"{self.turn_cpu_s * 1000:.0f}", f"{self.processor_s:.1f}"]
        stop = [f"{self.stop.answered_s:.2f}", f"{self.stop.ended_s:.2f}"]
        return [self.name, *times, str(self.lost), str(self.refused), idle, most, after, *stop, self.note]


HEADINGS = ["attack", "quiet p99 ms", "p99 ms", "gap s", "turn ms", "its CPU ms", "CPU s", "lost", "refused"]
HEADINGS += ["idle MB", "most MB", "after MB", "SIGTERM s", "ended s", ""]


async def tried(attack: Attack, folder: Path, seconds: float, profiled: bool) -> Row:
    """Attacks a new broker and measures the effect. Then repeats the attack, and stops the broker during the
    repetition.
    """
    async with Target(folder, attack.guarded, profiled) as target:
        canary = Canary(target.addresses)
        await canary.start()
        await asyncio.sleep(1)
        canary.span()
        await asyncio.sleep(_QUIET_S)
        quiet, idle = canary.span(), target.memory_bytes()
        before_s = target.processor_s()
        attacker = await begun(attack, target, seconds)
        canary.span()
        most = idle
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            await asyncio.sleep(0.1)
            most = max(most, target.memory_bytes())
        failed = await ended(attacker)
        attacked, used_s = canary.span(), target.processor_s() - before_s
        await asyncio.sleep(_AFTER_S)
        after = target.memory_bytes()
        turn_s, turn_cpu_s = await target.longest_turn_s()
        lost = await canary.finish()
        attacker = await begun(attack, target, 30)
        await asyncio.sleep(_BEFORE_STOP_S)
        died = " died" if target.ended else ""
        stop = Stop(float("nan"), float("nan")) if target.ended else await target.stop()
        await ended(attacker)
    note = " ".join([*canary.refused[:1], *failed])[:100]
    return Row(
        attack.name, quiet.p99_ms(), attacked.p99_ms(), attacked.gap_s, turn_s, turn_cpu_s, used_s, lost,
        len(canary.refused), idle, most, after, stop, note + died,
    )  # fmt: skip


async def begun(attack: Attack, target: Target, seconds: float) -> asyncio.subprocess.Process:
    """Starts the process of an attacker; returns it once the attack has begun."""
    words = ["-m", "tests.attack.siege.attacker", attack.name, target.addresses.to_json(), str(seconds)]
    pipe = asyncio.subprocess.PIPE
    attacker = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=pipe, stderr=pipe)
    assert attacker.stdout is not None
    await attacker.stdout.readline()
    return attacker


async def ended(attacker: asyncio.subprocess.Process) -> list[str]:
    """Ends the attacker if it is still running; returns a list with the reason if it failed, or an empty list."""
    if attacker.returncode is None:
        attacker.kill()
    _, said = await attacker.communicate()
    return [said.decode().strip().splitlines()[-1]] if attacker.returncode == 1 and said.strip() else []


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack.siege", description=__doc__)
    parser.add_argument(
        "--attack", action="append", choices=sorted(ATTACKS), metavar="NAME", help="run only this attack"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="length of each attack")
    parser.add_argument("--list", action="store_true", help="print all attacks")
    parser.add_argument("--mix", type=float, metavar="MINUTES", help="run a random mix of attacks with three canaries")
    parser.add_argument("--seed", type=int, default=None, help="seed of the random choices of the mix")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="put stores and logs there, and keep them")
    parser.add_argument("--profile", action="store_true", help="leave a file for pstats in FOLDER/NAME")
    options = parser.parse_args()
    if options.list:
        for attack in ATTACKS.values():
            print(f"{attack.name:30} {attack.group:15} {attack.about}")
        return 0
    with contextlib.ExitStack() as stack:
        folder = options.keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="siege-"))
        if options.mix is not None:
            return asyncio.run(mix(Path(folder), options.mix * 60, options.seed, options.attack))
        print("| " + " | ".join(HEADINGS) + " |")
        print("|" + "---|" * len(HEADINGS), flush=True)
        for name in options.attack or ATTACKS:
            row = asyncio.run(tried(ATTACKS[name], Path(folder) / name, options.seconds, options.profile))
            print("| " + " | ".join(row.cells()) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
