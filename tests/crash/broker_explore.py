"""Explores crash states of a broker's pops, delays, transactions, accounts and users, and says how many it saw.

    python -m tests.crash.broker_explore --states 5000
    python -m tests.crash.broker_explore --workload hide --flush sync --seed 7 --states 1

The second form repeats what a violation names. Exit code 1 at the first violation.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.crash.acl_life import KINDS, AclExplorer, Holey
from tests.crash.broker_promises import Broken, BrokerExplorer
from tests.crash.broker_workloads import WORKLOADS

SAMPLE = 2
COLUMNS = "{:<14} {:<5} {:>6} {:>9} {:>8}"
FLUSHES = ("sync", "async")
_NO_FLUSH = "-"


def explore_round(workload: str, flush: str, seed: int) -> int:
    """Power cuts at every step of a workload; the states that were seen."""
    if workload in KINDS:
        accounts = AclExplorer(workload, seed, SAMPLE)
        accounts.run()
        return accounts.states
    explorer = BrokerExplorer(flush == "sync", seed, SAMPLE)
    WORKLOADS[workload](explorer.clients())
    return explorer.states


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.broker_explore", description=__doc__.split("\n")[0])
    parser.add_argument("--states", type=int, default=5000, help="least number of states, over all workloads")
    parser.add_argument("--seed", type=int, default=1, help="of the first round of each workload")
    parser.add_argument("--workload", choices=[*WORKLOADS, *KINDS], help="only this one")
    parser.add_argument("--flush", choices=FLUSHES, help="only this way to write the log")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    flushes = [options.flush] if options.flush else FLUSHES
    rows = [(name, flush) for name in WORKLOADS for flush in flushes] + [(name, _NO_FLUSH) for name in KINDS]
    rows = [row for row in rows if options.workload in (None, row[0])]
    share = -(-options.states // len(rows))
    print(f"crash explorer of the broker: seed {options.seed}, at least {options.states} states")
    print(COLUMNS.format("workload", "flush", "rounds", "states", "seconds"))
    for name, flush in rows:
        rounds = states = 0
        begin = time.perf_counter()
        while states < share:
            seed = options.seed + rounds
            try:
                states += explore_round(name, flush, seed)
            except (Broken, Holey) as violation:
                print(f"VIOLATION in {name}, {flush}: {violation}")
                again = f"--workload {name} --seed {seed} --states 1"
                again += f" --flush {flush}" if flush != _NO_FLUSH else ""
                print(f"again: python -m tests.crash.broker_explore {again}")
                return 1
            rounds += 1
        print(COLUMNS.format(name, flush, rounds, states, f"{time.perf_counter() - begin:.1f}"), flush=True)
    print("no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
