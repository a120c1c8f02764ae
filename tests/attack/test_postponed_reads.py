"""Requests that do not fit into one turn (iteration) of the event loop: the order in which their connections are
served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand
from rucola.protocol.shared_reader import SMALL_READ_BYTES
from rucola.remoting.channel import Channel
from rucola.remoting.fairness import turn
from rucola.remoting.fairness.postponed_reads import SLICE_S, PostponedReads
from rucola.remoting.fairness.turn import COSTLY_S, LONG_S, SERVED_READS, TOO_LONG_S, TURN_S, Turn
from rucola.remoting.server import RemotingServer
from rucola.testing.event_loop import advance, run_stepped, settle


class Turns:
    """Postponed reads of several connections, on an event loop whose clock the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.turn = Turn()
        self.postponed = PostponedReads(self.turn, cpu_s=self.time)
        self.served: list[str] = []
        self.loop: Any = self

    def time(self) -> float:
        return self.now_s

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self.calls.append((call, arguments))

    def wait(self, name: str, requests: int, request_s: float, begun: bool = True, costly: bool = False) -> None:
        """Adds a connection with ``requests`` postponed requests, each of which takes ``request_s`` seconds."""

        def serve() -> None:
            nonlocal requests
            while requests:
                requests -= 1
                self.served.append(name)
                self.now_s += request_s
                if self.turn.note_request(self.loop):
                    break
            if requests:
                self.postponed.add(serve, self.loop, begun=True, costly=costly)

        self.postponed.add(serve, self.loop, begun=begun, costly=costly)

    def run_turn(self, read_s: float = 0.0) -> list[str]:
        """Runs one turn of the event loop; returns the names of the connections that it serves.

        Args:
            read_s: duration of the requests of new reads, which come after the calls, in seconds.
        """
        self.served = []
        self.now_s += 0.01
        calls, self.calls = self.calls, []
        for call, arguments in calls:
            call(*arguments)
        self.read(read_s)
        return self.served

    def read(self, duration_s: float) -> None:
        """Serves the requests of a new read, which take ``duration_s`` seconds and are not postponed."""
        if duration_s:
            self.turn.note_request(self.loop)
            self.now_s += duration_s


def test_connections_with_costly_requests_are_served_in_turn() -> None:
    turns = Turns()
    for name in "abc":
        turns.wait(name, 3, 2 * TURN_S, costly=True)
    assert [turns.run_turn() for _ in range(10)] == [[name] for name in "abcabcabc"] + [[]]
    assert not turns.calls


def test_a_wide_read_gets_a_slice_and_goes_to_the_end() -> None:
    turns = Turns()
    for number in range(20):
        turns.wait(str(number), 1000, SLICE_S * 0.51)
    served = turns.run_turn()
    assert [int(name) for name in dict.fromkeys(served)] == list(range(10)) and len(served) == 20
    assert [int(name) for name in dict.fromkeys(turns.run_turn())] == list(range(10, 20))


def test_one_wide_read_alone_has_the_whole_turn() -> None:
    turns = Turns()
    turns.wait("a", 100, TURN_S * 0.1)
    assert 10 <= len(turns.run_turn()) <= 12


def test_new_reads_that_fill_every_turn_do_not_hold_up_postponed_ones() -> None:
    """Before the fix, a producer waited for up to 8 s: at the start of each turn, its postponed request seemed to
    belong to the turn before, whose time was up.
    """
    turns = Turns()
    turns.run_turn()
    turns.wait("a", 3, 1.1 * TURN_S)
    turns.read(1.1 * TURN_S)
    assert [turns.run_turn(1.1 * TURN_S) for _ in range(4)] == [["a"], ["a"], ["a"], []]


GROUPS = {"short": (False, False), "begun": (True, False), "costly": (False, True)}
"""Groups of waiting reads, by two flags: whether some requests of the read were already served, and whether the last
request of the connection was costly.
"""


@pytest.mark.parametrize("others", GROUPS)
@pytest.mark.parametrize("one", GROUPS)
def test_no_group_takes_all_the_time_of_another(one: str, others: str) -> None:
    """Before the fix, a postponed request waited for thousands of connections with many postponed requests each."""
    if one == others:
        return
    turns = Turns()
    for number in range(1000):
        turns.wait(f"other {number}", 1 if others == "short" else 100, TURN_S, *GROUPS[others])
    for _ in range(3):
        turns.run_turn()
    turns.wait("a", 1, TURN_S, *GROUPS[one])
    assert "a" in turns.run_turn() + turns.run_turn() + turns.run_turn()


def test_cheap_requests_get_half_of_the_time_that_all_need() -> None:
    """Before the fix, two steady producers waited for up to 14 s while a thousand connections requested long lists."""
    turns = Turns()
    for _number in range(1000):
        for group in ("begun", "costly"):
            turns.wait(group, 1000, 2 * TURN_S, *GROUPS[group])
    seen: list[str] = []
    for _number in range(400):
        for _ in range(40):
            turns.wait("short", 1, TURN_S / 20, *GROUPS["short"])
        seen += turns.run_turn()
    used_s = {group: seen.count(group) * 2 * TURN_S for group in ("begun", "costly")}
    used_s["short"] = seen.count("short") * TURN_S / 20
    total_s = sum(used_s.values())
    assert used_s["short"] / total_s == pytest.approx(0.5, abs=0.02)
    assert used_s["begun"] / total_s == pytest.approx(0.25, abs=0.02)


def test_a_connection_alone_in_a_group_has_its_turn_to_itself() -> None:
    """Before the fix, a producer with many postponed requests got a millisecond only after each of 300 other
    connections had got one, and never caught up.
    """
    turns = Turns()
    for number in range(300):
        turns.wait(f"other {number}", 1000, SLICE_S, *GROUPS["begun"])
    turns.run_turn()
    turns.wait("a", 8, SLICE_S, *GROUPS["short"])
    seen = turns.run_turn() + turns.run_turn()
    assert seen.count("a") == 8


def test_time_without_a_need_cannot_be_claimed_later() -> None:
    turns = Turns()
    for _number in range(1000):
        turns.wait("costly", 1000, 2 * TURN_S, *GROUPS["costly"])
    for _ in range(100):
        turns.run_turn()
    for _number in range(1000):
        turns.wait("short", 1, 2 * TURN_S, *GROUPS["short"])
    seen = [name for _ in range(60) for name in turns.run_turn()]
    assert 15 <= seen.count("costly") <= 25, "costly requests get a third of the time"


def test_a_request_is_costly_by_its_processor_time_and_not_by_the_clock() -> None:
    """When costs were measured by the clock, a steady producer counted as costly on a busy machine, and waited for
    seconds.
    """
    turns = Turns()
    used_s = 0.0
    judged = Turn(cpu_s=lambda: used_s)
    turns.now_s += 1
    judged.note_read(turns.loop)
    turns.now_s, used_s = turns.now_s + 0.03, used_s + COSTLY_S * 0.9
    assert not judged.was_costly(0.03, turns.loop), "others had the processor"
    turns.now_s, used_s = turns.now_s + 0.03, used_s + COSTLY_S * 1.1
    assert judged.was_costly(0.03, turns.loop)
    turns.now_s, used_s = turns.now_s + 0.03, used_s + 0.02 + COSTLY_S * 0.9
    assert not judged.was_costly(0.01, turns.loop), "earlier requests used the other processor time"
    assert not judged.was_costly(COSTLY_S * 0.9, turns.loop)
    turns.now_s += 1
    judged.note_read(turns.loop)
    turns.now_s, used_s = turns.now_s + 0.03, used_s + COSTLY_S * 1.1
    assert judged.was_costly(0.03, turns.loop), "the thread was idle until the read"


def test_only_very_many_reads_make_a_turn_that_new_reads_wait_for() -> None:
    """Before the fix, one turn of the event loop served one request for each of 3,000 connections and took 120 ms."""
    turns = Turns()
    turns.now_s += LONG_S
    assert not any(turns.turn.note_read(turns.loop) for _ in range(1 + SERVED_READS))
    assert not turns.turn.note_read(turns.loop), "the turn is young"
    turns.now_s += LONG_S * 1.1
    assert not turns.turn.is_crowded
    assert turns.turn.note_read(turns.loop) and turns.turn.is_crowded
    turns.run_turn()
    assert not turns.turn.is_crowded
    assert not turns.turn.note_read(turns.loop), "a new turn"


def test_a_turn_that_took_too_long_serves_no_further_read() -> None:
    """Before the fix, 40 reads with a costly request each were served in one turn of 79 ms."""
    turns = Turns()
    assert not turns.turn.note_read(turns.loop)
    turns.now_s += TOO_LONG_S * 0.9
    assert not turns.turn.note_read(turns.loop)
    turns.now_s += TOO_LONG_S * 0.2
    assert turns.turn.note_read(turns.loop)
    assert not turns.turn.is_crowded, "its reads may be large"
    turns.run_turn()
    assert not turns.turn.note_read(turns.loop), "a new turn"
    turns.now_s += TOO_LONG_S * 1.1
    assert turns.turn.note_read(turns.loop), "its first read was noted, too"


def test_requests_of_a_read_in_a_long_turn_wait_and_answers_in_it_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "LONG_S", -1.0)
    monkeypatch.setattr(turn, "SERVED_READS", 0)
    monkeypatch.setattr(turn, "_UNSEEN_READS_S", -1.0)
    seen: list[tuple[str, int]] = []

    class Notes:
        """Records for each request whether it was read at once or was postponed."""

        def __init__(self) -> None:
            self.frames_received = partial(self.note, "at once")
            self.serve_rows = partial(self.note, "later")

        def note(self, how: str, channel: Channel, batch: Any, *_: int) -> None:
            for row in range(batch.count):
                if not batch.table[row * ROW_WIDTH + int(FrameColumn.FLAG)] & FLAG_RESPONSE:
                    seen.append((how, batch.table[row * ROW_WIDTH + int(FrameColumn.OPAQUE)]))

        def channel_closed(self, _channel: Channel) -> None:
            pass

    async def play() -> None:
        server = RemotingServer(Notes(), "127.0.0.1", 0)
        await server.start()
        writers = [(await asyncio.open_connection("127.0.0.1", server.port))[1] for _ in range(2)]
        await settle()
        channels = list(server.channels)
        asked = [asyncio.ensure_future(each.invoke(RemotingCommand(9999, 0), 1000)) for each in channels]
        await settle()
        for writer in writers:
            # Both connections send the same frames, because the test does not know which connection belongs to which
            # channel.
            answers = [RemotingCommand(0, opaque, FLAG_RESPONSE).encode() for opaque in (1, 2)]
            writer.write(b"".join(answers) + RemotingCommand(RequestCode.HEART_BEAT, 7).encode())
        await settle()
        assert [answer.code for answer in await asyncio.gather(*asked)] == [0, 0]
        assert sorted(seen) == [("at once", 7), ("later", 7)]
        server.turn.is_crowded = True
        assert [len(each.inbound.get_buffer(-1)) for each in channels] == [SMALL_READ_BYTES] * 2
        for writer in writers:
            writer.close()
        await server.close()

    run_stepped(play())


def test_connections_of_a_server_take_turns() -> None:
    """Before the fix, each turn served only the first connection if all requests were costly."""
    served: list[int] = []

    class Costly:
        """A request processor that needs the time of two event-loop turns for each request."""

        def frames_received(self, channel: Channel, batch: Any) -> None:
            self.serve_rows(channel, batch, 0)

        def serve_rows(self, channel: Channel, batch: Any, first: int) -> None:
            for row in range(first, batch.count):
                if (row > first or channel.costly) and channel.note_request():
                    channel.postpone(batch, row)
                    return
                served.append(batch.table[row * ROW_WIDTH + int(FrameColumn.OPAQUE)])
                advance(2 * TURN_S)
                channel.costly = True

        def channel_closed(self, _channel: Channel) -> None:
            pass

    async def play() -> None:
        server = RemotingServer(Costly(), "127.0.0.1", 0)
        await server.start()
        writers = [(await asyncio.open_connection("127.0.0.1", server.port))[1] for _ in range(3)]
        await settle()
        for number, writer in enumerate(writers):
            writer.write(RemotingCommand(RequestCode.HEART_BEAT, number).encode() * 20)
        await settle(200)
        assert sorted(served) == sorted([0, 1, 2] * 20)
        for end in range(60):
            counts = [served[:end].count(number) for number in range(3)]
            assert max(counts) - min(counts) <= 2
        for writer in writers:
            writer.close()
        await server.close()

    run_stepped(play())


@pytest.mark.parametrize(("count", "begun"), [(60, False), (200, True)])
def test_few_requests_that_are_left_do_not_wait_among_the_rests_of_wide_reads(count: int, begun: bool) -> None:
    seen: list[bool] = []

    class One:
        """A handler that serves the first request of each read, and postpones the other requests once."""

        def frames_received(self, channel: Channel, batch: Any) -> None:
            channel.postpone(batch, 1)

        def serve_rows(self, *_: Any) -> None:
            pass

        def channel_closed(self, _channel: Channel) -> None:
            pass

    async def play() -> None:
        server = RemotingServer(One(), "127.0.0.1", 0)
        add = server.postponed.add

        def noted(serve: Callable[[], None], loop: Any, **group: bool) -> None:
            seen.append(group["begun"])
            add(serve, loop, **group)

        server.postponed.add = noted  # type: ignore[method-assign, assignment]
        await server.start()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(RemotingCommand(RequestCode.HEART_BEAT, 1).encode() * count)
        await settle(60)
        assert seen == [begun]
        writer.close()
        await server.close()

    run_stepped(play())
