"""Held pulls: which messages wake which pulls and when. No pull is woken twice, and the cost of a wake-up does not
depend on the number of held pulls.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from rucola.broker.pull.admission import Admission, RepeatedFields
from rucola.broker.pull.request import AT_ONCE_MAX, PullRequest, PullRequestHold
from rucola.broker.waiting_requests import STEP_S, WaitState
from rucola.testing.clock import ManualClock
from rucola.testing.manual_loop import ManualLoop


class Connection:
    remote_address = "10.0.0.1:2"


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cost_ms = 0
        self.loop = ManualLoop(self.clock)
        self.resumed: list[PullRequest] = []
        self.broken: set[PullRequest] = set()
        self.ends: dict[tuple[bytes, int], int] = {}
        self.hold = PullRequestHold(
            lambda topic, queue_id: self.ends.get((topic, queue_id), 0),
            self._resume,
            self.clock.monotonic,
            self.loop.call_later,
        )

    def _resume(self, request: PullRequest) -> None:
        if request in self.broken:
            raise ValueError("a defect")
        self.resumed.append(request)
        self.clock.advance(self.cost_ms)

    def held(
        self,
        queue_offset: int = 5,
        tags: set[int] | None = None,
        queue_id: int = 0,
        timeout_ms: int = 15_000,
        channel: Any = None,
    ) -> PullRequest:
        wanted = None if tags is None else frozenset(tags)
        fields = RepeatedFields(b"T", b"g", queue_id, 11, None, b"*", b"TAG")
        request = PullRequest(channel or Connection(), 1, 0, fields, queue_offset, 32, 2, 0, timeout_ms)
        request.admission = Admission(("g", "T", queue_id), (b"T", queue_id), tag_codes=wanted)
        assert self.hold.hold(request, self.clock.monotonic() + timeout_ms / 1000, queue_offset)
        return request

    def turns(self) -> list[int]:
        """Runs turns (iterations) of the loop until no call is due; returns how many pulls each turn resumed."""
        counts = []
        while self.loop.is_due():
            before = len(self.resumed)
            self.loop.run_one()
            counts.append(len(self.resumed) - before)
        return counts

    def passes(self, milliseconds: int) -> list[PullRequest]:
        """Lets time pass; returns the pulls that are resumed meanwhile."""
        before = len(self.resumed)
        self.clock.advance(milliseconds)
        self.loop.run()
        return self.resumed[before:]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_message_wakes_those_who_wait_for_it(scene):
    waiting = scene.held(5)
    ahead = scene.held(9)
    elsewhere = scene.held(5, queue_id=1)
    scene.hold.arrived(b"T", 0, 6, 77)
    assert scene.resumed == [waiting]
    scene.hold.arrived(b"T", 0, 10, None)
    scene.hold.arrived(b"T", 1, 6, None)
    assert scene.resumed == [waiting, ahead, elsewhere]
    assert len(scene.hold) == 0
    assert scene.passes(60_000) == []


def test_a_tag_that_is_not_wanted_wakes_nobody_but_mixed_tags_do(scene):
    request = scene.held(5, {1, 2})
    scene.hold.arrived(b"T", 0, 6, 3)
    assert scene.resumed == []
    scene.hold.arrived(b"T", 0, 7, None)
    assert scene.resumed == [request]


def test_a_tag_wakes_all_that_let_it_through_whatever_else_they_do(scene):
    both, one, every = scene.held(5, {1, 2}), scene.held(5, {1}), scene.held(5)
    scene.held(5, {2})
    scene.hold.arrived(b"T", 0, 6, 1)
    assert scene.resumed == [both, one, every]
    assert len(scene.hold) == 1


def test_the_recheck_moves_on_who_waits_behind_filtered_messages(scene):
    request = scene.held(5, {1})
    scene.ends[b"T", 0] = 5
    scene.hold.recheck()
    assert scene.resumed == []
    scene.ends[b"T", 0] = 6
    scene.hold.recheck()
    assert (scene.resumed, request.state) == ([request], WaitState.FINAL)


def test_a_deadline_resumes_once_and_in_its_time(scene):
    request = scene.held(timeout_ms=15_000)
    assert scene.passes(14_999) == []
    assert scene.passes(1) == [request]
    assert request.state is WaitState.FINAL
    scene.hold.arrived(b"T", 0, 6, None)
    assert scene.passes(60_000) == []
    assert scene.resumed == [request]


def test_deadlines_come_in_their_order_whatever_the_order_of_the_requests(scene):
    requests = [scene.held(timeout_ms=timeout_ms) for timeout_ms in (900, 300, 600, 301, 15)]
    step_ms = round(STEP_S * 1000)
    assert scene.passes(15 + step_ms) == [requests[4]]
    assert scene.passes(300 - 15 - step_ms) == [requests[1]]
    assert scene.passes(1 + step_ms) == [requests[3]]
    scene.hold.arrived(b"T", 0, 6, None)
    assert scene.passes(900) == []
    late = scene.held(timeout_ms=40)
    assert scene.passes(39) == []
    assert scene.passes(1 + step_ms) == [late]


def test_the_loop_has_one_timer_for_all_deadlines_and_none_when_nobody_waits(scene):
    for timeout_ms in range(20_000, 10_000, -50):
        scene.held(timeout_ms=timeout_ms)
    assert len([call for call in scene.loop._calls if not call.cancelled]) == 1
    scene.hold.arrived(b"T", 0, 6, None)
    scene.passes(20_000)
    assert scene.loop._calls == []


def test_a_closed_connection_is_forgotten(scene):
    channel = Connection()
    scene.held(channel=channel)
    scene.held(channel=channel, queue_id=1)
    other = scene.held()
    scene.hold.channel_closed(channel)
    assert len(scene.hold) == 1
    scene.hold.arrived(b"T", 0, 6, None)
    scene.hold.arrived(b"T", 1, 6, None)
    assert scene.resumed == [other]
    assert scene.passes(60_000) == []
    scene.hold.channel_closed(channel)


def test_the_stop_releases_everybody(scene):
    requests = [scene.held(), scene.held(queue_id=3)]
    scene.hold.release_all()
    assert scene.resumed == requests
    assert scene.passes(60_000) == []


@pytest.mark.parametrize("reason", ["message", "deadline", "recheck", "stop", "reset"])
def test_one_that_cannot_be_resumed_keeps_nobody_else_waiting(scene, caplog, reason):
    broken, sound, later = scene.held(), scene.held(), scene.held(queue_id=1)
    scene.broken.add(broken)
    scene.ends[b"T", 0] = scene.ends[b"T", 1] = 6
    with caplog.at_level(logging.ERROR):
        if reason == "message":
            scene.hold.arrived(b"T", 0, 6, None)
            scene.hold.arrived(b"T", 1, 6, None)
        elif reason == "deadline":
            scene.passes(15_000)
        elif reason == "recheck":
            scene.hold.recheck()
        elif reason == "stop":
            scene.hold.release_all()
        else:
            scene.hold.end(b"T", 0, "g")
            scene.hold.end(b"T", 1, "g")
    assert scene.resumed == [sound, later]
    assert len(scene.hold) == 0
    assert scene.hold._requests._connections == {}
    assert [record.rucola_event for record in caplog.records] == ["pull not resumed"]
    assert caplog.records[0].rucola_fields == {"peer": "10.0.0.1:2"}


def test_98_304_pulls_with_reversed_deadlines_cost_no_more_than_few(scene):
    """Before the fix, each pull caused a search through a list of all pulls. The quadratic cost was over 35 s, during
    which no request was served.
    """
    began = time.process_time()
    channels = [Connection() for _ in range(24)]
    for number in range(98_304):
        scene.held(timeout_ms=98_304 * 2 - number, channel=channels[number // 4096])
    for channel in channels[:12]:
        scene.hold.channel_closed(channel)
    assert len(scene.hold) == 49_152
    assert len(scene.passes(98_304 + 24_576)) > 24_000
    scene.hold.arrived(b"T", 0, 6, None)
    scene.passes(0)
    assert (len(scene.hold), len(scene.resumed)) == (0, 49_152)
    assert time.process_time() - began < 8


def test_a_message_that_very_many_wait_for_wakes_them_in_several_turns(scene):
    """Before the fix, one message that woke 98,304 pulls blocked the event loop for seconds."""
    requests = [scene.held(5) for _ in range(AT_ONCE_MAX + 300)]
    gone = requests[AT_ONCE_MAX + 7]
    scene.cost_ms = 1
    scene.hold.arrived(b"T", 0, 6, None)
    assert scene.resumed == requests[:AT_ONCE_MAX], "the first pulls are resumed at once"
    scene.hold.arrived(b"T", 0, 7, None)
    assert len(scene.resumed) == AT_ONCE_MAX, "the other pulls were already woken"
    scene.hold.channel_closed(gone.channel)
    other = scene.held(5, queue_id=1)
    scene.hold.arrived(b"T", 1, 6, None)
    assert scene.resumed[-1] is other, "other requests do not wait for them"
    turns = scene.turns()
    assert max(turns) <= 11 and sum(turns) == 299
    assert [request for request in scene.resumed if request is not other] == [r for r in requests if r is not gone]
    assert len(scene.hold) == 0
    assert scene.passes(60_000) == []


def test_those_whose_time_is_over_at_one_moment_end_in_several_turns(scene):
    requests = [scene.held(5, timeout_ms=1000) for _ in range(300)]
    scene.cost_ms = 1
    scene.clock.advance(1000)
    turns = scene.turns()
    assert max(turns) <= 12 and scene.resumed == requests
    assert len(scene.hold) == 0


def test_a_stop_resumes_those_too_that_were_woken_and_wait_for_their_turn(scene):
    requests = [scene.held(5) for _ in range(AT_ONCE_MAX + 9)]
    scene.hold.arrived(b"T", 0, 6, None)
    scene.hold.release_all()
    assert scene.resumed == requests
    assert scene.passes(60_000) == []


def test_a_slave_that_ceases_to_act_ends_every_wait(scene):
    count = AT_ONCE_MAX + 10
    requests = [scene.held(queue_id=number % 3) for number in range(count)]
    scene.hold.end_all()
    assert len(scene.resumed) == AT_ONCE_MAX
    scene.turns()
    assert set(scene.resumed) == set(requests)
    assert all(request.state is WaitState.FINAL for request in requests)
    assert not scene.hold.stopped, "later pulls may wait"
