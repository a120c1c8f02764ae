"""After dispatch, every waiting request is notified, even if the notification of another request fails."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rucola.broker import dispatch_scheduler
from rucola.broker.dispatch_scheduler import MAPS_A_TURN, ROWS_A_TURN, DispatchScheduler
from rucola.broker.timer.timer_rewrite import TIMER
from rucola.common.key_builder import SCHEDULE_TOPIC
from rucola.runtime.supervision import Supervisor
from rucola.store.results import StoreState
from rucola.testing.clock import ManualClock
from rucola.testing.manual_loop import ManualLoop

SCHEDULE = SCHEDULE_TOPIC.encode()


class Hold:
    """Stands in for waiting pulls or pops; raises an error for topic ``Bad``."""

    waiting = 1

    def __init__(self, name: str, heard: list[object]) -> None:
        self._name, self._heard = name, heard
        self.looks = 0

    def __len__(self) -> int:
        self.looks += 1
        return self.waiting

    def arrived(self, topic: bytes, *arrival: int | None) -> None:
        if topic == b"Bad":
            raise ValueError(self._name)
        self._heard.append((self._name, topic, *arrival))


class Scene:
    """A stand-in for a store that reports arrived messages, and the services that are notified of them."""

    def __init__(self, *arrivals: tuple[bytes, int, int, int | None]) -> None:
        self.heard: list[object] = []
        self.error: Exception | None = None
        self.broken: set[str] = set()
        self.arrivals = list(arrivals)
        self.supervisor = Supervisor()
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.dispatches = 0
        self.store = SimpleNamespace(
            state=StoreState.RUNNING,
            dispatch=self._dispatch,
            dispatch_paused=False,
            take_arrivals=self._take,
            max_offset=0,
            dispatch_behind_bytes=0,
            config=SimpleNamespace(sync_flush=False),
            flushed_offset=7,
        )
        services = SimpleNamespace(
            store=self.store,
            pops=Hold("pop", self.heard),
            timers=SimpleNamespace(arrived=lambda: self._tell("timed")),
            supervisor=self.supervisor,
        )
        self.hold = Hold("pull", self.heard)
        running = SimpleNamespace(
            services=services,
            loop=self.loop,
            hold=self.hold,
            replication=None,
            slave=None,
            waiters=SimpleNamespace(
                release=lambda offset: self._tell(f"flushed {offset}"), fail_all=lambda reason: self._tell("failed")
            ),
            lite=None,
            delivery=SimpleNamespace(arrived=lambda: self._tell("delayed")),
        )
        self.listeners: list[Callable[[], None]] = []
        self.scheduler = DispatchScheduler(cast("Any", running), self.listeners)

    def append(self, size: int) -> None:
        self.store.max_offset += size
        self.store.dispatch_behind_bytes += size
        self.scheduler.appended()

    def _tell(self, what: str) -> None:
        if what in self.broken:
            raise ValueError(what)
        self.heard.append(what)

    def _dispatch(self, maps_max: float, rows_max: float) -> int:
        assert (maps_max, rows_max) == (MAPS_A_TURN, ROWS_A_TURN)
        assert not self.heard or self.heard[0] != "pull", "a request was notified inside the store's call"
        if self.error is not None:
            raise self.error
        self.dispatches += 1
        self.store.dispatch_behind_bytes = 0
        return 1

    def _take(self) -> list[tuple[bytes, int, int, int | None]]:
        taken, self.arrivals = self.arrivals, []
        return taken


def test_a_waiter_that_throws_keeps_nobody_else_from_its_messages(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene((b"Bad", 0, 1, None), (b"T", 1, 5, 7))
    scene.scheduler._dispatch()
    assert scene.heard == [("pull", b"T", 1, 5, 7), ("pop", b"T", 1, 7)]
    assert {record.rucola_event for record in caplog.records} == {"work failed and continues"}
    assert scene.supervisor.failures == {"waking of pulls": 1, "waking of pops": 1}
    assert not scene.scheduler.failed


@pytest.mark.parametrize(("topic", "what"), [(SCHEDULE, "delayed"), (TIMER, "timed")])
def test_a_delivery_that_throws_keeps_nobody_else_from_its_messages(topic: bytes, what: str) -> None:
    scene = Scene((topic, 2, 1, 3), (b"T", 1, 5, 7))
    scene.scheduler._dispatch()
    assert what in scene.heard
    scene.arrivals, scene.broken = [(topic, 2, 1, 3), (b"T", 1, 6, 7)], {what}
    scene.scheduler._dispatch()
    assert scene.heard[-1] == ("pop", b"T", 1, 7)
    assert sum(scene.supervisor.failures.values()) == 1


def test_arrivals_before_a_failed_dispatch_are_told() -> None:
    scene = Scene((b"T", 0, 1, None))
    scene.error = ValueError("the store")
    scene.scheduler._dispatch()
    assert scene.heard[0] == ("pull", b"T", 0, 1, None)
    assert scene.scheduler.failed
    assert scene.supervisor.failures["dispatch"] == 1


@pytest.mark.parametrize("state", [StoreState.RUNNING, StoreState.IO_ERROR])
def test_answers_that_cannot_be_sent_keep_nobody_from_the_messages(state: StoreState) -> None:
    scene = Scene((b"T", 0, 1, None))
    scene.store.state = state
    scene.broken = {"flushed 7"}
    scene.scheduler.flushed()
    scene.loop.run()
    assert ("failed" in scene.heard) is (state is StoreState.IO_ERROR)
    assert ("pull", b"T", 0, 1, None) in scene.heard


def test_nobody_is_looked_for_where_nobody_waits() -> None:
    scene = Scene((b"Bad", 0, 1, None))
    Hold.waiting = 0
    try:
        scene.scheduler._dispatch()
    finally:
        Hold.waiting = 1
    assert sum(scene.supervisor.failures.values()) == 0


def test_queues_are_not_looked_at_one_by_one_where_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hold, "waiting", 0)
    scene = Scene(*((b"T", number, 1, None) for number in range(100)), (SCHEDULE, 0, 1, None), (TIMER, 0, 1, None))
    scene.scheduler._dispatch()
    assert scene.hold.looks <= 3
    assert scene.heard == ["delayed", "timed"]


def test_a_paused_dispatch_continues_in_the_next_turn() -> None:
    scene = Scene((b"T", 0, 1, None))
    scene.store.dispatch_paused = True
    scene.scheduler._dispatch()
    assert ("pull", b"T", 0, 1, None) in scene.heard, "what was dispatched is told at once"
    scene.heard.clear()
    scene.store.dispatch_paused = False
    scene.arrivals = [(b"T", 1, 1, None)]
    scene.loop.run()
    assert ("pull", b"T", 1, 1, None) in scene.heard
    scene.arrivals = [(b"T", 2, 1, None)]
    scene.loop.run()
    assert scene.arrivals, "nothing more is scheduled"


@pytest.fixture
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hold, "waiting", 0)


@pytest.mark.usefixtures("nobody_waits")
def test_appends_share_a_dispatch_while_nobody_waits() -> None:
    scene = Scene()
    for _ in range(100):
        scene.append(dispatch_scheduler._BYTES_MAX // 100)
        scene.loop.run()
    assert scene.dispatches == 0
    scene.clock.advance(round(dispatch_scheduler._DELAY_S * 1000) - 1)
    scene.loop.run()
    assert scene.dispatches == 0
    scene.clock.advance(1)
    scene.loop.run()
    assert scene.dispatches == 1
    scene.clock.advance(1000)
    scene.loop.run()
    assert scene.dispatches == 1


@pytest.mark.usefixtures("nobody_waits")
def test_many_bytes_do_not_wait() -> None:
    scene = Scene()
    for number in range(1, 3):
        scene.append(1000)
        for size in (dispatch_scheduler._BYTES_MAX - 1000, 1):
            scene.loop.run()
            assert scene.dispatches == number - 1
            scene.append(size)
        scene.loop.run()
        assert scene.dispatches == number, "in the next turn, although no time has passed"
    scene.clock.advance(1000)
    scene.loop.run()
    assert scene.dispatches == 2, "the delayed call was cancelled"


@pytest.mark.usefixtures("nobody_waits")
def test_one_append_of_many_bytes_does_not_wait() -> None:
    scene = Scene()
    scene.append(dispatch_scheduler._BYTES_MAX + 1)
    scene.loop.run()
    assert scene.dispatches == 1


@pytest.mark.usefixtures("nobody_waits")
def test_a_dispatch_that_cannot_go_on_is_not_tried_in_every_turn() -> None:
    scene = Scene()
    scene.error = ValueError("no descriptor is left")
    scene.append(dispatch_scheduler._BYTES_MAX + 1)
    scene.loop.run()
    for _ in range(100):
        scene.append(1)
        scene.loop.run()
    assert scene.supervisor.failures["dispatch"] == 1
    scene.error = None
    scene.clock.advance(round(dispatch_scheduler._DELAY_S * 1000))
    scene.loop.run()
    assert scene.dispatches == 1
    scene.append(dispatch_scheduler._BYTES_MAX + 1)
    scene.loop.run()
    assert scene.dispatches == 2


@pytest.mark.usefixtures("nobody_waits")
def test_a_read_does_not_wait_for_the_delay() -> None:
    scene = Scene()
    scene.scheduler.appended()
    scene.scheduler.dispatch_scheduled()
    assert scene.dispatches == 1
    scene.scheduler.dispatch_scheduled()
    scene.clock.advance(1000)
    scene.loop.run()
    assert scene.dispatches == 1


def test_messages_for_those_who_wait_are_dispatched_in_the_next_turn() -> None:
    scene = Scene()
    for _ in range(3):
        scene.scheduler.appended()
    assert scene.dispatches == 0
    scene.loop.run()
    assert scene.dispatches == 1
