"""Regular work of the broker: when it is called, and what prevents a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from rucola.broker.cold_reads import ColdReads
from rucola.broker.paced_work import PacedWork
from rucola.runtime.supervision import Supervisor
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError
from rucola.testing.clock import ManualClock
from rucola.testing.manual_loop import ManualLoop

MISSES = NotInMemoryError(ColdRecords())


class Stage:
    """Regular work on an event loop and a disk that the test controls."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.loop = ManualLoop(self.clock)
        self.steps: list[ColdRecords] = []
        self.outcome: int | Exception | None = None
        self.work = PacedWork("work", self._step, cast(Any, self.loop), cast(ColdReads, self), Supervisor())
        self._fetched: list[Callable[[None], None]] = []

    def _step(self, cold: ColdRecords) -> int | None:
        self.steps.append(cold)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def fetch(self, _fetch: Callable[[], None]) -> Stage:
        return self

    def add_done_callback(self, callback: Callable[[None], None]) -> None:
        self._fetched.append(callback)

    def disk_answers(self) -> None:
        self._fetched.pop()(None)

    def calls_after(self, milliseconds: int) -> int:
        """Lets time pass; returns how often the work was called meanwhile."""
        before = len(self.steps)
        self.clock.advance(milliseconds)
        self.loop.run()
        return len(self.steps) - before


def test_it_names_its_pauses_and_an_arrival_ends_them() -> None:
    stage = Stage()
    stage.outcome = 700
    stage.work.soon()
    assert stage.calls_after(1000) == 0
    stage.work.start()
    assert (len(stage.steps), stage.calls_after(600), stage.calls_after(200)) == (1, 0, 1)
    stage.outcome = None
    stage.work.soon()
    assert (stage.calls_after(0), stage.calls_after(5000)) == (1, 0)


def test_nothing_calls_it_while_the_disk_is_asked_for_what_it_misses() -> None:
    stage = Stage()
    stage.outcome = MISSES
    stage.work.start()
    stage.work.soon()
    assert stage.calls_after(1000) == 0
    stage.disk_answers()
    stage.outcome = 700
    stage.disk_answers()
    assert [cold is stage.steps[0] for cold in stage.steps] == [True] * 3
    assert (stage.calls_after(700), stage.steps[-1] is stage.steps[0]) == (1, False)


def test_a_failure_is_logged_and_not_the_end(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.outcome = ValueError("of one message")
    stage.work.start()
    assert "work failed and continues" in caplog.text
    assert (stage.calls_after(9_900), stage.calls_after(200)) == (0, 1)


@pytest.mark.parametrize("outcome", [700, MISSES])
def test_a_stop_ends_it(outcome: int | Exception) -> None:
    stage = Stage()
    stage.outcome = outcome
    stage.work.start()
    stage.work.stop()
    stage.work.soon()
    if outcome is MISSES:
        stage.disk_answers()
    assert (stage.calls_after(1000), len(stage.steps)) == (0, 1)
