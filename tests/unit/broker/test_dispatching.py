"""Between the store and those who wait for its messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rucola.broker.dispatching import Dispatching
from rucola.common.key_builder import SCHEDULE_TOPIC
from rucola.store.results import StoreState


class Scene:
    """A store that brings arrivals, and those who hear of them; the hold of queue 0 of ``Bad`` throws."""

    def __init__(self, arrivals: list[tuple[bytes, int, int, int | None]]) -> None:
        self.heard: list[object] = []
        self.error: Exception | None = None
        self.arrivals = arrivals
        self.dispatching = Dispatching(sync_flush=False)
        services = SimpleNamespace(
            store=SimpleNamespace(state=StoreState.RUNNING, dispatch=self._dispatch, take_arrivals=self._take),
            hold=SimpleNamespace(arrived=self._held),
            pops=SimpleNamespace(arrived=lambda *arrival: None),
        )
        delivery = SimpleNamespace(arrived=lambda: self.heard.append("delayed"))
        self.dispatching.wire(cast("Any", None), cast("Any", services), cast("Any", delivery))

    def _dispatch(self) -> int:
        assert not self.heard, "somebody was called inside of the store"
        if self.error is not None:
            raise self.error
        return 1

    def _take(self) -> list[tuple[bytes, int, int, int | None]]:
        taken, self.arrivals = self.arrivals, []
        return taken

    def _held(self, topic: bytes, queue_id: int, max_offset: int, tags_code: int | None) -> None:
        if topic == b"Bad":
            raise ValueError("a waiter")
        self.heard.append((topic, queue_id, max_offset, tags_code))


def test_a_waiter_that_throws_keeps_nobody_else_from_its_messages(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene([(b"Bad", 0, 1, None), (b"T", 1, 5, 7), (SCHEDULE_TOPIC.encode(), 2, 1, 3)])
    scene.dispatching._dispatch()
    assert scene.heard == [(b"T", 1, 5, 7), (SCHEDULE_TOPIC.encode(), 2, 1, 3), "delayed"]
    assert "waiters for Bad/0 not woken" in caplog.text
    assert not scene.dispatching.failed


def test_what_arrived_before_dispatch_failed_is_told() -> None:
    scene = Scene([(b"T", 0, 1, None)])
    scene.error = ValueError("the store")
    scene.dispatching._dispatch()
    assert scene.heard == [(b"T", 0, 1, None)]
    assert scene.dispatching.failed
