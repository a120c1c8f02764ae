"""Clients that keep the server waiting lose the stream or the connection; others do not."""

from __future__ import annotations

from typing import Any

import h2.events
import h2.settings
import pytest
from tests.unit.grpc.raw_peer import GRPC, HELLO, POST, Peer, echo_of
from tests.unit.http2.wire import frame, headers, settings

from rucola.grpc.call import GrpcCall
from rucola.http2.frames import PREFACE, ErrorCode, FrameType
from rucola.remoting import peer_log

NEVER = POST | GRPC | {":path": "/t.T/Never"}
TALK = POST | GRPC | {":path": "/t.T/Talk"}
MIB = 1 << 20


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Peer:
    monkeypatch.setattr(peer_log.PeerLog, "closed", lambda log, peer, reason: None)  # it asks the running loop
    return Peer()


def wait(peer: Peer, seconds: int) -> list[h2.events.Event]:
    """Lets time pass with a look each second; returns what the client learns."""
    found = []
    for _ in range(seconds):
        peer.clock.advance(1000)
        while peer.connection._server.time_limits.look() == 0:
            pass
        while peer.soon:
            peer.soon.pop()()
        found += peer.events()
    return found


def resets(events: list[h2.events.Event]) -> list[tuple[int, int]]:
    return [(event.stream_id, event.error_code) for event in events if isinstance(event, h2.events.StreamReset)]


def refusals(events: list[h2.events.Event]) -> list[str]:
    """The texts of calls that were refused."""
    found = []
    for event in events:
        if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            fields = dict(event.headers)
            if fields.get(b"grpc-status", b"0") != b"0":
                found.append(fields[b"grpc-message"].decode().replace("%20", " "))
    return found


def greet(peer: Peer) -> None:
    """Exchanges prefaces; the client owes nothing then."""
    for _ in range(2):
        peer.events()


def close_windows(peer: Peer) -> None:
    """The client takes no data at all."""
    peer.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    peer.events()


@pytest.mark.parametrize("sent", [b"", PREFACE[:10], PREFACE, PREFACE + settings()[:5]])
def test_a_preface_that_is_not_complete(peer: Peer, sent: bytes) -> None:
    peer.feed(sent)
    peer.client.data_to_send()
    wait(peer, 10)
    assert not peer.transport.closed
    wait(peer, 1)
    assert peer.transport.aborted


def test_a_complete_preface_may_be_followed_by_silence_but_not_for_ever(peer: Peer) -> None:
    events = wait(peer, 120)
    assert not [event for event in events if isinstance(event, h2.events.ConnectionTerminated)]
    events = wait(peer, 16)
    (ended,) = [event for event in events if isinstance(event, h2.events.ConnectionTerminated)]
    assert (ended.error_code, ended.additional_data) == (ErrorCode.NO_ERROR, b"silent for too long")
    assert peer.transport.ended and not peer.transport.closed
    ((_, close),) = peer.timers
    close()
    assert peer.transport.aborted


def test_a_byte_in_either_direction_is_no_silence(peer: Peer) -> None:
    peer.ask(NEVER, HELLO)
    (call,) = peer.service.waiting
    for round_ in range(8):
        wait(peer, 100)
        if round_ % 2:
            call.send(b"x")
        else:
            peer.client.ping(b"12345678")
    assert not peer.transport.ended


def test_a_stream_whose_client_takes_nothing_is_reset(peer: Peer) -> None:
    close_windows(peer)
    peer.ask(NEVER, HELLO)
    peer.ask(POST | GRPC, echo_of(1000))
    peer.ask(NEVER, HELLO)
    (first, second) = peer.service.waiting
    first.send(bytes(1000))
    peer.soon.pop()()
    assert 2010 <= peer.connection.unsent_bytes < 2100  # with the trailers behind one of them
    assert resets(wait(peer, 20)) == []
    assert resets(wait(peer, 2)) == [(1, ErrorCode.ENHANCE_YOUR_CALM), (3, ErrorCode.ENHANCE_YOUR_CALM)]
    assert peer.service.waiting == [second] and peer.service.over == 1
    assert peer.connection.unsent_bytes == peer.connection._server.unsent_bytes == 0
    assert not peer.connection._server.time_limits._pending


def test_a_client_that_takes_a_little_now_and_then_keeps_its_stream(peer: Peer) -> None:
    close_windows(peer)
    for _ in range(2):
        peer.ask(POST | GRPC, echo_of(1000))
    reset = []
    for _ in range(10):
        peer.client.increment_flow_control_window(10, 1)
        reset += resets(wait(peer, 15))
    assert reset == [(3, ErrorCode.ENHANCE_YOUR_CALM)]


def test_a_stream_that_waits_for_its_turn_in_the_connection_is_not_slow(peer: Peer) -> None:
    """The client opens the windows of two streams, but reads slowly: the first answers use the connection's window."""
    peer.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: MIB})
    peer.events()
    for _ in range(4):
        peer.ask(NEVER, HELLO)
    for call in peer.service.waiting:
        call.send(bytes(300_000))
    for _ in range(20):
        peer.client.increment_flow_control_window(5_000)
        assert resets(wait(peer, 15)) == []
    assert sorted(resets(wait(peer, 25))) == [(number, ErrorCode.ENHANCE_YOUR_CALM) for number in (1, 3, 5, 7)]


def begin(peer: Peer, fields: dict[str, str], *data: bytes) -> int:
    """Begins a request; returns its stream."""
    assert peer.ask(fields, *data, end=False)["data"] == b""
    return peer._stream


@pytest.mark.parametrize("data", [(), (HELLO[:7],), (HELLO,)])
def test_a_request_that_does_not_come(peer: Peer, data: tuple[bytes, ...]) -> None:
    stream = begin(peer, NEVER, *data)
    assert refusals(wait(peer, 15)) == []
    events = wait(peer, 1)
    held = len(data[0]) if data and data[0] != HELLO else 5 if data else 0
    assert refusals(events) == [f"only {held} bytes of a request in 16 s"]
    assert resets(events) == [(stream, ErrorCode.NO_ERROR)]
    assert peer.ask(POST | GRPC, HELLO)["grpc-status"] == "0"


@pytest.mark.parametrize(("rate", "refused"), [(15_000, True), (17_000, False)])
def test_the_rate_of_a_request(rate: int, refused: bool) -> None:
    peer = Peer(8 * MIB)
    begin(peer, NEVER, echo_of(4 * MIB)[:5])
    found: list[str] = []
    for _ in range(200):
        if not found:
            for _ in range(2):
                peer.client.send_data(1, bytes(rate // 2))
        found += refusals(wait(peer, 1))
    assert bool(found) is refused


def talk(peer: Peer, stream: int, data: bytes) -> None:
    peer.client.send_data(stream, data)
    peer.events()


def test_conversations_may_be_silent_between_requests_but_not_within(peer: Peer) -> None:
    stream = begin(peer, TALK)
    other = begin(peer, TALK)
    for _ in range(3):
        talk(peer, stream, HELLO)
        peer.client.ping(b"12345678")
        assert refusals(wait(peer, 100)) == []
    limits = peer.connection._server.time_limits
    assert not limits._pending, "silent conversations cost no look"
    for _ in range(20):  # part of a request at each look, but each is completed soon
        talk(peer, stream, HELLO[:-1])
        assert refusals(wait(peer, 9)) == []
        talk(peer, stream, HELLO[-1:])
    talk(peer, stream, HELLO[:-1])
    talk(peer, other, HELLO)
    events = wait(peer, 17)
    assert refusals(events) == ["only 9 bytes of a request in 16 s"] and resets(events) == [(stream, 0)]
    assert peer.service.over == 1


def test_a_stream_that_the_client_does_not_end_after_the_answer(peer: Peer) -> None:
    stream = begin(peer, TALK, b"\0\0\0\0\3end")
    assert resets(wait(peer, 15)) == []
    assert resets(wait(peer, 2)) == [(stream, ErrorCode.NO_ERROR)]
    assert peer.connection.http2.stream_count == 0


def test_an_answer_that_waits_is_not_cut_because_the_client_has_not_ended(peer: Peer) -> None:
    close_windows(peer)
    stream = begin(peer, TALK, HELLO)
    talk(peer, stream, b"\0\0\0\0\3end")
    for _ in range(6):
        peer.client.increment_flow_control_window(1, stream)
        assert resets(wait(peer, 10)) == []


def test_a_frame_that_is_not_complete(peer: Peer) -> None:
    greet(peer)
    peer.feed(frame(FrameType.PING, bytes(8))[:-1])
    wait(peer, 15)
    assert not peer.transport.closed
    wait(peer, 2)
    assert peer.transport.aborted


def test_a_header_block_that_is_not_complete(peer: Peer) -> None:
    greet(peer)
    peer.feed(headers(1, b"", flags=0))
    wait(peer, 17)
    assert peer.transport.aborted


def test_earlier_silence_does_not_count_for_a_frame(peer: Peer) -> None:
    greet(peer)
    peer.feed(frame(FrameType.PING, bytes(8))[:-1])
    wait(peer, 5)
    peer.feed(bytes(1))
    wait(peer, 60)
    peer.feed(frame(FrameType.PING, bytes(8))[:-1])
    wait(peer, 14)
    assert not peer.transport.closed


def test_a_socket_that_takes_nothing(peer: Peer) -> None:
    peer.events()
    peer.connection.pause_writing()
    peer.transport.waiting = 100_000
    for _ in range(3):
        wait(peer, 15)
        peer.transport.waiting -= 1
    assert not peer.transport.closed
    wait(peer, 22)
    assert peer.transport.aborted


def test_while_we_do_not_read_no_request_is_late(peer: Peer) -> None:
    stream = begin(peer, NEVER, HELLO[:7])
    peer.connection.pause_writing()
    peer.connection._is_unread = True
    peer.transport.waiting = 100_000
    for _ in range(4):
        wait(peer, 10)
        peer.transport.waiting -= 1
    peer.connection.resume_writing()
    peer.client.send_data(stream, HELLO[7:], end_stream=True)
    assert refusals(peer.events()) == [] and len(peer.service.waiting) == 1


def test_a_look_at_many_connections_takes_several_turns(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    from rucola.grpc import time_limits

    monkeypatch.setattr(time_limits, "_LOOKS_MAX", 1)
    server = peer.connection._server
    limits = server.time_limits
    others = [Peer() for _ in range(3)]
    for other in others:
        other.connection._server = server
        server.opened(other.connection, -1)
        other.feed(PREFACE + settings() + frame(FrameType.PING, bytes(8))[:-1])
    peer.events()
    turns = 1
    while limits.look() == 0:
        turns += 1
    assert turns == 3
    peer.clock.advance(17_000)
    while limits.look() == 0:
        pass
    assert [other.transport.aborted for other in others] == [True] * 3 and not peer.transport.aborted


def test_a_connection_that_ended_is_forgotten(peer: Peer) -> None:
    begin(peer, NEVER, HELLO[:7])
    limits: Any = peer.connection._server.time_limits
    assert len(limits._pending) == len(limits._silent) == 1
    peer.connection.connection_lost(None)
    assert not limits._pending and not limits._silent and not limits._greeting
    assert limits.look() is None


def test_who_waits_for_an_answer_is_no_slow_client(peer: Peer) -> None:
    peer.ask(NEVER, HELLO)
    call: GrpcCall
    (call,) = peer.service.waiting
    assert not peer.connection._server.time_limits._pending
    assert refusals(wait(peer, 110)) == [] and not call.is_over
