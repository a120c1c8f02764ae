"""A withdrawn pop pops nothing and gets no response, whatever it waits for, and its message goes to the next pop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.crash.broker_life import Connection
from tests.unit.broker.stepped import STEP_MS, Asked, SteppedBroker
from tests.unit.broker.test_wake_ups import FOUND, POLLING_TIMEOUT, POP, bodies, pop_fields

from rucola.broker.pop.hold import PopHold
from rucola.store.results import GetMessageResult

SQL = "a is null"


class Scene:
    """A stepped broker with a pop that will be withdrawn, and one on another connection that waits after it.

    Attributes:
        paused: what the disk or the parser calls when its work for the first pop is done.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sync_flush: bool = False) -> None:
        self.broker = SteppedBroker(sync_flush)
        self._monkeypatch = monkeypatch
        self.paused: list[Callable[[], None]] = []
        self.first = self.pop(5000, exp=SQL, expType="SQL92")
        self.other = self.broker.connect()
        self.second = self.pop(9000, self.other)

    @property
    def hold(self) -> PopHold:
        return self.broker.broker.services.pops.get().hold

    def pop(self, poll_ms: int = 0, connection: Connection | None = None, **changes: object) -> Asked:
        fields = pop_fields(self.broker, poll_ms) | changes
        return self.broker.request(POP, fields, connection=connection)

    def withdraw(self, asked: Asked) -> bool:
        return self.broker.broker.withdraw(asked._connection, asked._opaque)

    def pause_for_disk(self) -> None:
        """The next reads find that messages must be fetched."""
        store = self.broker.broker.store
        read = store.get_message

        def cold(*place: Any, may_block: bool = True) -> GetMessageResult:
            result = read(*place, may_block=may_block)
            return result if may_block or self.paused else replace(result, views=[], message_count=0, cold=lambda: None)

        def start(_channel: object, _fetch: object, resume: Callable[[], None]) -> bool:
            self.paused.append(resume)
            return True

        self._monkeypatch.setattr(store, "get_message", cold)
        self._monkeypatch.setattr(self.broker.broker.services.cold_reads, "start", start)

    def pause_for_parser(self) -> None:
        """The expression is no longer kept, and must be compiled again."""
        expressions = self.broker.broker.services.expressions
        self._monkeypatch.setattr(expressions, "must_wait", lambda texts: any(texts) and not self.paused)
        self._monkeypatch.setattr(expressions, "start", lambda _channel, _text, resume: self.paused.append(resume))


STATES = ["held", "woken", "disk", "parser"]


@pytest.fixture(params=[False, True], ids=["async", "sync"])
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch, request.param)


def bring(scene: Scene, state: str, end: Callable[[], None]) -> None:
    """Sends a message, and calls ``end`` when the first pop is in ``state``."""
    if state == "held":
        end()
    elif state == "woken":
        arrived = scene.hold.arrived

        def arrived_and_ended(topic: bytes, queue_id: int, tags_code: int | None) -> None:
            arrived(topic, queue_id, tags_code)
            if topic == b"T":
                end()

        scene._monkeypatch.setattr(scene.hold, "arrived", arrived_and_ended)
    elif state == "disk":
        scene.pause_for_disk()
    else:
        scene.pause_for_parser()
    scene.broker.send()
    scene.broker.passes(STEP_MS)
    if state in ("disk", "parser"):
        assert len(scene.paused) == 1
        end()
        scene.broker.passes(500)
        assert (scene.first.answer, scene.second.answer) == (None, None)
        scene.paused[0]()
        scene.broker.passes(STEP_MS)


@pytest.mark.parametrize("state", STATES)
def test_the_next_pop_gets_the_message_in_time(scene: Scene, state: str) -> None:
    found: list[bool] = []
    bring(scene, state, lambda: found.append(scene.withdraw(scene.first)))
    assert found == [True]
    assert bodies(scene.second) == [b"body"]
    assert scene.second.after_ms == (510 + STEP_MS if state in ("disk", "parser") else 0)
    assert not scene.withdraw(scene.first)
    assert not scene.withdraw(scene.second)
    scene.broker.passes(20_000)
    assert scene.first.answer is None
    assert scene.hold._pops == {}


@pytest.mark.parametrize("state", ["disk", "parser"])
def test_so_does_it_if_the_connection_closes_meanwhile(scene: Scene, state: str) -> None:
    """Before the fix, the message waited for the deadline of the next pop."""

    def close() -> None:
        scene.broker.connection.closed = True
        scene.broker.broker.channel_closed(scene.broker.connection)

    bring(scene, state, close)
    assert (bodies(scene.second), scene.second.after_ms) == ([b"body"], 510 + STEP_MS)
    assert scene.hold._pops == {}


@pytest.mark.parametrize("state", STATES)
def test_one_that_is_not_withdrawn_gets_its_message(scene: Scene, state: str) -> None:
    bring(scene, state, lambda: None)
    assert (bodies(scene.first), scene.second.answer) == ([b"body"], None)
    assert not scene.withdraw(scene.first)
    assert scene.withdraw(scene.second)
    scene.broker.send(body=b"later")
    scene.broker.passes(20_000)
    assert scene.second.answer is None
    assert bodies(scene.pop(connection=scene.other)) == [b"later"]


def test_one_that_is_answered_or_unknown_is_not_found(scene: Scene) -> None:
    assert not scene.broker.broker.withdraw(scene.other, scene.first._opaque)
    scene.broker.passes(5000)
    assert scene.first.code == POLLING_TIMEOUT
    assert not scene.withdraw(scene.first)
    answered = scene.pop(connection=scene.other, topic="D")
    assert answered.code == POLLING_TIMEOUT
    assert not scene.withdraw(answered)


def test_without_any_pop_there_is_nothing_to_withdraw() -> None:
    broker = SteppedBroker()
    broker.broker.services.pops.started = None
    assert not broker.broker.withdraw(broker.connection, 1)


def test_a_withdrawn_pop_counts_no_longer(scene: Scene) -> None:
    assert scene.hold.count("T", "cg", 0) == 2
    assert scene.withdraw(scene.first)
    assert (scene.hold.count("T", "cg", 0), len(scene.hold)) == (1, 1)
    again = scene.pop(3000)
    scene.broker.passes(3000)
    assert again.code == POLLING_TIMEOUT
    assert FOUND not in (scene.first.code, scene.second.code)
