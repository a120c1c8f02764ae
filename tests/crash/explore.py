"""Explores as many crash states of the store as requested, and reports how many it tried.

    python -m tests.crash.explore --states 100000
    python -m tests.crash.explore --workload roll --flush sync --seed 7 --states 1

The message of a violation gives the options of the second command, which reproduces it, because the same seed always
leads to the same run of a workload. The exit code is 1 at the first violation.
"""

from __future__ import annotations

import logging
import sys
import time
from random import Random

from tests.crash.faults import FAULTS, FULL_DISK, calls, calls_of, plan
from tests.crash.jobs import Round, RowReport
from tests.crash.workloads import CONFIGS, WORKLOADS

from rucola.store.config import MessageStoreConfig
from rucola.testing.crash_explorer import CrashExplorer, Violation
from rucola.testing.fault_plan import FaultPlan

SAMPLE = 5
COMPOUND_EVERY = 1000
FAULTS_PER_ROUND = 3
REPORT = RowReport(
    "tests.crash.explore",
    "{:<14} {:<5} {:>6} {:>8} {:>9} {:>9} {:>9} {:>7} {:>8}",
    ("steps", "states", "compound", "switches", "faults"),
    1,
    "flush",
)


def explore_round(workload: str, config: MessageStoreConfig, seed: int) -> tuple[CrashExplorer, int]:
    """Simulates power failures at every step of the workload, then a few faults of each kind; returns the explorer and
    the number of faults.
    """
    explorer = CrashExplorer(config, seed, SAMPLE, COMPOUND_EVERY, interleaved=True)
    explorer.run(WORKLOADS[workload])
    random = Random(seed)
    points = range(1, calls(workload, config, seed) + 1)
    done = 0
    of_kind = {kinds: calls_of(kinds, workload, config, seed) for _, _, kinds in FAULTS.values()}
    for fault in FAULTS:
        hit = range(1, of_kind[FAULTS[fault][2]] + 1)
        for nth in random.sample(hit, min(FAULTS_PER_ROUND, len(hit))):
            done += explorer.run_with_faults(WORKLOADS[workload], plan(fault, nth))
    for nth in random.sample(points, min(FAULTS_PER_ROUND, len(points))):
        done += explorer.run_on_full_disk(WORKLOADS[workload], FaultPlan(nth, *FULL_DISK))
    return explorer, done


def _round(first_seed: int, row: tuple[str, str], number: int) -> Round:
    """Runs one round, in a separate process."""
    logging.disable(logging.CRITICAL)
    begin = time.process_time()
    try:
        explorer, faults = explore_round(row[0], CONFIGS[row[1]], first_seed + number)
    except Violation as violation:
        return Round((), str(violation))
    counts = explorer.counts
    seen = counts.steps, counts.states, counts.compound, counts.switches, faults
    return Round(seen, seconds=time.process_time() - begin)


def main() -> int:
    parser = REPORT.arguments(100_000)
    parser.add_argument("--workload", choices=WORKLOADS, help="only this workload")
    parser.add_argument("--flush", choices=CONFIGS, help="only this configuration of the log")
    options = parser.parse_args()
    names = [options.workload] if options.workload else list(WORKLOADS)
    rows = [(name, flush) for name in names for flush in ([options.flush] if options.flush else CONFIGS)]
    return REPORT.run(rows, _round, options)


if __name__ == "__main__":
    sys.exit(main())
