"""Explores crash states of a broker's pops, delays and transactions, and says how many it saw.

    python -m tests.crash.broker_explore --states 5000
    python -m tests.crash.broker_explore --workload hide --flush sync --seed 7 --states 1

The second form repeats what a violation names. Exit code 1 at the first violation.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.crash.broker_promises import Broken, BrokerExplorer
from tests.crash.broker_workloads import WORKLOADS

SAMPLE = 4
COLUMNS = "{:<14} {:<5} {:>6} {:>8} {:>9} {:>8}"
FLUSHES = {"sync": True, "async": False}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.broker_explore", description=__doc__.split("\n")[0])
    parser.add_argument("--states", type=int, default=5000, help="least number of states, over all workloads")
    parser.add_argument("--seed", type=int, default=1, help="of the first round of each workload")
    parser.add_argument("--workload", choices=WORKLOADS, help="only this one")
    parser.add_argument("--flush", choices=FLUSHES, help="only this way to write the log")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    names = [options.workload] if options.workload else list(WORKLOADS)
    flushes = [options.flush] if options.flush else list(FLUSHES)
    share = -(-options.states // (len(names) * len(flushes)))
    print(f"crash explorer of the broker: seed {options.seed}, at least {options.states} states")
    print(COLUMNS.format("workload", "flush", "rounds", "steps", "states", "seconds"))
    for name in names:
        for flush in flushes:
            rounds = steps = states = 0
            begin = time.perf_counter()
            while states < share:
                seed = options.seed + rounds
                explorer = BrokerExplorer(FLUSHES[flush], seed, SAMPLE)
                try:
                    WORKLOADS[name](explorer.clients())
                except Broken as broken:
                    print(f"VIOLATION in {name}, {flush}: {broken}")
                    command = "python -m tests.crash.broker_explore"
                    print(f"again: {command} --workload {name} --flush {flush} --seed {seed} --states 1")
                    return 1
                rounds, steps, states = rounds + 1, steps + explorer.steps, states + explorer.states
            seconds = f"{time.perf_counter() - begin:.1f}"
            print(COLUMNS.format(name, flush, rounds, steps, states, seconds), flush=True)
    print("no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
