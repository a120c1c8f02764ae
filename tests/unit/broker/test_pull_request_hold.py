"""Held pulls: who wakes whom, and that nobody is woken twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rucola.broker.longpolling.pull_request_hold import Admission, PullRequest, PullRequestHold


class Timer:
    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self.seconds, self.fire, self.cancelled = seconds, callback, False

    def cancel(self) -> None:
        self.cancelled = True


class Scene:
    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.resumed: list[PullRequest] = []
        self.ends: dict[tuple[bytes, int], int] = {}
        self.hold = PullRequestHold(
            lambda topic, queue_id: self.ends.get((topic, queue_id), 0), self.resumed.append, self._call_later
        )

    def _call_later(self, seconds: float, callback: Callable[..., None], *args: Any) -> Timer:
        self.timers.append(Timer(seconds, lambda: callback(*args)))
        return self.timers[-1]

    def held(
        self, queue_offset: int = 5, tags: set[int] | None = None, queue_id: int = 0, **options: Any
    ) -> PullRequest:
        request = PullRequest(
            options.get("channel", object()),
            1,
            0,
            Admission((), ("g", "T", queue_id), (b"T", queue_id), tags),
            queue_offset,
            32,
            timeout_ms=15_000,
        )
        self.hold.hold(request)
        return request


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_message_wakes_those_who_wait_for_it(scene):
    waiting = scene.held(5)
    ahead = scene.held(9)
    elsewhere = scene.held(5, queue_id=1)
    scene.hold.arrived(b"T", 0, 6, 77)
    assert scene.resumed == [waiting]
    assert scene.timers[0].cancelled
    scene.hold.arrived(b"T", 0, 10, None)
    scene.hold.arrived(b"T", 1, 6, None)
    assert scene.resumed == [waiting, ahead, elsewhere]
    assert len(scene.hold) == 0


def test_a_tag_that_is_not_wanted_wakes_nobody_but_mixed_tags_do(scene):
    request = scene.held(5, {1, 2})
    scene.hold.arrived(b"T", 0, 6, 3)
    assert scene.resumed == []
    scene.hold.arrived(b"T", 0, 7, None)
    assert scene.resumed == [request]


def test_the_recheck_moves_on_who_waits_behind_filtered_messages(scene):
    request = scene.held(5, {1})
    scene.ends[b"T", 0] = 5
    scene.hold.recheck()
    assert scene.resumed == []
    scene.ends[b"T", 0] = 6
    scene.hold.recheck()
    assert scene.resumed == [request]


def test_a_deadline_resumes_once(scene):
    request = scene.held()
    assert scene.timers[0].seconds == 15
    scene.timers[0].fire()
    scene.hold.arrived(b"T", 0, 6, None)
    scene.timers[0].fire()
    assert scene.resumed == [request]


def test_a_closed_connection_is_forgotten(scene):
    channel = object()
    scene.held(channel=channel)
    other = scene.held()
    scene.hold.channel_closed(channel)
    assert scene.timers[0].cancelled
    scene.hold.arrived(b"T", 0, 6, None)
    assert scene.resumed == [other]


def test_the_stop_releases_everybody(scene):
    requests = [scene.held(), scene.held(queue_id=3)]
    scene.hold.release_all()
    assert scene.resumed == requests
    assert all(timer.cancelled for timer in scene.timers)
