"""Rounds of an exploration on several processes. What is found, and counted, does not depend on how many there are.

A row is one workload in one configuration; its rounds have the seeds from the first on, and as many count as it takes
to reach the share of states of the row. Rounds that were begun ahead and turn out not to be needed count for nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TypeVar

Row = TypeVar("Row")
_REPORT_S = 20.0


@dataclass(frozen=True)
class Round:
    """What one round came to.

    Attributes:
        counts: of the row's columns; the one with the number ``states_at`` is states.
        violation: what broke, empty for nothing.
        seconds: of a processor.
    """

    counts: tuple[int, ...]
    violation: str = ""
    seconds: float = 0.0


@dataclass
class Tally:
    """What the rounds of a row came to so far.

    Attributes:
        rounds: how many count.
        counts: their sums.
        seconds: of a processor.
        violation: of the first round that broke something, with its seed.
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
        """Number of the round to begin next; None when those under way should do."""
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
        """Counts what another row came to as well."""
        self._count(other.rounds, other.counts, other.seconds)

    def _count(self, rounds: int, counts: tuple[int, ...], seconds: float) -> None:
        before = self.counts or (0,) * len(counts)
        self.counts = tuple(left + right for left, right in zip(before, counts, strict=True))
        self.rounds += rounds
        self.seconds += seconds

    def take(self, number: int, found: Round) -> None:
        """Round ``number`` ended; rounds count in order."""
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
    """Explores each row until its share of states is reached, or something breaks.

    Args:
        explore: one round of a row, by its number; called in another process.
        on_row: called for each row that is done, in their order.

    Returns:
        The first row that broke something, None when none did.
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
            return  # what comes behind it is not told


def default_jobs() -> int:
    """As many as there are processors."""
    return os.cpu_count() or 1
