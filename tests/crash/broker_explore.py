"""Explores crash states of a broker's pops, delays, transactions, accounts and users, and reports how many it tried.

    python -m tests.crash.broker_explore --states 5000
    python -m tests.crash.broker_explore --workload hide --flush sync --seed 7 --states 1

The message of a violation gives the options of the second command, which reproduces it. The exit code is 1 at the first
violation.
"""

from __future__ import annotations

import logging
import sys
import time

from tests.crash.acl_life import KINDS, AclExplorer, Holey
from tests.crash.broker_promises import Broken, BrokerExplorer
from tests.crash.broker_workloads import WORKLOADS
from tests.crash.jobs import Round, RowReport

SAMPLE = 2
FLUSHES = ("sync", "async")
_NO_FLUSH = "-"
REPORT = RowReport("tests.crash.broker_explore", "{:<14} {:<5} {:>6} {:>9} {:>8}", ("states",), 0, "flush", _NO_FLUSH)


def explore_round(workload: str, flush: str, seed: int) -> int:
    """Simulates power failures at every step of a workload; returns the number of states of the disk."""
    if workload in KINDS:
        accounts = AclExplorer(workload, seed, SAMPLE)
        accounts.run()
        return accounts.states
    explorer = BrokerExplorer(flush == "sync", seed, SAMPLE)
    WORKLOADS[workload](explorer.clients())
    return explorer.states


def _round(first_seed: int, row: tuple[str, str], number: int) -> Round:
    """Runs one round, in a separate process."""
    logging.disable(logging.CRITICAL)
    begin = time.process_time()
    try:
        states = explore_round(*row, first_seed + number)
    except (Broken, Holey) as violation:
        return Round((), str(violation))
    return Round((states,), seconds=time.process_time() - begin)


def main() -> int:
    parser = REPORT.arguments(5000)
    parser.add_argument("--workload", choices=[*WORKLOADS, *KINDS], help="only this workload")
    parser.add_argument("--flush", choices=FLUSHES, help="only this flush mode")
    options = parser.parse_args()
    flushes = [options.flush] if options.flush else FLUSHES
    rows = [(name, flush) for name in WORKLOADS for flush in flushes] + [(name, _NO_FLUSH) for name in KINDS]
    rows = [row for row in rows if options.workload in (None, row[0])]
    return REPORT.run(rows, _round, options)


if __name__ == "__main__":
    sys.exit(main())
