"""Explores crash states of a broker's pops, delays, transactions, accounts and users, and reports how many it tried.

    python -m tests.crash.broker_explore --states 5000
    python -m tests.crash.broker_explore --workload hide --flush sync --seed 7 --states 1

The message of a violation gives the options of the second command, which reproduces it. The exit code is 1 at the first
violation.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from functools import partial

from tests.crash.acl_life import KINDS, AclExplorer, Holey
from tests.crash.broker_promises import Broken, BrokerExplorer
from tests.crash.broker_workloads import WORKLOADS
from tests.crash.jobs import Round, Tally, default_jobs, explore_rows

SAMPLE = 2
COLUMNS = "{:<14} {:<5} {:>6} {:>9} {:>8}"
FLUSHES = ("sync", "async")
_NO_FLUSH = "-"


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


def _tell(row: tuple[str, str], tally: Tally) -> None:
    print(COLUMNS.format(*row, tally.rounds, *tally.counts, f"{tally.seconds:.1f}"), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.broker_explore", description=__doc__.split("\n")[0])
    parser.add_argument("--states", type=int, default=5000, help="least number of states, over all workloads")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round of each workload")
    parser.add_argument("--workload", choices=[*WORKLOADS, *KINDS], help="only this workload")
    parser.add_argument("--flush", choices=FLUSHES, help="only this flush mode")
    parser.add_argument("--jobs", type=int, default=default_jobs(), help="processes; they do not change the outcome")
    options = parser.parse_args()
    flushes = [options.flush] if options.flush else FLUSHES
    rows = [(name, flush) for name in WORKLOADS for flush in flushes] + [(name, _NO_FLUSH) for name in KINDS]
    rows = [row for row in rows if options.workload in (None, row[0])]
    share = -(-options.states // len(rows))
    print(f"crash explorer of the broker: seed {options.seed}, at least {options.states} states")
    print(COLUMNS.format("workload", "flush", "rounds", "states", "cpu s"), flush=True)
    broken = explore_rows(rows, partial(_round, options.seed), share, 0, options.jobs, _tell)
    if broken is not None and broken[1].violation is not None:
        (name, flush), (number, violation) = broken[0], broken[1].violation
        print(f"VIOLATION in {name}, {flush}: {violation}")
        again = f"--workload {name} --seed {options.seed + number} --states 1"
        again += f" --flush {flush}" if flush != _NO_FLUSH else ""
        print(f"again: python -m tests.crash.broker_explore {again}")
        return 1
    print("no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
