"""How long the requests of one gRPC client may delay others. A turn is an iteration of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice, pairwise

import h2.events
import pytest
from tests.unit.grpc.raw_peer import GRPC, HELLO, POST, Peer

from rucola.grpc import connection as connections
from rucola.grpc import time_limits
from rucola.http2.event_space import ROWS_MAX
from rucola.http2.frames import ErrorCode
from rucola.proxy import refreshed
from rucola.proxy.refreshed import Refreshed
from rucola.remoting.fairness import turn
from rucola.remoting.fairness.turn import Turn
from rucola.testing.event_loop import run_stepped

CALLS_AT_ONCE = ROWS_MAX // 2
"""Each call has one frame of HEADERS and one of DATA."""
FIRST = 2 * CALLS_AT_ONCE
"""Most calls of the first turn: the first look at the time begins it."""
ECHO, NEVER = POST | GRPC, POST | GRPC | {":path": "/t.T/Never"}


@pytest.fixture
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every turn is over as soon as it has begun."""
    monkeypatch.setattr(turn, "TURN_S", -1.0)
    monkeypatch.setattr(turn, "_UNSEEN_S", -1.0)


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    made.events()
    made.soon.clear()
    yield made


def requests(peer: Peer, count: int, fields: dict[str, str]) -> bytes:
    """The bytes of several calls."""
    for _ in range(count):
        peer._stream += 2
        peer.client.send_headers(peer._stream, list(fields.items()))
        peer.client.send_data(peer._stream, HELLO, end_stream=True)
    data: bytes = peer.client.data_to_send()
    return data


def read(peer: Peer, data: bytes) -> None:
    """Gives bytes to the connection in one read, whose buffer grows before."""
    room = peer.connection.get_buffer(-1)
    while len(room) < len(data):
        peer.connection.http2._buffer._wanted = 64 * 1024
        room = peer.connection.get_buffer(-1)
    room[: len(data)] = data
    peer.connection.buffer_updated(len(data))


def run_turn(peer: Peer) -> None:
    """Runs what the last turn has left to this one."""
    soon, peer.soon[:] = list(peer.soon), []
    for work in soon:
        work()


def echoed(peer: Peer) -> int:
    return len(peer.service.metadata)


@pytest.mark.usefixtures("no_time")
def test_a_read_full_of_requests_takes_several_turns(peer: Peer) -> None:
    """Before, all requests of a read, and of all other reads of the turn, were handled at once: 2.2 s for others."""
    read(peer, requests(peer, 200, ECHO))
    seen = [echoed(peer)]
    while not peer.connection.is_read:
        assert not peer.transport.reads
        run_turn(peer)
        seen.append(echoed(peer))
    steps = [after - before for before, after in pairwise(seen)]
    assert 0 < seen[0] <= FIRST and max(steps) <= CALLS_AT_ONCE and seen[-1] == 200
    assert peer.transport.reads and peer.connection.is_read
    answers = peer.client.receive_data(bytes(peer.transport.written))
    assert [event.stream_id for event in answers if isinstance(event, h2.events.StreamEnded)] == [*range(1, 400, 2)]


def test_reads_of_a_turn_that_is_over_wait(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = peer.connection._server
    monkeypatch.setattr(server.turn, "note_read", lambda loop: True)
    read(peer, requests(peer, 2, ECHO))
    assert (echoed(peer), peer.transport.reads) == (0, False)
    run_turn(peer)
    assert echoed(peer) == 2 and peer.transport.reads
    assert peer.transport.written, "the answers go out in the same turn"


@pytest.mark.usefixtures("no_time")
def test_a_read_of_one_request_is_served_at_once_even_if_the_turn_is_over(peer: Peer) -> None:
    for number in range(1, 4):
        read(peer, requests(peer, 1, ECHO))
        assert echoed(peer) == number and peer.transport.reads


def test_tasks_of_many_connections_use_up_the_time_of_reads(peer: Peer) -> None:
    loop, of_server = peer.connection._server.loop, Turn()
    tasks = 0
    while not of_server.note_read(loop):
        of_server.note_task()
        tasks += 1
        assert tasks * turn.TASK_S <= turn.TOO_LONG_S + turn.TASK_S
    assert tasks * turn.TASK_S >= turn.LONG_S


def test_requests_that_tasks_serve_use_up_the_turn_in_which_they_begin(peer: Peer) -> None:
    """The tasks run in the next turn, so the clock does not show what they cost."""
    most = round(turn.TURN_S / turn.TASK_S) + FIRST
    read(peer, requests(peer, 500, NEVER))
    seen = [len(peer.service.waiting)]
    while seen[-1] < 500:
        peer.clock.advance(10)
        run_turn(peer)
        seen.append(len(peer.service.waiting))
    assert 0 < seen[0] <= most and max(after - before for before, after in pairwise(seen)) <= most


def test_requests_of_a_conversation_count_as_tasks(peer: Peer) -> None:
    """One frame may have thousands."""
    turn_of = peer.connection._server.turn
    turn_of.note_request(peer.connection._server.loop)
    peer._stream += 2
    peer.client.send_headers(peer._stream, list((POST | GRPC | {":path": "/t.T/Talk"}).items()))
    peer.client.send_data(peer._stream, HELLO * 1000)
    read(peer, requests(peer, 2 * FIRST, ECHO))
    assert len(peer.service.heard) == 1000 and echoed(peer) < FIRST and not peer.transport.reads


@pytest.mark.usefixtures("no_time")
def test_a_client_that_takes_no_answers_waits_with_its_requests(peer: Peer) -> None:
    read(peer, requests(peer, 200, ECHO))
    peer.connection.pause_writing()
    peer.connection._is_unread = True
    for _ in range(3):
        run_turn(peer)
    assert 0 < echoed(peer) <= FIRST and not peer.transport.reads
    peer.connection.resume_writing()
    assert not peer.transport.reads, "first what was read before"
    while peer.soon:
        run_turn(peer)
    assert echoed(peer) == 200 and peer.transport.reads


@pytest.mark.usefixtures("no_time")
def test_a_transport_that_reads_although_it_was_told_not_to(peer: Peer) -> None:
    read(peer, requests(peer, 200, ECHO))
    assert 0 < echoed(peer) <= FIRST
    read(peer, requests(peer, 1, ECHO))
    assert echoed(peer) == 201, "what came first is handled first, and nothing is lost"


@pytest.mark.usefixtures("no_time")
def test_a_connection_that_is_lost_while_its_requests_wait(peer: Peer) -> None:
    read(peer, requests(peer, 200, ECHO))
    peer.connection.connection_lost(None)
    while peer.soon:
        run_turn(peer)
    assert 0 < echoed(peer) <= FIRST and not peer.connection._server.connections


@pytest.mark.usefixtures("no_time")
@pytest.mark.parametrize("end", ["abort", "close"])
def test_a_connection_that_is_cut_handles_nothing_that_waited(peer: Peer, end: str) -> None:
    """A turn may come after the cut and before the transport says that it is lost."""
    read(peer, requests(peer, 200, ECHO))
    before = echoed(peer)
    getattr(peer.connection, end)()
    while peer.soon:
        run_turn(peer)
    peer.connection.resume_writing()
    peer.connection.connection_lost(None)
    assert echoed(peer) == before and not peer.connection._server.connections


@pytest.mark.usefixtures("no_time")
def test_an_error_among_requests_that_wait_ends_the_connection(peer: Peer) -> None:
    read(peer, requests(peer, 200, ECHO) + b"\0\0\1\6\0\0\0\0\0\0")  # a PING of one byte
    while peer.soon:
        run_turn(peer)
    assert echoed(peer) == 200 and peer.transport.ended
    assert peer.transport.reads, "what still comes is dropped, so that the client gets the reason"
    assert peer.connection._server.ends == {ErrorCode.FRAME_SIZE_ERROR.name: 1}


@pytest.mark.usefixtures("no_time")
def test_time_limits_leave_out_what_waits_for_a_turn(peer: Peer) -> None:
    peer.connection._server.postponed.add = lambda *_, **__: None  # type: ignore[method-assign]
    read(peer, requests(peer, 200, ECHO))
    for _ in range(20):
        peer.clock.advance(5000)
        peer.connection.active_ms = peer.connection._server.now_ms()
        peer.connection._server.time_limits.look()
    assert not peer.transport.closed and not peer.transport.ended


@pytest.mark.usefixtures("no_time")
def test_the_calls_of_a_lost_connection_end_in_several_turns(peer: Peer) -> None:
    read(peer, requests(peer, 300, NEVER))
    while peer.soon:
        run_turn(peer)
    server = peer.connection._server
    lost: list[int] = []
    peer.service.waiting.pop().finish([bytes(100_000)], lost.append)
    run_turn(peer)
    before = len(peer.service.waiting)
    assert before == 299 and not lost
    peer.connection.connection_lost(None)
    steps: list[int] = []
    while peer.service.waiting and len(steps) < 100:
        steps.append(before - len(peer.service.waiting))
        before = len(peer.service.waiting)
        assert server.connections, "it counts until its last call has ended"
        run_turn(peer)
    assert len(steps) >= 3 and max(steps) <= 2 * connections._ENDED_AT_ONCE
    assert peer.service.over == 299 and not server.connections and len(lost) == 1
    assert server.stream_count == server.unsent_bytes == 0


def test_a_handler_that_fails_at_the_end_of_its_call_keeps_no_other_call_open(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    read(peer, requests(peer, 3, NEVER))
    first, *_ = peer.service.waiting

    def fails() -> None:
        raise ValueError("a defect")

    first.on_over = fails
    peer.connection.connection_lost(None)
    assert peer.service.over == 2 and not peer.connection._server.connections
    assert "a defect" in caplog.text


def test_a_look_at_streams_takes_several_turns(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection may have thousands of streams that wait."""
    monkeypatch.setattr(time_limits, "_LOOKS_MAX", 4)
    server = peer.connection._server
    others = [peer, *(Peer() for _ in range(2))]
    for other in others[1:]:
        other.connection._server = server
        server.opened(other.connection, -1)
    for other in others:
        other.connection.stream_count = 3 * time_limits._STREAMS_OF_A_LOOK
        server.time_limits.watch(other.connection)
    looked: list[Peer] = []
    for other in others:
        monkeypatch.setattr(other.connection, "end_slow", lambda *_, of=other: looked.append(of))
    assert server.time_limits.look() == 0.0 and len(looked) == 1
    assert server.time_limits.look() == 0.0 and len(looked) == 2
    assert server.time_limits.look() is None and len(looked) == 3


def test_those_who_wait_for_one_look_up_go_on_in_several_turns() -> None:
    """Before, thousands of calls that waited for the name server were all answered in one turn."""

    async def play() -> None:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def look_up(name: str) -> str:
            return await answer

        values = Refreshed[str, str]("topic", look_up, asyncio.get_running_loop().time)
        waiting = [asyncio.create_task(values.get("a")) for _ in range(3 * refreshed._WOKEN_AT_ONCE)]
        await asyncio.sleep(0)
        for task in islice(waiting, 10):
            task.cancel()
        answer.set_result("value")
        done, most = 0, 0
        while done < len(waiting):
            await asyncio.sleep(0)
            before, done = done, sum(task.done() for task in waiting)
            most = max(most, done - before)
        assert most <= refreshed._WOKEN_AT_ONCE
        assert {task.result() for task in waiting[10:]} == {"value"}
        assert all(task.cancelled() for task in waiting[:10])

    run_stepped(play())
