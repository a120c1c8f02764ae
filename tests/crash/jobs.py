"""Runs the rounds of an exploration in several processes. Findings and counts do not depend on the number of processes.

Each row of the table of jobs is one workload in one configuration. The rounds of a row together explore the row's share
of all requested states. They have ascending seeds, and count in this order until the share is explored. Rounds beyond
that do not count, even if they were begun in advance.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

Row = TypeVar("Row")
_REPORT_S = 20.0


@dataclass(frozen=True)
class Round:
    """The result of one round.

    Attributes:
        counts: values of the row's columns; column ``states_at`` holds the states.
        violation: text about the broken promise; empty if there is none.
        seconds: CPU time of the round.
    """

    counts: tuple[int, ...]
    violation: str = ""
    seconds: float = 0.0


@dataclass
class Tally:
    """The results of a row's rounds so far.

    Attributes:
        rounds: number of rounds that count.
        counts: for each count that rounds report, the sum over these rounds.
        seconds: CPU time of all rounds.
        violation: the first round that broke a promise, with its seed.
    """

    share: int
    states_at: int
    rounds: int = 0
    counts: tuple[int, ...] = ()
    seconds: float = 0.0
    violation: tuple[int, str] | None = None
    done: bool = False
    _begun: int = 0
    _ahead: dict[int, Round] = field(default_factory=dict)

    def next_round(self) -> int | None:
        """Returns the number of the next round to begin; None if the rounds already begun probably reach enough
        states.
        """
        if self.done:
            return None
        under_way = self._begun - self.rounds
        known = self.counts[self.states_at] if self.counts else 0
        average = known // self.rounds if self.rounds else self.share
        if under_way and known + under_way * max(average, 1) >= self.share:
            return None
        self._begun += 1
        return self._begun - 1

    def add(self, other: Tally) -> None:
        """Adds the counts of another row."""
        self._count(other.rounds, other.counts, other.seconds)

    def _count(self, rounds: int, counts: tuple[int, ...], seconds: float) -> None:
        before = self.counts or (0,) * len(counts)
        self.counts = tuple(left + right for left, right in zip(before, counts, strict=True))
        self.rounds += rounds
        self.seconds += seconds

    def take(self, number: int, found: Round) -> None:
        """Adds the result of round ``number``; it counts as soon as all earlier rounds have results."""
        self._ahead[number] = found
        while not self.done and self.rounds in self._ahead:
            found = self._ahead.pop(self.rounds)
            if found.violation:
                self.violation = self.rounds, found.violation
                self.done = True
                return
            self._count(1, found.counts, found.seconds)
            self.done = self.counts[self.states_at] >= self.share


def explore_rows(
    rows: list[Row],
    explore: Callable[[Row, int], Round],
    share: int,
    states_at: int,
    jobs: int,
    on_row: Callable[[Row, Tally], None],
) -> tuple[Row, Tally] | None:
    """Explores each row until it reaches its share of the states, or a promise is broken.

    Args:
        explore: runs one round of a row, given the number of the round; called in a separate process if there are
            several jobs.
        on_row: called for each finished row, in order.

    Returns:
        The first row that broke a promise; None if there is none.
    """
    tallies = [Tally(share, states_at) for _ in rows]
    told, begin, reported = 0, time.monotonic(), time.monotonic()
    if jobs == 1:
        for row, tally in zip(rows, tallies, strict=True):
            while (number := tally.next_round()) is not None:
                tally.take(number, explore(row, number))
            if tally.violation:
                return row, tally
            on_row(row, tally)
        return None
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        under_way: dict[Future[Round], tuple[int, int]] = {}
        while told < len(rows):
            _begin_rounds(pool, under_way, rows, tallies, explore, jobs + 1)
            ended, _ = wait(under_way, timeout=_REPORT_S, return_when=FIRST_COMPLETED)
            for future in ended:
                at, number = under_way.pop(future)
                tallies[at].take(number, future.result())
            while told < len(rows) and tallies[told].done:
                if tallies[told].violation:
                    for future in under_way:
                        future.cancel()
                    return rows[told], tallies[told]
                on_row(rows[told], tallies[told])
                told += 1
            if time.monotonic() - reported > _REPORT_S:
                reported = time.monotonic()
                states = sum(tally.counts[states_at] for tally in tallies if tally.counts)
                print(f"... {states} states in {reported - begin:.0f} s", flush=True)
    return None


def _begin_rounds(
    pool: ProcessPoolExecutor,
    under_way: dict[Future[Round], tuple[int, int]],
    rows: list[Row],
    tallies: list[Tally],
    explore: Callable[[Row, int], Round],
    most: int,
) -> None:
    for at, (row, tally) in enumerate(zip(rows, tallies, strict=True)):
        while len(under_way) < most and (number := tally.next_round()) is not None:
            under_way[pool.submit(explore, row, number)] = at, number
        if tally.violation:
            return  # rows after the violation are not reported


class RowReport(NamedTuple):
    """Explores rows of workloads and configurations, and prints a table.

    Attributes:
        program: the module, as its command line names it.
        layout: format of a line.
        counts: heads of the columns with counts.
        states_at: index of the count of states.
        option: name of the option with the configuration.
        no_option: the configuration of rows that have none.
    """

    program: str
    layout: str
    counts: tuple[str, ...]
    states_at: int
    option: str
    no_option: str | None = None

    def arguments(self, states: int) -> argparse.ArgumentParser:
        """Returns a parser with the options that all explorers have.

        Args:
            states: default of ``--states``.
        """
        parser = argparse.ArgumentParser(prog=f"python -m {self.program}", description="Explores crash states.")
        parser.add_argument("--states", type=int, default=states, help="least number of states, over all workloads")
        parser.add_argument("--seed", type=int, default=1, help="seed of the first round of each workload")
        parser.add_argument(
            "--jobs", type=int, default=default_jobs(), help="processes; they do not change the outcome"
        )
        return parser

    def run(
        self,
        rows: list[tuple[str, str]],
        explore: Callable[[int, tuple[str, str], int], Round],
        options: argparse.Namespace,
    ) -> int:
        """Explores the rows, as the parsed ``options`` say; returns the exit status: 1 if a promise is broken.

        Args:
            explore: runs a round, given the first seed, the row and the number of the round.
        """
        print(f"{self.program}: seed {options.seed}, at least {options.states} states, {options.jobs} processes")
        print(self.layout.format("workload", self.option, "rounds", *self.counts, "cpu s"), flush=True)
        begin, sums = time.perf_counter(), Tally(0, self.states_at)

        def on_row(row: tuple[str, str], tally: Tally) -> None:
            self._tell(row, tally)
            sums.add(tally)

        share = -(-options.states // len(rows))
        broken = explore_rows(rows, partial(explore, options.seed), share, self.states_at, options.jobs, on_row)
        if broken is not None and broken[1].violation is not None:
            (name, value), (number, violation) = broken[0], broken[1].violation
            print(f"VIOLATION in {name}, {value}: {violation}")
            chosen = "" if value == self.no_option else f" --{self.option} {value}"
            again = f"--workload {name}{chosen} --seed {options.seed + number} --states 1"
            print(f"again: python -m {self.program} {again}")
            return 1
        self._tell(("all", ""), sums)
        rate = sums.counts[self.states_at] / (time.perf_counter() - begin)
        print(f"no violation, {rate:.0f} states a second")
        return 0

    def _tell(self, row: tuple[str, str], tally: Tally) -> None:
        print(self.layout.format(*row, tally.rounds, *tally.counts, f"{tally.seconds:.1f}"), flush=True)


def default_jobs() -> int:
    """Returns the number of CPUs."""
    return os.cpu_count() or 1
