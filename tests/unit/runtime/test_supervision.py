"""Periodic work continues after a call that raises."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from rucola.errors import DiskError
from rucola.runtime.supervision import PeriodicWork, Supervisor
from rucola.testing.clock import ManualClock
from rucola.testing.manual_loop import ManualLoop


class Scene:
    """Supervised work that is due every 10 s; ``outcome`` determines how it ends."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.supervisor = Supervisor()
        self.turns: list[float] = []
        self.outcome: float | Exception | None = None
        self.pause_s = 10.0
        self.work: PeriodicWork = self.supervisor.every(
            "work", lambda: self.pause_s, self._turn, cast(Any, self.loop), **options
        )

    def _turn(self) -> float | None:
        self.turns.append(self.clock.monotonic())
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def passes(self, seconds: int) -> list[float]:
        before = len(self.turns)
        for _ in range(seconds):
            self.clock.advance(1000)
            self.loop.run()
        return self.turns[before:]


def test_it_is_done_at_its_pauses_which_are_asked_for_each_time() -> None:
    scene = Scene()
    assert scene.passes(25) == [10, 20]
    scene.pause_s = 3
    assert scene.passes(12) == [30, 33, 36]
    assert scene.supervisor.failures == {"work": 0}


def test_it_names_another_pause_and_another_first_one() -> None:
    scene = Scene(first_s=2)
    scene.outcome = 4.0
    assert scene.passes(11) == [2, 6, 10]


def test_a_failure_is_logged_with_its_name_counted_and_not_the_end(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(after_error_s=5.0)
    scene.outcome = ValueError("the failure of this turn")
    with caplog.at_level(logging.INFO):
        assert scene.passes(21) == [10, 15, 20]
        assert [vars(record)["rucola_event"] for record in caplog.records] == ["work failed and continues"]
        fields = {"work": "work", "error": "ValueError('the failure of this turn')"}
        assert caplog.records[0].__dict__["rucola_fields"] == fields
        assert caplog.records[0].exc_info is not None
        scene.outcome = DiskError("p", "write", "why")
        scene.passes(5)
        assert (caplog.records[1].levelno, caplog.records[1].exc_info) == (logging.ERROR, None)
        scene.outcome = None
        assert scene.passes(20) == [30, 40]
        assert vars(caplog.records[-1])["rucola_event"] == "work succeeds again"
    assert (len(caplog.records), scene.supervisor.failures) == (3, {"work": 4})


def test_a_pause_that_cannot_be_told_is_a_failure_and_ten_seconds() -> None:
    scene = Scene()
    scene.pause_s = 0
    scene.work._pause_s = lambda: 10 / scene.pause_s
    assert scene.passes(25) == [10, 20]
    assert scene.supervisor.failures == {"work": 2}


def test_a_stop_ends_it() -> None:
    scene = Scene()
    scene.passes(10)
    asyncio.run(scene.work.stop())
    assert scene.passes(30) == []


def test_a_guarded_call_concerns_nobody_else() -> None:
    supervisor, called = Supervisor(), []
    supervisor.call("one", lambda number: 1 // number, 0)
    supervisor.call("one", called.append, 7)
    assert (supervisor.failures, called) == ({"one": 1}, [7])


def test_an_asynchronous_turn_fails_is_cancelled_and_comes_again() -> None:
    async def scene() -> None:
        turns: list[int] = []
        done = asyncio.Event()

        async def work() -> None:
            turns.append(len(turns))
            await asyncio.sleep(0)
            if len(turns) == 1:
                raise ValueError("of this turn")
            if len(turns) == 2:
                raise asyncio.CancelledError
            done.set()

        supervisor = Supervisor()
        loop = asyncio.get_running_loop()
        periodic = supervisor.every("work", lambda: 0.001, work, loop)
        async with asyncio.timeout(10):
            await done.wait()
        await periodic.stop()
        assert (supervisor.failures, turns[:3]) == ({"work": 1}, [0, 1, 2])

    asyncio.run(scene())


@pytest.mark.parametrize("interruptible", [True, False])
def test_a_stop_cancels_a_turn_or_waits_for_its_end(interruptible: bool) -> None:
    async def scene() -> None:
        ended, begun = [], asyncio.Event()

        async def work() -> None:
            begun.set()
            for _ in range(10):
                await asyncio.sleep(0)
            ended.append(True)

        loop = asyncio.get_running_loop()
        periodic = Supervisor().every("work", lambda: 0.0, work, loop, interruptible=interruptible)
        await begun.wait()
        await periodic.stop()
        assert ended == ([] if interruptible else [True])

    asyncio.run(scene())
