"""Requests that no library sends: each is refused in its own way, and the connection serves on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import h2.events
import h2.settings
import hpack
import pytest
from tests.unit.grpc.raw_peer import GRPC, HELLO, POST, Peer, Transport, echo_of

from rucola.grpc.connection import GrpcConnection


@pytest.fixture
def peer() -> Peer:
    return Peer()


OK = {":status": "200", "content-type": "application/grpc", "grpc-status": "0", "data": HELLO}


def test_a_request_in_pieces(peer: Peer) -> None:
    assert peer.ask(POST | GRPC, HELLO) == OK
    assert peer.ask(POST | GRPC, HELLO, b"") == OK
    assert peer.ask(POST | GRPC, *(bytes((byte,)) for byte in HELLO)) == OK
    assert peer.connection.held_bytes == 0


def internal(text: str) -> dict[str, str]:
    escaped = text.replace(" ", "%20")
    return {":status": "200", "content-type": "application/grpc", "grpc-status": "13", "grpc-message": escaped}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ((), "the stream of requests ended without a request"),
        ((b"",), "the stream of requests ended without a request"),
        ((HELLO[:3],), "the stream of requests ends within a request"),
        ((HELLO[:-1],), "the stream of requests ends within a request"),
        ((HELLO + HELLO,), "two requests came for a method that takes one"),
        ((HELLO, HELLO), "two requests came for a method that takes one"),
        ((b"\1" + HELLO[1:],), "a request is marked as compressed, but grpc-encoding names nothing"),
    ],
)
def test_requests_that_are_none(peer: Peer, data: tuple[bytes, ...], text: str) -> None:
    assert peer.ask(POST | GRPC, *data) == internal(text) | {"data": b""}
    assert peer.ask(POST | GRPC, HELLO) == OK
    assert peer.connection.held_bytes == 0


@pytest.mark.parametrize("timeout", ["", "5", "S", "123456789S", "-1S", "1s"])
def test_a_timeout_that_is_none(peer: Peer, timeout: str) -> None:
    answer = peer.ask(POST | GRPC | {":path": "/t.T/Never", "grpc-timeout": timeout}, HELLO)
    assert answer["grpc-status"] == "13" and "grpc-timeout" in answer["grpc-message"]


@pytest.mark.parametrize(
    ("timeout", "seconds"), [("1H", 3600), ("2M", 120), ("3S", 3), ("4m", 0.004), ("5u", 5e-6), ("6n", 6e-9)]
)
def test_units_of_timeouts(peer: Peer, timeout: str, seconds: float) -> None:
    assert peer.ask(POST | GRPC | {":path": "/t.T/Never", "grpc-timeout": timeout}, HELLO) == {"data": b""}
    peer.events()
    ((after_s, expire),) = peer.timers
    assert after_s == pytest.approx(seconds)
    expire()
    assert peer.service.over == 1
    ended = [event for event in peer.events() if isinstance(event, h2.events.ResponseReceived)]
    assert ended == []  # it goes out in the next turn
    peer.soon.pop()()
    (ended,) = [event for event in peer.events() if isinstance(event, h2.events.ResponseReceived)]
    assert (b"grpc-status", b"4") in ended.headers


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({":path": "/"}, {":status": "200", "content-type": "text/plain"}),
        ({":path": "/index.html"}, {":status": "404"}),
        ({":method": "PUT"}, {":status": "405", "allow": "POST"}),
    ],
)
def test_browsers_get_a_page(peer: Peer, fields: dict[str, str], answer: dict[str, str]) -> None:
    got = peer.ask(POST | {":method": "GET"} | fields)
    data = got.pop("data")
    assert got == answer
    assert (b"gRPC" in data) == (answer[":status"] == "200")


@pytest.mark.parametrize("kind", ["application/json", "application/grpcweb", ""])
def test_another_content_type(peer: Peer, kind: str) -> None:
    assert peer.ask(POST | GRPC | {"content-type": kind}, HELLO) == {":status": "415", "data": b""}


@pytest.mark.parametrize("kind", ["application/grpc+proto", "application/grpc;x=y"])
def test_other_forms_of_the_content_type(peer: Peer, kind: str) -> None:
    assert peer.ask(POST | GRPC | {"content-type": kind}, HELLO) == OK


@pytest.mark.parametrize(
    ("first", "answer"), [(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"HTTP/1.1 505 "), (b"\x16\x03\x01nonsense", b"")]
)
def test_what_is_not_http2(first: bytes, answer: bytes) -> None:
    peer = Peer()
    peer.feed(first)
    assert peer.transport.ended and not peer.transport.closed
    peer.feed(b"what was on its way")
    ((after_s, close),) = peer.timers
    close()
    assert after_s == 1 and peer.transport.aborted
    assert peer.transport.written[: len(answer)] == answer and bool(peer.transport.written) == bool(answer)


def test_a_call_that_ends_early_tells_the_client_to_send_no_more(peer: Peer) -> None:
    fields = POST | GRPC | {":path": "/t.T/Nothing"}
    assert peer.ask(fields, end=False) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "12",
        "grpc-message": "there%20is%20no%20method%20/t.T/Nothing",
        "grpc-accept-encoding": "identity",
        "reset": 0,
        "data": b"",
    }
    answer = peer.ask(POST | GRPC, HELLO + HELLO, b"x", end=False)
    assert (answer["grpc-status"], answer["reset"]) == ("13", 0)
    answer = peer.ask(POST | GRPC | {":path": "/t.T/Closed"}, HELLO, end=False)
    assert (answer["grpc-status"], answer["grpc-message"], answer["reset"]) == ("14", "closed", 0)


def test_the_limit_of_a_request_to_the_byte(peer: Peer) -> None:
    small = POST | GRPC | {":path": "/t.T/Small"}
    for size, status in ((10, "0"), (11, "8")):
        data = b"\0" + size.to_bytes(4, "big") + bytes(size)
        assert peer.ask(small, data)["grpc-status"] == status
        assert peer.ask(small, data[:7], data[7:])["grpc-status"] == status


def test_paths_that_are_in_no_table_are_not_confused(peer: Peer) -> None:
    """A client may mark fields as not to be kept; each request is then looked up by its text."""
    for path, data in (("/t.T/Echo", HELLO), ("/t.T/Small", HELLO), ("/t.T/Echo", b"\0\0\0\0\x0b" + bytes(11))):
        fields = [hpack.NeverIndexedHeaderTuple(*field) for field in (POST | GRPC | {":path": path}).items()]
        peer._stream += 2
        peer.client.send_headers(peer._stream, fields)
        peer.client.send_data(peer._stream, data, end_stream=True)
        trailers = [event for event in peer.events() if isinstance(event, h2.events.TrailersReceived)]
        assert [(b"grpc-status", b"0") in event.headers for event in trailers] == [True]


def talk_to(peer: Peer, *words: bytes) -> dict[str, Any]:
    data = b"".join(b"\0" + len(word).to_bytes(4, "big") + word for word in words)
    return peer.ask(POST | GRPC | {":path": "/t.T/Talk"}, data)


def test_a_conversation_that_has_ended_hears_nothing_more(peer: Peer) -> None:
    assert talk_to(peer, b"a", b"end", b"b")["data"] == b"\0\0\0\0\2aa"
    assert (peer.service.heard, peer.service.finished) == ([b"a", b"end"], 0)


@pytest.mark.parametrize("word", [b"refuse", b"fail"])
def test_a_conversation_that_is_refused_is_told_once(peer: Peer, word: bytes) -> None:
    assert talk_to(peer, word)["grpc-status"] in ("9", "13")
    assert peer.service.over == 1
    peer.connection.connection_lost(None)
    assert peer.service.over == 1


def test_a_call_that_was_answered_takes_no_second_answer_and_no_deadline(peer: Peer) -> None:
    peer.ask(POST | GRPC | {":path": "/t.T/Never", "grpc-timeout": "5S"}, HELLO)
    (call,) = peer.service.waiting
    call.answer(b"x")
    peer.soon.pop()()
    before = len(peer.transport.written), list(peer.soon), 1
    call.send(b"y")
    call.answer(b"y")
    call.end()
    assert (len(peer.transport.written), peer.soon, peer.cancelled) == before


def test_a_connection_that_stops_sends_what_the_client_has_no_window_for(peer: Peer) -> None:
    peer.events()
    peer.ask(POST | GRPC | {":path": "/t.T/Never"}, HELLO)
    (call,) = peer.service.waiting
    call.answer(bytes(100_000))
    peer.soon.pop()()
    peer.connection._server.is_stopping = True
    peer.connection.shut_down()
    assert not peer.transport.closed
    update = b"\0\0\4\x08\0" + bytes(4) + (1 << 20).to_bytes(4, "big")
    peer.feed(update + update[:8] + b"\1" + update[9:])
    assert peer.transport.closed


def test_answers_wait_while_the_client_does_not_read(peer: Peer) -> None:
    peer.events()
    peer.connection.pause_writing()
    assert peer.ask(POST | GRPC, HELLO) == {"data": b""}
    peer.connection.resume_writing()
    assert any(isinstance(event, h2.events.DataReceived) for event in peer.events())


def test_a_client_that_reads_nothing_is_not_read_either(peer: Peer) -> None:
    peer.events()
    peer.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
    peer.client.increment_flow_control_window(1 << 24)
    peer.events()
    peer.connection.pause_writing()
    peer.ask(POST | GRPC, echo_of(10_000))
    assert peer.transport.reads
    for _ in range(30):
        peer.ask(POST | GRPC, echo_of(10_000))
    assert not peer.transport.reads
    assert 256 * 1024 < peer.connection.unsent_bytes < 400_000
    peer.connection.resume_writing()
    assert peer.transport.reads and peer.connection.unsent_bytes == 0


def test_who_opens_no_window_gets_no_more_calls_when_much_waits(peer: Peer) -> None:
    server = peer.connection._server
    server.options = replace(server.options, unsent_bytes_max=100_000)
    peer.events()
    peer.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    peer.events()
    for _ in range(20):
        answer = peer.ask(POST | GRPC, echo_of(10_000))
    assert (answer["grpc-status"], answer["data"]) == ("8", b"")
    assert 100_000 < server.unsent_bytes == peer.connection.unsent_bytes < 120_000
    assert peer.connection.http2.stream_count == 10
    other = GrpcConnection(server)
    other.connection_made(cast(Any, Transport()))
    assert not other._excess()
    peer.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
    peer.client.increment_flow_control_window(1 << 24)
    peer.events()
    assert server.unsent_bytes == 0
    assert peer.ask(POST | GRPC, HELLO)["grpc-status"] == "0"


def test_what_waited_for_a_lost_client_is_forgotten(peer: Peer) -> None:
    peer.events()
    peer.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    peer.events()
    peer.ask(POST | GRPC, echo_of(10_000))
    peer.ask(POST | GRPC, echo_of(10_000)[:-5], end=False)
    server = peer.connection._server
    assert 10_005 <= server.unsent_bytes < 10_100 and server.held_bytes == 10_000
    peer.connection.connection_lost(None)
    assert (server.unsent_bytes, server.held_bytes) == (0, 0)


def test_who_holds_more_than_its_share_gives_way(peer: Peer) -> None:
    """A connection with small requests is not refused for the large one of another."""
    server = peer.connection._server
    server.options = replace(server.options, held_bytes_max=30_000)
    other = Peer()
    other.connection._server = server
    server.connections.add(other.connection)
    large = echo_of(25_000)
    assert peer.ask(POST | GRPC, large[:12_000], large[12_000:24_000], end=False) == {"data": b""}
    assert other.ask(POST | GRPC, echo_of(6_000)[:-1], end=False) == {"data": b""}
    assert (peer.connection.held_bytes, other.connection.held_bytes) == (0, 6_004)
    peer.soon.pop()()
    (refused,) = [event for event in peer.events() if isinstance(event, h2.events.ResponseReceived)]
    assert (b"grpc-status", b"8") in refused.headers
    answer = other.ask(POST | GRPC, large[:12_000], large[12_000:24_000], end=False)
    assert answer["grpc-status"] == "8" and other.connection.held_bytes == 6_004


def test_unsent_bytes_of_a_call_are_known(peer: Peer) -> None:
    peer.events()
    peer.ask(POST | GRPC | {":path": "/t.T/Never"}, HELLO)
    (call,) = peer.service.waiting
    call.send(bytes(100_000))
    assert call.unsent_bytes == 100_005 - 65_535  # the first window of a stream
    peer.client.increment_flow_control_window(1 << 20)
    peer.client.increment_flow_control_window(1 << 20, 1)
    peer.events()
    assert call.unsent_bytes == 0


def test_answers_of_one_turn_go_out_together(peer: Peer) -> None:
    peer.events()
    peer.soon.clear()
    for _ in range(2):
        peer.ask(POST | GRPC | {":path": "/t.T/Never"}, HELLO)
    for call in list(peer.service.waiting):
        call.answer(b"x")
    assert len(peer.soon) == 1 and not peer.transport.written
    peer.soon.pop()()
    assert peer.transport.written.count(b"\0\0\0\0\x01x") == 2


def test_who_opens_no_window_gets_no_more_answers_in_a_conversation(peer: Peer) -> None:
    server = peer.connection._server
    server.options = replace(server.options, unsent_bytes_max=100_000)
    peer.events()
    peer.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    peer.events()
    peer.ask(POST | GRPC | {":path": "/t.T/Talk"}, end=False)
    resets: list[h2.events.Event] = []
    for _ in range(20):
        if not resets:
            peer.client.send_data(1, echo_of(10_000))
        resets += [event for event in peer.events() if isinstance(event, h2.events.StreamReset)]
    assert len(resets) == 1 and peer.service.over == 1
    assert len(peer.service.heard) == 5, "each request has an answer of 20,000 bytes"
    assert (server.unsent_bytes, server.stream_count) == (0, 0)


def test_who_has_more_open_calls_than_its_share_gets_no_more_when_there_are_many(peer: Peer) -> None:
    server = peer.connection._server
    server.options = replace(server.options, streams_max=10)
    other = Peer()
    other.connection._server = server
    server.connections.add(other.connection)
    other.ask(POST | GRPC | {":path": "/t.T/Never"}, HELLO)
    for _ in range(12):
        answer = peer.ask(POST | GRPC | {":path": "/t.T/Never"}, HELLO)
    assert (answer["grpc-status"], answer["grpc-message"]) == ("8", "the%20client%20has%20too%20many%20open%20calls")
    assert len(peer.service.waiting) == server.stream_count == 11
    assert other.ask(POST | GRPC, HELLO)["grpc-status"] == "0"
    peer.connection.connection_lost(None)
    assert (server.stream_count, server.is_crowded) == (1, False)


def test_the_limit_of_what_waits_holds_within_a_read(peer: Peer) -> None:
    server = peer.connection._server
    server.options = replace(server.options, unsent_bytes_max=1000)
    peer.events()
    peer.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    peer.events()
    for number in range(1, 400, 2):
        peer.client.send_headers(number, list((POST | GRPC).items()))
        peer.client.send_data(number, echo_of(20), end_stream=True)
    peer.events()
    assert 1000 < server.unsent_bytes < 1000 + 32 * 33, "32 calls are handled at a time"


def test_what_is_known_of_table_entries_is_bounded(peer: Peer) -> None:
    """Each request has an id of its own, which pushes the path out of the table; it comes back with another number."""
    most = 0
    for number in range(700):
        assert peer.ask(POST | GRPC | {"x-mq-request-id": f"{number:0500}"}, HELLO)["grpc-status"] == "0"
        most = max(most, len(peer.connection._known))
    assert most == 64


def test_a_transport_that_says_that_it_has_ended_leaves_no_timer() -> None:
    peer = Peer()
    peer.connection.abort()
    peer.connection.connection_lost(None)
    assert peer.cancelled == len(peer.timers) == 1, "else the timer would keep the connection for a second"


def test_a_transport_that_does_not_say_that_it_has_ended_is_given_up() -> None:
    peer = Peer()
    connection, server = peer.connection, peer.connection._server
    connection.abort()
    assert peer.transport.aborted and connection in server.connections
    ((delay_s, give_up),) = peer.timers
    give_up()
    assert delay_s == 1 and not server.connections
    give_up()
    connection.connection_lost(None)  # it says so after all
    connection.abort()
    assert len(peer.timers) == 1 and server._count._count == 0
