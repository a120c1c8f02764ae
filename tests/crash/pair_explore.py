"""Explores crash states of a master and its slaves, and reports how many it tried.

    python -m tests.crash.pair_explore --states 100000
    python -m tests.crash.pair_explore --workload power --pair sync --seed 7 --states 1

The message of a violation gives the options of the second command, which reproduces it. The exit code is 1 at the first
violation.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from functools import partial

from tests.crash.jobs import Round, Tally, default_jobs, explore_rows
from tests.crash.pair_explorer import PairExplorer
from tests.crash.pair_ledger import Broken
from tests.crash.pair_workloads import CONFIGS, WORKLOADS

SAMPLE, EVERY = 3, 5
COLUMNS = "{:<10} {:<12} {:>6} {:>8} {:>9} {:>9} {:>8}"
_STATES_AT = 1


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


def _tell(row: tuple[str, str], tally: Tally) -> None:
    print(COLUMNS.format(*row, tally.rounds, *tally.counts, f"{tally.seconds:.1f}"), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.pair_explore", description=__doc__.split("\n")[0])
    parser.add_argument("--states", type=int, default=100_000, help="least number of states, over all workloads")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first round of each workload")
    parser.add_argument("--workload", choices=WORKLOADS, help="only this workload")
    parser.add_argument("--pair", choices=CONFIGS, help="only this configuration of the pair")
    parser.add_argument("--jobs", type=int, default=default_jobs(), help="processes; they do not change the outcome")
    options = parser.parse_args()
    rows = [(name, pair) for name in WORKLOADS for pair in CONFIGS]
    rows = [row for row in rows if options.workload in (None, row[0]) and options.pair in (None, row[1])]
    print(f"crash explorer of pairs: seed {options.seed}, at least {options.states} states, {options.jobs} processes")
    print(COLUMNS.format("workload", "pair", "rounds", "steps", "states", "promoted", "cpu s"), flush=True)
    begin, sums = time.perf_counter(), Tally(0, _STATES_AT)

    def on_row(row: tuple[str, str], tally: Tally) -> None:
        _tell(row, tally)
        sums.add(tally)

    share = -(-options.states // len(rows))
    broken = explore_rows(rows, partial(_round, options.seed), share, _STATES_AT, options.jobs, on_row)
    if broken is not None and broken[1].violation is not None:
        (name, pair), (number, violation) = broken[0], broken[1].violation
        print(f"VIOLATION in {name}, {pair}: {violation}")
        again = f"--workload {name} --pair {pair} --seed {options.seed + number} --states 1"
        print(f"again: python -m tests.crash.pair_explore {again}")
        return 1
    _tell(("all", ""), sums)
    print(f"no violation, {sums.counts[_STATES_AT] / (time.perf_counter() - begin):.0f} states a second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
