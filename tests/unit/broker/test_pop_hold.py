"""Waiting pops are woken one at a time, in order and in time; the cost does not depend on the number of pops."""

from __future__ import annotations

import logging
import random
import time
from functools import partial
from typing import Any

import pytest

from rucola.broker.pop.hold import ALL_QUEUES, Attempt, HeldPop, HeldRequest, PopHold, WaitingPop
from rucola.broker.waiting_requests import WaitState
from rucola.testing.clock import ManualClock
from rucola.testing.manual_loop import ManualLoop


class Connection:
    remote_address = "10.0.0.1:2"
    closed = False


class Scene:
    def __init__(self, waiting_max: int = 200_000) -> None:
        self.clock = ManualClock(0)
        self.loop = ManualLoop(self.clock)
        self.resumed: list[HeldRequest] = []
        self.given_up: list[str] = []
        self.opaque = 0
        self.hold = PopHold(self.clock.monotonic, self.loop.call_later, waiting_max, waiting_max)

    def held(
        self,
        group: str = "g",
        queue_id: int = ALL_QUEUES,
        after_ms: int = 10_000,
        tags: set[int] | None = None,
        question: bool = False,
        channel: Connection | None = None,
        text: str = "*",
        attempt: Attempt | None = None,
    ) -> HeldRequest:
        wanted = None if tags is None else frozenset(tags)
        deadline_s = self.clock.monotonic() + after_ms / 1000
        place = (channel or Connection(), "T", group, queue_id, deadline_s, lambda: self.resumed.append(request))
        request: HeldRequest
        if question:
            request = HeldRequest(*place)
        else:
            give_up = partial(self.given_up.append, text)
            self.opaque += 1
            known: Any = {"opaque": self.opaque, "give_up": give_up, "attempt": attempt}
            request = HeldPop(*place, wanted, expression=("TAG", text), **known)
        assert self.hold.hold(request)
        return request

    def away(self, queue_id: int = ALL_QUEUES, attempt: Attempt | None = None) -> WaitingPop:
        """A pop that waits for the disk or the parser."""
        self.opaque += 1
        place = (Connection(), "T", "g", queue_id, 1.0, lambda: self.resumed.append(pop))
        give_up = partial(self.given_up.append, "*")
        pop = WaitingPop(*place, opaque=self.opaque, give_up=give_up, attempt=attempt)  # type: ignore[arg-type]
        self.hold.leave(pop)
        return pop

    def is_empty(self) -> bool:
        hold = self.hold
        kept = hold._queues, hold._retry_queues, hold._pops, hold._attempts, hold._requests._connections
        return not any(kept)

    def passes(self, milliseconds: int = 0) -> list[HeldRequest]:
        """Lets time pass; returns the requests that are resumed meanwhile."""
        before = len(self.resumed)
        self.clock.advance(milliseconds)
        self.loop.run()
        return self.resumed[before:]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_message_wakes_one_pop_of_each_group_the_one_whose_time_is_over_first(scene):
    later, first, other = scene.held(after_ms=9000), scene.held(after_ms=3000), scene.held("h", queue_id=2)
    scene.held("i", queue_id=1)
    question = scene.held(question=True)
    scene.hold.arrived(b"T", 2, None)
    assert scene.passes() == [first, question, other]
    scene.hold.arrived(b"T", 2, None)
    assert scene.passes() == [later]
    scene.hold.arrived(b"T", 0, None)
    assert scene.passes() == []
    assert len(scene.hold) == 1


def test_a_tag_wakes_the_first_whom_it_concerns(scene):
    scene.held(after_ms=1000, tags={2})
    wanted, every = scene.held(after_ms=2000, tags={1, 2}), scene.held(after_ms=3000)
    scene.hold.arrived(b"T", 0, 1)
    assert scene.passes() == [wanted]
    scene.hold.arrived(b"T", 0, 1)
    assert scene.passes() == [every]
    scene.hold.arrived(b"T", 0, 1)
    assert scene.passes() == []


def test_another_expression_of_a_client_ends_its_pops_with_the_old_one(scene):
    client = Connection()
    scene.held(tags={1}, channel=client, text="old")
    scene.held(tags={1}, channel=client, text="same")
    scene.held("h", tags={1}, channel=client, text="old")
    scene.held(tags={1}, text="old")
    scene.held(question=True, channel=client)
    scene.hold.subscribed(client, "g", {"U": ("TAG", "same")})
    assert scene.given_up == []
    for _ in range(2):
        scene.hold.subscribed(client, "g", {"T": ("TAG", "same"), "U": ("TAG", "old")})
        assert scene.given_up == ["old"]
    assert len(scene.hold) == 4
    scene.hold.subscribed(client, "g", {"T": ("SQL92", "same")})
    assert scene.given_up == ["old", "same"]


@pytest.mark.parametrize("retry_topic", [b"%RETRY%g_T", b"%RETRY%g+T"])
def test_a_message_of_a_retry_topic_wakes_a_pop_of_each_queue(scene, retry_topic):
    pops = [scene.held(queue_id=queue_id, tags={7}) for queue_id in (ALL_QUEUES, 0, 5)]
    scene.held("h")
    scene.hold.arrived(retry_topic, 0, 1)
    assert scene.passes() == pops
    scene.hold.arrived(retry_topic, 0, 1)
    assert scene.passes() == []


def test_a_deadline_resumes_in_its_time(scene):
    pop = scene.held(after_ms=3000)
    assert scene.passes(2999) == []
    assert scene.passes(1) == [pop]
    assert scene.passes(60_000) == []


def test_one_whose_connection_closed_after_it_was_woken_hands_the_message_on(scene):
    gone, next_one = scene.held(after_ms=1000), scene.held(after_ms=2000)
    scene.hold.arrived(b"T", 0, None)
    gone.channel.closed = True
    assert scene.passes() == [next_one]


def test_a_closed_connection_is_forgotten(scene):
    channel = Connection()
    scene.held(channel=channel, after_ms=1000)
    scene.held(channel=channel, group="h", question=True)
    other = scene.held(after_ms=2000)
    scene.hold.channel_closed(channel)
    assert (len(scene.hold), scene.hold.count("T", "g", ALL_QUEUES)) == (1, 1)
    scene.hold.arrived(b"T", 0, None)
    assert scene.passes(60_000) == [other]
    assert scene.is_empty()


def test_the_last_of_several_pops_with_one_number_is_withdrawn(scene):
    channel = Connection()
    first, last = scene.held(channel=channel, after_ms=1000), scene.held(channel=channel, after_ms=2000)
    scene.hold.channel_closed(channel)
    first.state = last.state = WaitState.NEW
    last.opaque = first.opaque
    assert scene.hold.hold(first) and scene.hold.hold(last)
    assert scene.hold.withdraw(channel, first.opaque)
    assert not scene.hold.withdraw(channel, first.opaque)
    assert scene.passes(9000) == [first]
    assert scene.is_empty()


def test_only_the_pop_of_this_connection_and_number_is_withdrawn(scene):
    channel, other = Connection(), Connection()
    pop, theirs, question = scene.held(channel=channel), scene.held(channel=other), scene.held(question=True)
    assert not scene.hold.withdraw(channel, theirs.opaque)
    assert not scene.hold.withdraw(other, pop.opaque)
    assert not scene.hold.withdraw(question.channel, 0)
    assert scene.hold.withdraw(channel, pop.opaque)
    assert scene.passes(20_000) == [theirs, question]
    assert scene.is_empty()


def test_a_hundred_thousand_withdrawn_pops_leave_nothing(scene):
    channel = Connection()
    kept = scene.held()
    for _ in range(100_000):
        pop = scene.held(channel=channel)
        assert scene.hold.withdraw(channel, pop.opaque)
    heap = scene.hold._queues[("T", ALL_QUEUES)][("g", False)].heaps[None]
    assert len(heap) < 100
    assert scene.passes(20_000) == [kept]
    assert scene.is_empty()


@pytest.mark.parametrize("reason", ["message", "deadline", "stop"])
def test_one_that_cannot_be_resumed_keeps_nobody_else_waiting(scene, caplog, reason):
    broken, sound = scene.held(after_ms=1000), scene.held("h", after_ms=1000)

    def fail() -> None:
        raise ValueError("a defect")

    broken.resume = fail
    with caplog.at_level(logging.ERROR):
        if reason == "message":
            scene.hold.arrived(b"T", 0, None)
        elif reason == "stop":
            scene.hold.release_all()
        assert scene.passes(1000) == [sound] if reason != "stop" else scene.resumed == [sound]
    assert (len(scene.hold), scene.hold._requests._connections) == (0, {})
    assert [record.rucola_event for record in caplog.records] == ["pop not resumed"]
    assert caplog.records[0].rucola_fields == {"peer": "10.0.0.1:2"}


def test_order_and_counts_are_always_those_of_a_list(scene):
    """Compares order and counts with those of a list that is searched, which is correct but slow."""
    chooser, waiting = random.Random(7), list[HeldRequest]()
    for _ in range(3000):
        scene.passes(chooser.randrange(30))
        waiting = [pop for pop in waiting if pop.state is WaitState.HELD]
        action = chooser.randrange(4)
        if action < 2:
            tags = chooser.choice([None, {1}, {2}, {1, 2}])
            waiting.append(scene.held(after_ms=chooser.randrange(1, 2000), tags=tags))
        elif action == 2 and waiting:
            scene.hold.channel_closed(chooser.choice(waiting).channel)
        else:
            tag = chooser.choice([None, 1, 2, 3])
            passing = [pop for pop in waiting if tag is None or pop.tag_codes is None or tag in pop.tag_codes]
            scene.hold.arrived(b"T", 0, tag)
            assert scene.passes() == ([min(passing, key=lambda pop: pop.deadline_s)] if passing else [])
        waiting = [pop for pop in waiting if pop.state is WaitState.HELD]
        assert len(scene.hold) == scene.hold.count("T", "g", ALL_QUEUES) == len(waiting)
        heaps = scene.hold._queues[("T", ALL_QUEUES)][("g", False)].heaps.values() if waiting else []
        assert all(len(heap) <= 2 * len(waiting) + 17 + len(waiting) for heap in heaps)


def test_81_920_pops_cost_no_more_than_few(scene):
    """Before the fix, each wake-up searched a list of all waiting requests, which took seconds with very many."""
    began = time.process_time()
    channels = [Connection() for _ in range(20)]
    for number in range(81_920):
        scene.held(after_ms=90_000 - number, channel=channels[number // 4096])
    for _ in range(20_000):
        scene.hold.arrived(b"T", 0, 3)
    assert len(scene.passes()) == 20_000
    for channel in channels[:10]:
        scene.hold.channel_closed(channel)
    assert len(scene.hold) == 81_920 - 20_000 - 40_960
    assert len(scene.passes(90_000)) == 20_960
    assert time.process_time() - began < 8
