"""The reading half of a connection, without a socket: what pauses reading, what waits meanwhile, and what resumes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import permutations
from typing import Any

import pytest

from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.protocol.shared_reader import ROWS_MAX, ReadSpace, SharedFrameReader
from rucola.remoting.channel import Channel
from rucola.remoting.fairness.linger import Linger
from rucola.remoting.fairness.read_pauses import NO_ROOM, OWED, POSTPONED, ROOM_GIVEN, SLOW_PEER
from rucola.remoting.fairness.turn import ANSWER_BYTES, Turn
from rucola.remoting.fairness.unsent_bytes import COUNTED_BYTES
from rucola.remoting.server_options import ServerOptions

HIGH = 10_000
MUCH = 2 * HIGH
OPAQUE = int(FrameColumn.OPAQUE)


class Transport(asyncio.Transport):
    """Notes when reading is paused and resumed. ``unsent`` is the size of its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.written: list[bytes] = []
        self.unsent = 0
        self.closing = False

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append(f"limits {high} {low}")

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True


class Server:
    """The server and the handler of one connection, on an event loop whose time stands still.

    Attributes:
        rows: numbers of the requests that were served, in order.
        postpone_before: the handler postpones these requests, each once.
        on_row: called for each request that is served.
        due: what ``PostponedReads`` would call in a later turn.
        unsent: the sizes of unsent responses that were told.
        has_room: the answer to ``ask_for_room``.
        asked: the sizes for which room was asked.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.postpone_before: set[int] = set()
        self.on_row: Callable[[Channel, int], None] = lambda channel, row: None
        self.due: list[Callable[[], None]] = []
        self.groups: list[dict[str, bool]] = []
        self.has_room = True
        self.asked: list[tuple[int, int]] = []
        self.large_frames = self.closed_channels = 0
        self.refusals: list[str] = []
        self.unsent: list[int] = []
        self.calls: list[Callable[[], None]] = []
        self.options = ServerOptions(outbound_bytes_high=HIGH)
        self.turn, self.linger = Turn(cpu_s=lambda: 0.0), Linger()
        self.handler: Any = self
        self.postponed: Any = self
        self.space = ReadSpace(64 * 1024)
        self.transport = Transport()
        self.channel = Channel(self, self, SharedFrameReader(self.space))  # type: ignore[arg-type]
        self.inbound = self.channel.inbound
        self.inbound.connection_made(self.transport)
        assert self.transport.calls == [f"limits {HIGH} {HIGH // 4}"]
        self.transport.calls.clear()

    # the event loop

    def time(self) -> float:
        return 0.0

    def call_soon(self, call: Callable[..., None], *_: Any) -> None:
        self.calls.append(call)

    # PostponedReads

    def add(self, serve: Callable[[], None], _loop: Any, **group: bool) -> None:
        self.due.append(serve)
        self.groups.append(group)

    def next_turn(self) -> None:
        """Serves the connections that wait for a later turn."""
        due, self.due = self.due, []
        for serve in due:
            serve()

    # the handler

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        self.serve_rows(channel, batch, 0)

    def serve_rows(self, channel: Channel, batch: FrameBatch, first: int) -> None:
        for row in range(first, batch.count):
            opaque = batch.table[row * ROW_WIDTH + OPAQUE]
            if opaque in self.postpone_before:
                self.postpone_before.remove(opaque)
                channel.postpone(batch, row)
                return
            self.rows.append(opaque)
            self.on_row(channel, opaque)

    # the owner

    def opened(self, channel: Channel) -> None:
        """Nothing to do."""

    def closed(self, channel: Channel) -> None:
        self.closed_channels += 1

    def refused(self, channel: Channel, error: Exception) -> None:
        self.refusals.append(str(error))

    def ask_for_room(self, channel: Channel, size: int, needed: int) -> bool:
        self.asked.append((size, needed))
        return self.has_room

    def large_frame_ended(self, channel: Channel) -> None:
        self.large_frames += 1

    def grew(self, channel: Channel, size: int) -> None:
        self.unsent.append(size)

    def overrun(self, channel: Channel) -> None:
        self.refusals.append("overrun")

    # the peer

    def receive(self, data: bytes) -> None:
        """One or several reads, as the event loop makes them."""
        while data:
            buffer = self.inbound.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            self.inbound.buffer_updated(size)

    def request(self, *opaques: int) -> None:
        self.receive(frames(*opaques))


def frames(*opaques: int) -> bytes:
    return b"".join(RemotingCommand(RequestCode.HEART_BEAT, opaque).encode() for opaque in opaques)


def large_frame(opaque: int = 0) -> bytes:
    return RemotingCommand(RequestCode.HEART_BEAT, opaque, body=bytes(200_000)).encode()


def begin_slow(server: Server) -> None:
    server.inbound.pause_writing()


def begin_owed(server: Server) -> None:
    server.channel.owe(MUCH)


def begin_postponed(server: Server) -> None:
    server.postpone_before.add(99)
    server.request(99)


def begin_no_room(server: Server) -> None:
    server.has_room = False
    server.receive(large_frame()[:100_000])


def end_postponed(server: Server) -> None:
    server.next_turn()


REASONS: dict[int, tuple[Callable[[Server], None], Callable[[Server], None]]] = {
    SLOW_PEER: (begin_slow, lambda server: server.inbound.resume_writing()),
    OWED: (begin_owed, lambda server: server.channel.settle(MUCH)),
    NO_ROOM: (begin_no_room, lambda server: server.inbound.note(ROOM_GIVEN)),
    POSTPONED: (begin_postponed, end_postponed),
}
"""How each reason not to read begins and ends."""


@pytest.mark.parametrize("reason", REASONS)
def test_one_reason_pauses_reading_until_it_ends(reason: int) -> None:
    server = Server()
    begin, end = REASONS[reason]
    begin(server)
    assert (server.inbound.reasons, server.channel.is_read, server.transport.calls) == (reason, False, ["pause"])
    end(server)
    assert (server.inbound.reasons, server.channel.is_read, server.transport.calls) == (0, True, ["pause", "resume"])


@pytest.mark.parametrize(("first", "second"), list(permutations((SLOW_PEER, OWED, NO_ROOM), 2)))
@pytest.mark.parametrize("turned", [False, True])
def test_reading_resumes_when_both_reasons_have_ended(first: int, second: int, turned: bool) -> None:
    server = Server()
    # Bytes arrive before the first pause, so a large frame that gets no room always comes first.
    begins = sorted((first, second), key=lambda reason: reason != NO_ROOM)
    for reason in begins:
        REASONS[reason][0](server)
    assert server.inbound.reasons == first | second
    ends = (second, first) if turned else (first, second)
    REASONS[ends[0]][1](server)
    assert (server.inbound.reasons, server.transport.calls) == (ends[1], ["pause"])
    REASONS[ends[1]][1](server)
    assert (server.inbound.reasons, server.transport.calls) == (0, ["pause", "resume"])


@pytest.mark.parametrize("blocker", [SLOW_PEER, OWED])
def test_postponed_requests_wait_for_a_slow_or_owing_peer(blocker: int) -> None:
    server = Server()
    begin_postponed(server)
    REASONS[blocker][0](server)
    server.next_turn()
    assert (server.rows, server.inbound.reasons, server.due) == ([], POSTPONED | blocker, [])
    REASONS[blocker][1](server)
    assert (server.rows, server.transport.calls, len(server.due)) == ([], ["pause"], 1), "they get a new turn"
    server.next_turn()
    assert (server.rows, server.inbound.reasons, server.transport.calls) == ([99], 0, ["pause", "resume"])


@pytest.mark.parametrize("blocker", [SLOW_PEER, OWED])
def test_a_blocker_that_ends_before_the_later_turn_costs_no_second_turn(blocker: int) -> None:
    server = Server()
    begin_postponed(server)
    begin, end = REASONS[blocker]
    begin(server)
    end(server)
    assert len(server.due) == 1
    server.next_turn()
    assert (server.rows, server.inbound.reasons) == ([99], 0)


def test_a_large_frame_without_room_does_not_hold_up_postponed_requests() -> None:
    server = Server()
    server.has_room = False
    server.postpone_before.add(1)
    server.receive(frames(1) + large_frame(2)[:60_000])
    assert server.inbound.reasons == POSTPONED | NO_ROOM
    server.next_turn()
    assert (server.rows, server.inbound.reasons, server.transport.calls) == ([1], NO_ROOM, ["pause"])
    server.has_room = True
    server.inbound.note(ROOM_GIVEN)
    server.receive(large_frame(2)[60_000:])
    assert server.rows == [1, 2]


def test_a_large_frame_that_completes_while_it_waits_for_room_lets_reading_resume() -> None:
    """Before the fix, the connection was never read again if its transport read once more after the pause."""
    server = Server()
    begin_no_room(server)
    asked = len(server.asked)
    assert asked and server.asked[-1][1] == len(large_frame())
    server.receive(large_frame()[100_000:])
    assert (server.rows, server.large_frames) == ([0], 1)
    assert (server.inbound.reasons, server.transport.calls) == (0, ["pause", "resume"])


def test_rows_are_served_in_order_and_once_however_often_they_are_postponed() -> None:
    server = Server()
    count = ROWS_MAX * 2 + 10
    server.postpone_before = {3, 100, ROWS_MAX, ROWS_MAX + 1, count - 1}
    server.request(*range(count))
    turns = 0
    while server.due:
        assert server.inbound.reasons == POSTPONED
        server.next_turn()
        turns += 1
    assert server.rows == list(range(count)) and turns == 5
    assert server.transport.calls == ["pause", "resume"] and server.space.kept_bytes == 0


def test_rows_that_are_postponed_again_are_not_copied_again() -> None:
    server = Server()
    server.postpone_before = {1, 2}
    server.request(0, 1, 2)
    kept = server.space.kept_bytes
    postponed = server.inbound._postponed
    assert postponed is not None and kept == postponed[0].kept_bytes > 0
    server.next_turn()
    assert server.inbound._postponed == (postponed[0], 2) and server.space.kept_bytes == kept


def test_a_transport_that_reads_after_the_pause_finds_the_postponed_requests_served() -> None:
    """Before the fix, reading was not resumed after that."""
    server = Server()
    server.postpone_before = {1, 2}
    server.request(0, 1, 2)
    assert server.rows == [0]
    server.channel.costly = True
    server.request(3)
    assert server.rows == [0, 1, 2, 3] and not server.channel.costly
    server.next_turn()
    assert (server.inbound.reasons, server.transport.calls) == (0, ["pause", "resume"])


@pytest.mark.parametrize("settled", [False, True])
def test_the_batches_after_the_one_that_owes_too_much_wait(settled: bool) -> None:
    """They do not wait if the debt has ended with the batch that made it."""
    server = Server()

    def owe(channel: Channel, row: int) -> None:
        if row == 5:
            channel.owe(MUCH)
        if row == 6 and settled:
            channel.settle(MUCH)

    server.on_row = owe
    server.request(*range(ROWS_MAX + 10))
    if not settled:
        assert server.rows == list(range(ROWS_MAX)), "the rest waits"
        assert (server.inbound.reasons, server.due) == (OWED | POSTPONED, [])
        assert server.space.kept_bytes > 0
        server.channel.settle(MUCH)
        assert server.inbound.reasons == POSTPONED
    server.next_turn()
    assert server.rows == list(range(ROWS_MAX + 10)) and server.space.kept_bytes == 0
    assert (server.inbound.reasons, server.transport.calls) == (0, ["pause", "resume"])


def test_batches_that_a_debt_interrupts_in_a_later_turn_wait_again() -> None:
    server = Server()
    server.postpone_before = {1}
    server.on_row = lambda channel, row: channel.owe(MUCH) if row == 5 else None
    count = ROWS_MAX * 2 + 10
    server.request(*range(count))
    server.next_turn()
    assert server.rows == list(range(ROWS_MAX * 2)) and server.inbound.reasons == OWED | POSTPONED
    server.channel.settle(MUCH)
    assert server.transport.calls == ["pause"]
    server.next_turn()
    assert server.rows == list(range(count)) and server.transport.calls == ["pause", "resume"]


def test_a_large_frame_at_the_end_of_a_postponed_read_asks_for_room_when_the_read_is_served() -> None:
    server = Server()
    server.has_room = False
    server.postpone_before = {1}
    server.receive(frames(*range(ROWS_MAX + 5)) + large_frame()[:30_000])
    assert server.asked == [], "the own buffer holds frames that wait, too"
    server.next_turn()
    assert server.rows == list(range(ROWS_MAX + 5))
    assert server.asked == [(30_000, len(large_frame()))] and server.inbound.reasons == NO_ROOM


@pytest.mark.parametrize(
    ("count", "first", "begun"),
    [
        (65, 1, False),
        (66, 1, True),
        (66, 0, False),
        (ROWS_MAX, ROWS_MAX - 1, False),
        (ROWS_MAX + 1, ROWS_MAX - 1, True),
        (ROWS_MAX + 9, ROWS_MAX + 8, True),
    ],
)
def test_the_group_in_which_a_connection_waits(count: int, first: int, begun: bool) -> None:
    """More than 64 requests that are left, or more than one batch, make a long wait; the next read begins anew."""
    server = Server()
    server.postpone_before = {first}
    server.channel.costly = False
    server.request(*range(count))
    assert server.groups == [{"begun": begun, "costly": False}]
    server.next_turn()
    server.postpone_before = {0}
    server.channel.costly = True
    server.request(0)
    assert server.groups[1:] == [{"begun": False, "costly": True}]


def test_a_connection_shows_its_progress() -> None:
    server = Server()
    progress = server.channel.progress
    progress.active = progress.framed = False
    server.receive(frames(1)[:-1])
    assert (progress.active, progress.framed) == (True, False)
    server.receive(frames(1)[-1:])
    assert progress.framed
    progress.active = False
    server.channel.send(b"x")
    assert not progress.active
    server.calls[-1]()
    assert progress.active and server.transport.written == [b"x"]


def test_debts_have_two_thresholds() -> None:
    """Reading pauses above ``outbound_bytes_high``, and resumes at a quarter of it; each request counts 512 bytes."""
    server = Server()
    for _ in range(19):
        server.channel.owe(0)
    assert server.inbound.reasons == 0
    server.channel.owe(HIGH - 20 * 512)
    assert server.inbound.reasons == 0, f"exactly {HIGH}"
    server.channel.owe(0)
    assert server.inbound.reasons == OWED
    server.channel.settle(HIGH - 20 * 512)
    for owed in range(19, 4, -1):
        assert server.inbound.reasons == OWED, f"{owed + 1} requests wait"
        server.channel.settle(0)
        if owed == 5:
            break
    assert server.inbound.reasons == OWED
    server.channel.settle(0)
    assert server.inbound.reasons == 0, "four requests wait"


def test_a_connection_that_closes_is_neither_paused_nor_served() -> None:
    server = Server()
    begin_postponed(server)
    server.channel.close()
    server.transport.calls.clear()
    server.inbound.pause_writing()
    server.inbound.resume_writing()
    server.next_turn()
    assert (server.rows, server.transport.calls, server.due) == ([], [], [])
    other = Server()
    other.channel.close()
    other.inbound.pause_writing()
    other.inbound.resume_writing()
    assert other.transport.calls == []


def test_the_bytes_that_a_slow_peer_keeps_are_its_unsent_bytes() -> None:
    server = Server()
    server.transport.unsent = 70
    assert (server.channel.unread_bytes, server.channel.buffered_bytes) == (0, 70)
    server.inbound.pause_writing()
    assert server.channel.unread_bytes == 70
    server.channel.progress.caught_up = False
    server.inbound.resume_writing()
    assert server.channel.unread_bytes == 0 and server.channel.progress.caught_up


def test_large_collected_responses_make_the_next_request_wait() -> None:
    server = Server()
    server.channel.send(bytes(ANSWER_BYTES - 1))
    server.channel.send(b"x")
    assert not server.channel.note_request() and not server.channel.note_request()
    server.channel.send(b"x")
    assert server.channel.note_request()
    server.transport.writelines = lambda parts: None  # type: ignore[method-assign]
    server.channel.flush_gathered()
    server.channel.send(bytes(ANSWER_BYTES))
    assert not server.channel.note_request(), "what was sent does not count"


def test_a_peer_that_accepts_too_little_is_cut() -> None:
    server = Server()
    most = server.options.outbound_bytes_max
    for size in (COUNTED_BYTES, COUNTED_BYTES + 1, most, most + 1):
        assert not server.transport.closing
        server.transport.unsent = size
        server.channel.send(b"x")
        server.channel.flush_gathered()
    assert server.unsent == [COUNTED_BYTES + 1, most, most + 1]
    assert server.refusals == ["overrun"] and server.transport.closing


def test_bytes_that_are_no_frame_end_the_postponed_requests_too() -> None:
    server = Server()
    server.postpone_before = {ROWS_MAX - 1}
    server.receive(frames(*range(ROWS_MAX)) + b"\xff" * 40)
    server.inbound.get_buffer(-1)
    assert server.rows == list(range(ROWS_MAX)) and len(server.refusals) == 1
    assert server.transport.closing and not server.inbound.reasons
    server.inbound.connection_lost(None)
    assert server.space.kept_bytes == 0


def test_the_answers_of_postponed_requests_leave_with_one_write() -> None:
    server = Server()
    server.on_row = lambda channel, row: channel.send(b"%d" % row)
    server.transport.writelines = lambda parts: server.transport.written.append(b" ".join(parts))  # type: ignore[method-assign]
    server.postpone_before = {1}
    server.request(0, 1, 2)
    server.next_turn()
    assert server.transport.written == [b"0", b"1 2"]
    assert not any(call.__name__ == "_flush" for call in server.calls)


@contextmanager
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("waits", [False, True])
def test_an_ended_connection_holds_nothing(waits: bool) -> None:
    """Its requests that wait need no memory, nothing is served any more, and no garbage collection is needed."""
    server = Server()
    server.postpone_before = {1} if waits else set()
    server.request(*range(ROWS_MAX + 5))
    assert bool(server.space.kept_bytes) == waits
    inbound, channel = server.inbound, server.channel
    channel.attributes["self"] = channel
    inbound.connection_lost(None)
    assert server.space.kept_bytes == 0 and server.closed_channels == 1
    served = list(server.rows)
    server.next_turn()
    channel.owe(MUCH)
    channel.settle(MUCH)
    channel.send(b"late")
    inbound.resume_writing()
    assert (server.rows, server.transport.written) == (served, [])
    number = id(channel)
    with without_collections():
        server.calls.clear()
        del server.channel, server.inbound, channel, inbound
        assert not [each for each in gc.get_objects() if isinstance(each, Channel) and id(each) == number]
