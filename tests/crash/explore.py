"""Explores crash states of the store, as many as asked for, and says how many it saw.

    python -m tests.crash.explore --states 100000
    python -m tests.crash.explore --workload roll --flush sync --seed 7 --states 1

The second form repeats what a violation names: a seed stands for one round through a workload, always the same.
Exit code 1 at the first violation.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from random import Random

from tests.crash.faults import FAULTS, FULL_DISK, calls, plan
from tests.crash.workloads import CONFIGS, WORKLOADS

from rucola.store.config import MessageStoreConfig
from rucola.testing.crash_explorer import CrashExplorer, Violation
from rucola.testing.fault_plan import FaultPlan

SAMPLE = 8
COMPOUND_EVERY = 250
FAULTS_PER_ROUND = 6
COLUMNS = "{:<14} {:<5} {:>6} {:>8} {:>9} {:>9} {:>7} {:>8}"


def explore_round(workload: str, config: MessageStoreConfig, seed: int) -> tuple[CrashExplorer, int]:
    """Power cuts at every step of the workload, then a few of each fault; the explorer and the faults done."""
    explorer = CrashExplorer(config, seed, SAMPLE, COMPOUND_EVERY)
    explorer.run(WORKLOADS[workload])
    random = Random(seed)
    points = range(1, calls(workload, config, seed) + 1)
    done = 0
    for fault in FAULTS:
        for nth in random.sample(points, min(FAULTS_PER_ROUND, len(points))):
            done += explorer.run_with_faults(WORKLOADS[workload], plan(fault, nth))
    for nth in random.sample(points, min(FAULTS_PER_ROUND, len(points))):
        done += explorer.run_on_full_disk(WORKLOADS[workload], FaultPlan(nth, *FULL_DISK))
    return explorer, done


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.explore", description="Explores crash states.")
    parser.add_argument("--states", type=int, default=100_000, help="least number of states, over all workloads")
    parser.add_argument("--seed", type=int, default=1, help="of the first round of each workload")
    parser.add_argument("--workload", choices=WORKLOADS, help="only this one")
    parser.add_argument("--flush", choices=CONFIGS, help="only this way to write the log")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    names = [options.workload] if options.workload else list(WORKLOADS)
    flushes = [options.flush] if options.flush else list(CONFIGS)
    share = -(-options.states // (len(names) * len(flushes)))
    print(f"crash explorer: seed {options.seed}, at least {options.states} states")
    print(COLUMNS.format("workload", "flush", "rounds", "steps", "states", "compound", "faults", "seconds"))
    sums = [0] * 5
    for name in names:
        for flush in flushes:
            row, begin = [0] * 5, time.perf_counter()
            while row[2] < share:
                seed = options.seed + row[0]
                try:
                    explorer, faults = explore_round(name, CONFIGS[flush], seed)
                except Violation as violation:
                    print(f"VIOLATION in {name}, {flush}: {violation}")
                    command = (
                        f"python -m tests.crash.explore --workload {name} --flush {flush} --seed {seed} --states 1"
                    )
                    print(f"again: {command}")
                    return 1
                counts = explorer.counts
                for at, more in enumerate((1, counts.steps, counts.states, counts.compound, faults)):
                    row[at] += more
            print(COLUMNS.format(name, flush, *row, f"{time.perf_counter() - begin:.1f}"), flush=True)
            sums = [left + right for left, right in zip(sums, row, strict=True)]
    print(COLUMNS.format("all", "", *sums, ""))
    print("no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
