"""Responses that wait for the disk: each is sent exactly once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rucola.broker.flush_waiters import FlushWaiters
from rucola.broker.processor.send_response import flush_not_confirmed
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand, decode_frame
from rucola.testing.clock import ManualClock


class Channel:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.owed: list[int] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def owe(self, size: int) -> None:
        self.owed.append(size)

    def settle(self, size: int) -> None:
        self.owed.remove(size)


class Timers:
    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.calls.append((seconds, callback))

    def fire(self) -> None:
        calls, self.calls = self.calls, []
        for _, callback in calls:
            callback()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def waiters(clock: ManualClock, timers: Timers) -> FlushWaiters:
    return FlushWaiters(clock.monotonic, 5000, lambda answers, remark: b"!" + answers, timers.call_later, lambda: 0)


def test_everything_a_sync_covers_leaves_in_one_write_per_channel(waiters):
    first, second = Channel(), Channel()
    waiters.add(10, first, b"a")
    waiters.add(20, second, b"b")
    waiters.add(30, first, b"c")
    waiters.add(40, first, b"d")
    waiters.release(9)
    assert first.sent == second.sent == []
    waiters.release(30)
    assert (first.sent, second.sent) == ([b"ac"], [b"b"])
    assert (first.owed, second.owed) == ([1], [])
    waiters.release(40)
    assert first.sent == [b"ac", b"d"]
    assert len(waiters) == 0


def test_a_timeout_refuses_the_oldest_and_a_later_sync_answers_nobody_twice(waiters, clock, timers):
    channel = Channel()
    waiters.add(10, channel, b"a")
    clock.advance(3000)
    waiters.add(20, channel, b"b")
    assert [seconds for seconds, _ in timers.calls] == [5.0]
    clock.advance(2000)
    timers.fire()
    assert channel.sent == [b"!a"]
    assert timers.calls[0][0] == pytest.approx(3.0)
    waiters.release(20)
    assert channel.sent == [b"!a", b"b"]
    clock.advance(3000)
    timers.fire()
    assert channel.sent == [b"!a", b"b"]
    assert timers.calls == []


def test_a_failed_sync_refuses_all_and_later_ones_are_kept_apart(waiters):
    channel = Channel()
    waiters.add(10, channel, b"a")
    waiters.add(20, channel, b"b")
    waiters.fail_all("no disk")
    assert channel.sent == [b"!a!b"]
    waiters.release(100)
    assert channel.sent == [b"!a!b"]


@pytest.mark.parametrize("serialize", [0, 1])
def test_a_refused_answer_keeps_all_but_code_and_remark(serialize):
    fields = {"msgId": "7F", "queueId": "1", "queueOffset": "2", "MSG_REGION": "r", "TRACE_ON": "true"}
    frames = [RemotingCommand(0, i, FLAG_RESPONSE, "", fields, serialize=serialize).encode() for i in (7, 8)]
    changed = flush_not_confirmed(b"".join(frames), "late")
    half = len(changed) // 2
    for opaque, frame in ((7, changed[:half]), (8, changed[half:])):
        command = decode_frame(frame)
        assert (command.code, command.opaque, command.remark) == (10, opaque, "late")
        assert command.ext_fields == fields


def test_a_send_that_waits_for_less_leaves_with_those_before(waiters):
    """A response, such as that to a recall, may wait for a smaller flushed offset than an earlier response. Both are
    sent together.
    """
    channel = Channel()
    waiters.add(20, channel, b"a")
    waiters.add(10, channel, b"b")
    waiters.release(10)
    assert channel.sent == []
    waiters.release(20)
    assert channel.sent == [b"ab"]


@pytest.mark.parametrize("outcome", ["released", "failed", "late"])
def test_a_connection_in_trouble_costs_nobody_else_the_answer(waiters, clock, timers, outcome):
    class Broken(Channel):
        remote_address = "10.0.0.1:2"

        def send(self, data: bytes) -> None:
            raise OSError("gone")

    broken, sound = Broken(), Channel()
    waiters.add(10, broken, b"a")
    waiters.add(20, sound, b"b")
    if outcome == "released":
        waiters.release(20)
    elif outcome == "failed":
        waiters.fail_all("no disk")
    else:
        clock.advance(5000)
        timers.fire()
    assert sound.sent == [b"b" if outcome == "released" else b"!b"]
    assert (broken.owed, len(waiters)) == ([], 0)
    waiters.add(30, sound, b"c")
    clock.advance(5000)
    timers.fire()
    assert sound.sent[1:] == [b"!c"]
