"""Fuzzes the decoders, and a broker and a name server through their sockets.

    python -m tests.fuzz --inputs 10000000
    python -m tests.fuzz --target "framed header" --seed 17 --inputs 1000
    python -m tests.fuzz --target live --seed 4 --inputs 1

The same seed always gives the same inputs of a target, so the seed in the message of a failure reproduces it.
``--inputs`` counts inputs of the decoders; the live servers get one more input for each hundred of them. The exit code
is 1 at the first failure.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections.abc import Iterator

from tests.fuzz.live import CONNECTIONS, FRAMES_MAX, run_life
from tests.fuzz.rounds import Failure, run_round
from tests.fuzz.targets import TARGETS
from tests.kernels import FORMS

LIVE = "live"
LIVE_SHARE = 100
COLUMNS = "{:<14} {:>7} {:>11} {:>9} {:>10}"


def rounds(name: str, inputs: int, seed: int) -> Iterator[int]:
    """Runs one round per seed, from ``seed`` on, until ``inputs`` inputs were tried; yields the count of each round."""
    done = 0
    while done < inputs:
        if name == LIVE:
            count = run_life(seed)
        else:
            count = TARGETS[name].round
            run_round(name, seed, count)
        done += count
        seed += 1
        yield count


def plan(inputs: int) -> dict[str, int]:
    """Returns the number of inputs for each target."""
    shares = sum(target.share for target in TARGETS.values())
    planned = {name: -(-inputs * target.share // shares) for name, target in TARGETS.items()}
    return planned | {LIVE: inputs // LIVE_SHARE}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzzes decoders and servers.")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="least number of inputs, over all targets")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round of each target")
    parser.add_argument("--target", choices=[*TARGETS, LIVE], help="only this target")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    planned = {options.target: options.inputs} if options.target else plan(options.inputs)
    print(f"fuzz: seed {options.seed}, kernels {' and '.join(FORMS)}; a life of the servers has {CONNECTIONS} "
          f"connections of up to {FRAMES_MAX} frames")  # fmt: skip
    print(COLUMNS.format("target", "seeds", "inputs", "seconds", "inputs/s"))
    every, began = 0, time.perf_counter()
    for name, inputs in planned.items():
        start = time.perf_counter()
        try:
            counts = list(rounds(name, inputs, options.seed))
        except Failure as failure:
            traceback.print_exception(failure)
            print(f'repeat it: python -m tests.fuzz --target "{name}" --seed {failure.seed} --inputs 1')
            return 1
        seconds = time.perf_counter() - start
        print(
            COLUMNS.format(name, len(counts), sum(counts), f"{seconds:.1f}", f"{sum(counts) / seconds:.0f}"), flush=True
        )
        every += sum(counts)
    print(f"{every} inputs in {time.perf_counter() - began:.0f} s, no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
