"""Explores crash states of a master and its slaves, and reports how many it tried.

    python -m tests.crash.pair_explore --states 100000
    python -m tests.crash.pair_explore --workload power --pair sync --seed 7 --states 1

The message of a violation gives the options of the second command, which reproduces it. The exit code is 1 at the first
violation.
"""

from __future__ import annotations

import logging
import sys
import time

from tests.crash.jobs import Round, RowReport
from tests.crash.pair_explorer import PairExplorer
from tests.crash.pair_ledger import Broken
from tests.crash.pair_workloads import CONFIGS, WORKLOADS

SAMPLE, EVERY = 3, 5
REPORT = RowReport(
    "tests.crash.pair_explore",
    "{:<10} {:<12} {:>6} {:>8} {:>9} {:>9} {:>8}",
    ("steps", "states", "promoted"),
    1,
    "pair",
)


def _round(first_seed: int, row: tuple[str, str], number: int) -> Round:
    """Runs one round, in a separate process."""
    logging.disable(logging.CRITICAL)
    begin = time.process_time()
    explorer = PairExplorer(CONFIGS[row[1]], first_seed + number, SAMPLE, EVERY)
    try:
        explorer.run(WORKLOADS[row[0]])
    except Broken as violation:
        return Round((), str(violation))
    counts = explorer.counts
    return Round((counts.steps, counts.states, counts.promoted), seconds=time.process_time() - begin)


def main() -> int:
    parser = REPORT.arguments(100_000)
    parser.add_argument("--workload", choices=WORKLOADS, help="only this workload")
    parser.add_argument("--pair", choices=CONFIGS, help="only this configuration of the pair")
    options = parser.parse_args()
    rows = [(name, pair) for name in WORKLOADS for pair in CONFIGS]
    rows = [row for row in rows if options.workload in (None, row[0]) and options.pair in (None, row[1])]
    return REPORT.run(rows, _round, options)


if __name__ == "__main__":
    sys.exit(main())
