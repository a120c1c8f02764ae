"""Runs stores with real threads for a while, stops or kills them every few seconds, and checks all promises.

    python -m tests.crash.threads --minutes 60
    python -m tests.crash.threads --minutes 1 --seed 7 --config pool

Segments, queue files and index files are tiny, intervals are a millisecond, and the interpreter switches threads as
often as possible. A seed determines the requests to a store, but not the order in which threads run. If a promise was
broken, the exit code is 1 and the directory is kept.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

from tests.crash.thread_ledger import Ledger
from tests.crash.thread_life import CONFIGS

LIVES = 5
"""Number of runs of a store over one directory; then the next directory is begun."""
_REPORT_S = 30.0
_END_S = 120.0


class Broke(Exception):  # noqa: N818 - reads as what happened
    """Raised if a process ended with a broken promise."""


def live(directory: Path, config: str, seed: int, seconds: float, kill: bool) -> Counter[str]:
    """Runs one process with a store in ``directory``; returns the counts of actions that the process reported.

    Args:
        seconds: length of the run, from the moment when the store accepts messages.

    Raises:
        Broke: the process ended with a broken promise.
    """
    command = [sys.executable, "-m", "tests.crash.thread_life", str(directory), config, str(seed)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    begun = process.stdout.readline()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        if kill:
            process.kill()
    try:
        output, trace = process.communicate("\n" if process.poll() is None and not kill else None, timeout=_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Broke(f"a stop took more than {_END_S:.0f} s") from None
    if kill and process.returncode == -9:
        return Counter(killed=1)
    if process.returncode:
        raise Broke(f"{begun}{output.strip() or process.returncode}\n{trace}")
    done = Counter({name: int(count) for name, count in (word.split("=") for word in output.split())})
    return done + Counter(stopped=1)


def run(seconds: float, seed: int, only: str | None = None, life_s: float = 4.0) -> Counter[str]:
    """Runs processes until ``seconds`` are over; returns their counts of actions.

    Raises:
        Broke: a process ended with a broken promise.
    """
    random, begin, sums = Random(seed), time.monotonic(), Counter[str]()
    names = [only] if only else list(CONFIGS)
    reported, number, store = begin, 0, 0
    while time.monotonic() - begin < seconds:
        config = names[store % len(names)]
        store += 1
        directory = Path(tempfile.mkdtemp(prefix="rucola-threads-"))
        for life in range(LIVES):
            number += 1
            kill, last = random.random() < 0.6, life == LIVES - 1
            lasts = 0.1 if last else random.uniform(0.3, 1.0) * life_s
            try:
                sums += live(directory, config, seed * 10_000 + number, lasts, kill and not last)
            except Broke as broke:
                raise Broke(f"{config}, life {life + 1} in {directory}: {broke}") from None
            if time.monotonic() - reported > _REPORT_S:
                reported = time.monotonic()
                print(f"... {reported - begin:.0f} s: {_told(sums)}", flush=True)
            if time.monotonic() - begin >= seconds and not last:
                sums += live(directory, config, seed * 10_000 + number + 1, 0.1, False)
                number += 1
                break
        sums["acknowledged"] += len(Ledger(directory / "ledger").places)
        shutil.rmtree(directory, ignore_errors=True)
    return sums


def _told(sums: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(sums.items()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.threads", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="seed of the requests to the stores")
    parser.add_argument("--config", choices=CONFIGS, help="only this configuration")
    options = parser.parse_args()
    print(f"real threads: seed {options.seed}, {options.minutes:g} minutes", flush=True)
    try:
        sums = run(options.minutes * 60, options.seed, options.config)
    except Broke as broke:
        print(f"BROKEN: {broke}")
        return 1
    print(f"nothing broken: {_told(sums)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
