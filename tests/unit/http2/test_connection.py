"""A connection: its beginning and end, requests and answers, windows in both directions, settings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hpack
import pytest
from tests.kernels import kernel
from tests.unit.http2.wire import (
    ACK,
    END_HEADERS,
    END_STREAM,
    LIMITS,
    PADDED,
    PRIORITY_FLAG,
    Event,
    Peer,
    code_of,
    data,
    frame,
    headers,
    modules,
    settings,
    split,
    word,
)

from rucola.http2.columns import EventKind
from rucola.http2.connection import Http2Connection
from rucola.http2.event_space import EventSpace
from rucola.http2.frames import PREFACE, WINDOW_MAX, ErrorCode, FrameType, Setting
from rucola.http2.hpack import encode_block
from rucola.http2.limits import Http2Limits
from rucola.http2.streams import StreamState

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = FrameType

ANSWER, TRAILERS = encode_block([(b":status", b"200")]), encode_block([(b"grpc-status", b"0")])


def sent_data(peer: Peer) -> dict[int, bytes]:
    """The bytes of DATA that went out, by stream."""
    found: dict[int, bytes] = {}
    for kind, _, stream, payload in peer.sent():
        if kind == DATA:
            found[stream] = found.get(stream, b"") + payload
    return found


def test_the_kernel_and_the_connection_share_no_name() -> None:
    """A compiled method would not be replaced by one of the same name, an interpreted one would."""
    kernel_names = set(vars(kernel("http2._exchange_cy", "interpreted").StreamExchange))
    kernel_names |= set(re.findall(r"self\.(\w+)\b.* = ", _kernel_source()))
    own = {name for name in vars(Http2Connection) if not name.startswith("__")}
    assert not own & kernel_names


def _kernel_source() -> str:
    path = kernel("http2._exchange_cy", "interpreted").__file__
    assert path is not None
    return Path(path).read_text()


# --- beginning and end


def test_preface_and_settings(form: str) -> None:
    peer = Peer(form, greeted=False)
    assert peer.sent() == []
    assert peer.feed(PREFACE[:-1]) == [] and peer.sent() == []
    assert peer.feed(PREFACE[-1:]) == []
    values = [(1, 4096), (3, 4096), (4, 1 << 20), (5, 16384), (6, 16384)]
    assert peer.sent() == [*split(settings(*values)), *split(word(WINDOW, 0, (4 << 20) - 65535))]
    assert peer.feed(settings()) == []
    assert peer.sent() == split(frame(SETTINGS, b"", ACK))


@pytest.mark.parametrize("text", [b"GET / HTTP/1.1\r\n\r\n", b"P0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r", b"\0"])
def test_what_is_not_http2(form: str, text: bytes) -> None:
    peer = Peer(form, greeted=False)
    assert peer.feed(text) == [Event(EventKind.NOT_HTTP2, 0, length=len(text))]
    assert peer.connection.is_over and peer.sent() == []
    assert peer.connection.source[: len(text)] == text
    assert peer.feed(b"more") == []


def test_what_is_not_http2_byte_by_byte(form: str) -> None:
    peer = Peer(form, greeted=False)
    assert [peer.feed(bytes((byte,))) for byte in b"PRI /"] == [
        [],
        [],
        [],
        [],
        [Event(EventKind.NOT_HTTP2, 0, length=5)],
    ]


@pytest.mark.parametrize("first", [frame(PING, bytes(8)), frame(SETTINGS, b"", ACK), frame(99), frame(CONTINUATION)])
def test_settings_come_first(form: str, first: bytes) -> None:
    peer = Peer(form, greeted=False)
    assert [event.code for event in peer.feed(PREFACE + first)] == [ErrorCode.PROTOCOL_ERROR]
    assert code_of(peer.sent(), GOAWAY) == ErrorCode.PROTOCOL_ERROR


def test_goaway_of_the_peer(form: str) -> None:
    peer = Peer(form)
    (event,) = peer.feed(frame(GOAWAY, b"\0\0\0\7\0\0\0\2bye"))
    assert event == Event(EventKind.GOAWAY, 0, code=ErrorCode.INTERNAL_ERROR, length=7)
    assert not peer.connection.is_over


def test_shut_down_finishes_what_was_begun(form: str) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1) + peer.request(3))
    peer.connection.shut_down()
    peer.connection.shut_down()
    assert peer.sent() == split(frame(GOAWAY, b"\0\0\0\3" + bytes(4)))
    assert peer.feed(peer.request(5, more=[("x-id", "5")]) + data(5, b"ignored", True)) == []
    assert peer.feed(data(1, b"more", True)) == [Event(EventKind.DATA, 1, True, data=b"more")]
    peer.connection.send_headers(1, ANSWER, True)
    peer.connection.send_headers(3, ANSWER, True)
    assert peer.connection.stream_count == 1
    peer.connection.close(ErrorCode.NO_ERROR, b"bye")
    assert peer.sent()[-1][3] == b"\0\0\0\3" + bytes(4) + b"bye"  # the last stream does not grow


def test_nothing_is_sent_after_the_end(form: str) -> None:
    peer = Peer(form, Http2Limits(connection_window_bytes=65535))
    peer.feed(peer.request(1) + data(1, bytes(16384)) * 3)
    peer.connection.close(ErrorCode.INTERNAL_ERROR)
    assert peer.sent() == split(frame(GOAWAY, b"\0\0\0\1\0\0\0\2"))
    peer.connection.send_headers(1, ANSWER)
    peer.connection.send_data(1, b"abc", True)
    peer.connection.reset(1, 8)
    peer.connection.acknowledge(1, 3 * 16384)
    peer.connection.shut_down()
    peer.connection.close(ErrorCode.NO_ERROR)
    assert peer.sent() == [] and peer.feed(peer.request(3)) == []


# --- requests and answers


def test_a_call(form: str) -> None:
    peer = Peer(form)
    block = peer.encoder.encode([(":method", "POST"), (":scheme", "http"), (":path", "/send"), ("x-id", "17")])
    events = peer.feed(headers(1, block) + data(1, b"abc", True))
    assert events == [
        Event(EventKind.REQUEST, 1, fields=(b"POST", b"/send", b"17", None)),
        Event(EventKind.DATA, 1, True, data=b"abc"),
    ]
    peer.connection.send_headers(1, ANSWER)
    peer.connection.send_data(1, b"answer")
    assert peer.connection.stream_count == 1
    peer.connection.send_headers(1, TRAILERS, True)
    assert peer.connection.stream_count == 0
    assert peer.sent() == [
        (HEADERS, END_HEADERS, 1, b"\x20" + ANSWER), (DATA, 0, 1, b"answer"),
        (HEADERS, END_HEADERS | END_STREAM, 1, TRAILERS),
    ]  # fmt: skip
    peer.connection.send_data(1, b"too late")
    assert peer.sent() == []


def test_only_the_first_block_says_that_no_table_is_used(form: str) -> None:
    peer, decoder = Peer(form), hpack.Decoder()
    peer.feed(settings((Setting.HEADER_TABLE_SIZE, 0)) + peer.request(1, True) + peer.request(3, True))
    peer.sent()
    decoder.max_allowed_table_size = 0
    for stream in (1, 3):
        peer.connection.send_headers(stream, ANSWER, True)
        ((_, _, _, block),) = peer.sent()
        assert block == (b"\x20" if stream == 1 else b"") + ANSWER
        assert decoder.decode(block) == [(":status", "200")]


def test_answers_in_pieces(form: str) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1, True))
    block = encode_block([(b"a", b"b" * 40_000)])
    peer.connection.send_headers(1, block)
    peer.connection.send_data(1, bytes(40_000), True)
    sent = peer.sent()
    assert [(kind, flags, len(payload)) for kind, flags, _, payload in sent] == [
        (HEADERS, 0, 16384), (CONTINUATION, 0, 16384), (CONTINUATION, END_HEADERS, len(block) + 1 - 32768),
        (DATA, 0, 16384), (DATA, 0, 16384), (DATA, END_STREAM, 40_000 - 32768),
    ]  # fmt: skip
    assert hpack.Decoder(1 << 20).decode(b"".join(payload for *_, payload in sent[:3])) == [("a", "b" * 40_000)]


def test_an_answer_ends_once(form: str) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1))
    peer.connection.send_headers(1, ANSWER, True)
    for send in (peer.connection.send_headers, peer.connection.send_data):
        with pytest.raises(ValueError):
            send(1, b"")


def test_a_block_in_many_frames(form: str) -> None:
    peer = Peer(form)
    block = peer.encoder.encode([(":method", "GET"), (":scheme", "http"), (":path", "/"), ("x-id", "1")])
    stream = headers(1, block[:1], True, 0) + frame(CONTINUATION, b"", 0, 1)
    stream += frame(CONTINUATION, block[1:4], 0, 1) + frame(CONTINUATION, block[4:], END_HEADERS, 1)
    assert peer.feed(stream) == [Event(EventKind.REQUEST, 1, True, fields=(b"GET", b"/", b"1", None))]
    assert peer.feed(data(1)) == [Event(EventKind.RESET, 1, code=ErrorCode.STREAM_CLOSED)]


@pytest.mark.parametrize(
    "between",
    [data(1, b"x"), headers(1, b""), frame(PING, bytes(8)), settings(), frame(99), frame(CONTINUATION, b"", 4, 3)],
)
def test_nothing_comes_between_the_frames_of_a_block(form: str, between: bytes) -> None:
    peer = Peer(form)
    events = peer.feed(peer.request(1, flags=0) + between)
    assert events == [Event(EventKind.CLOSED, 0, code=ErrorCode.PROTOCOL_ERROR)]


def test_trailers_in_many_frames(form: str) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1) + data(1, b"abc"))
    events = peer.feed(headers(1, b"\x00\x04x-id", True, 0) + frame(CONTINUATION, b"\x019", END_HEADERS, 1))
    assert events == [Event(EventKind.TRAILERS, 1, True, fields=(None, None, b"9", None))]


@pytest.mark.parametrize("flags", [0, END_HEADERS])
def test_a_stream_that_depends_on_itself(form: str, flags: int) -> None:
    peer = Peer(form)
    block = peer.encoder.encode([(":method", "GET"), (":scheme", "http"), (":path", "/"), ("x-id", "1")])
    stream = headers(1, b"\0\0\0\1\0" + block, True, PRIORITY_FLAG | flags)
    if not flags:
        stream += frame(CONTINUATION, b"", END_HEADERS, 1)
    assert peer.feed(stream) == []
    assert code_of(peer.sent(), RST) == ErrorCode.PROTOCOL_ERROR
    assert peer.feed(headers(3, peer.encoder.encode([(":method", "GET"), (":scheme", "http"), (":path", "/")])))


def test_priority_that_is_wrong(form: str) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1))
    assert peer.feed(frame(PRIORITY, b"\0\0\0\1\0", 0, 1)) == [Event(EventKind.RESET, 1, code=ErrorCode.PROTOCOL_ERROR)]
    assert peer.feed(frame(PRIORITY, b"\0\0\0\1", 0, 3)) == [
        Event(EventKind.CLOSED, 0, code=ErrorCode.FRAME_SIZE_ERROR)
    ]


@pytest.mark.parametrize(
    ("length", "frames", "is_right"),
    [
        ("3", [data(1, b"abc", True)], True),
        ("3", [data(1, b"a"), data(1, b"bc"), data(1, b"", True)], True),
        ("3", [data(1, b"abc"), headers(1, b"", True)], True),
        ("3", [data(1, b"ab", True)], False),
        ("3", [data(1, b"abcd")], False),
        ("3", [data(1, b"abc"), data(1, b"d")], False),
        ("3", [data(1, b"ab"), headers(1, b"", True)], False),
        ("0", [data(1, b"", True)], True),
        ("0", [data(1, b"a")], False),
    ],
)
def test_content_length_and_data(form: str, length: str, frames: list[bytes], is_right: bool) -> None:
    peer = Peer(form)
    events = peer.feed(peer.request(1, more=[("content-length", length)]) + b"".join(frames))
    assert events[0].fields[3] == length.encode()
    assert (events[-1] == Event(EventKind.RESET, 1, code=ErrorCode.PROTOCOL_ERROR)) is not is_right
    assert events[-1].is_end is is_right
    peer.connection.acknowledge(1, peer.connection.held_bytes)
    assert peer.connection.receive_window + peer.connection.unannounced == LIMITS.connection_window_bytes


def test_content_length_without_data(form: str) -> None:
    peer = Peer(form)
    assert peer.feed(peer.request(1, True, [("content-length", "1")])) == []
    assert code_of(peer.sent(), RST) == ErrorCode.PROTOCOL_ERROR
    assert len(peer.feed(peer.request(3, True, [("content-length", "0")]))) == 1


@pytest.mark.parametrize("block", [b"", b"\x82\x86\x84\x40\x01A\x01b", b"\x82\x86\x84\x00\x00\x01b"])
def test_a_malformed_request_is_reset(form: str, block: bytes) -> None:
    peer = Peer(form)
    assert peer.feed(headers(1, block)) == []
    assert peer.sent() == split(word(RST, 1, ErrorCode.PROTOCOL_ERROR))
    assert peer.feed(data(1, b"ignored", True)) == [] and peer.sent() == []
    assert peer.connection.stream_count == 0


def test_malformed_trailers_reset_the_stream(form: str) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1))
    assert peer.feed(headers(1, b"\x84", True)) == [Event(EventKind.RESET, 1, code=ErrorCode.PROTOCOL_ERROR)]
    assert code_of(peer.sent(), RST) == ErrorCode.PROTOCOL_ERROR


def test_a_block_that_is_no_hpack_ends_the_connection(form: str) -> None:
    peer = Peer(form)
    assert peer.feed(headers(1, b"\x80")) == [Event(EventKind.CLOSED, 0, code=ErrorCode.COMPRESSION_ERROR)]


def test_fields_that_are_too_large_are_answered(form: str) -> None:
    peer = Peer(form)
    many = [(f"x-{number}", "v" * 1000) for number in range(17)]
    assert peer.feed(peer.request(1, more=many)) == []
    decoder = hpack.Decoder()
    (_, flags, _, block), (kind, _, _, code) = peer.sent()
    assert decoder.decode(block) == [(":status", "431")] and flags & END_STREAM
    assert (kind, code) == (RST, bytes(4))
    (event,) = peer.feed(peer.request(3, more=[("x-id", "3")]))  # compression is in step
    assert event.fields == (b"POST", b"/send", b"3", None)
    peer.connection.send_headers(3, ANSWER, True)
    assert decoder.decode(peer.sent()[0][3]) == [(":status", "200")]


def test_streams_are_bounded(form: str) -> None:
    peer = Peer(form, Http2Limits(streams_max=3))
    stream = b"".join(peer.request(number, True) for number in (1, 3, 5, 7, 9))
    assert [event.stream for event in peer.feed(stream)] == [1, 3, 5]
    assert peer.sent() == split(word(RST, 7, ErrorCode.REFUSED_STREAM) + word(RST, 9, ErrorCode.REFUSED_STREAM))
    peer.connection.send_headers(3, ANSWER, True)
    assert [event.stream for event in peer.feed(peer.request(11, True))] == [11]


def test_reset_by_the_owner_drops_what_waits(form: str) -> None:
    peer = Peer(form)
    peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, 5)) + peer.request(1))
    peer.connection.send_data(1, b"0123456789")
    assert peer.connection.queued_bytes(1) == peer.connection.queued_bytes() == 5
    peer.connection.reset(1, ErrorCode.CANCEL)
    peer.connection.reset(1, ErrorCode.CANCEL)
    assert peer.connection.queued_bytes(1) == peer.connection.queued_bytes() == 0
    assert peer.sent()[1:] == split(data(1, b"01234") + word(RST, 1, ErrorCode.CANCEL))
    assert peer.connection.stream_count == 0 and peer.feed(word(WINDOW, 1, 10)) == []


def test_reset_by_the_peer_drops_what_waits(form: str) -> None:
    peer = Peer(form)
    peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, 5)) + peer.request(1) + peer.request(3))
    peer.connection.send_data(1, b"0123456789")
    peer.connection.send_data(3, b"0123456789")
    assert peer.feed(word(RST, 1, ErrorCode.CANCEL)) == [Event(EventKind.RESET, 1, code=ErrorCode.CANCEL)]
    assert peer.connection.queued_bytes() == 5


def test_only_the_last_closed_streams_are_remembered(form: str) -> None:
    peer = Peer(form)
    number = 1
    for number in range(1, 2 * 1100, 2):
        peer.feed(peer.request(number, True))
        peer.connection.reset(number, ErrorCode.CANCEL)
    assert peer.connection._state(number) == StreamState.RESET_BY_US
    assert peer.connection._state(1) == StreamState.FORGOTTEN
    peer.sent()
    assert peer.feed(data(number - 1000, b"x") + data(1, b"x")) == []
    assert peer.sent() == split(word(RST, 1, ErrorCode.STREAM_CLOSED))


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("read", (-1, 4)), ("read", (3, 2)), ("read", (0, 11)), ("handle", (-1,)), ("handle", (2,)),
        ("block", (-1, 0, 1)), ("block", (10**6, 0, 1)), ("block", (0, 0, 11)), ("block", (0, 1, 0)),
    ],
)  # fmt: skip
def test_positions_are_checked(form: str, method: str, arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        getattr(Peer(form).connection, method)(bytearray(10), *arguments)


# --- windows


def test_answers_wait_for_the_window_of_their_stream(form: str) -> None:
    peer = Peer(form)
    peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, 10)) + peer.request(1, True))
    peer.sent()
    peer.connection.send_headers(1, ANSWER)
    peer.connection.send_data(1, b"0123456789abcdef")
    peer.connection.send_data(1, b"")
    peer.connection.send_headers(1, TRAILERS, True)
    assert [kind for kind, *_ in peer.sent()] == [HEADERS, DATA]
    assert peer.connection.queued_bytes(1) == 6 + len(TRAILERS)
    assert peer.feed(word(WINDOW, 1, 5)) == []
    assert peer.sent() == split(data(1, b"abcde"))
    assert peer.feed(word(WINDOW, 1, 1)) == [Event(EventKind.WINDOW, 1, True)]
    assert peer.sent() == split(data(1, b"f") + data(1, b"") + headers(1, TRAILERS, True))
    assert peer.connection.stream_count == 0 and peer.connection.queued_bytes() == 0


def test_a_stream_may_go_on_after_its_queue_is_empty(form: str) -> None:
    peer = Peer(form)
    peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, 1)) + peer.request(1, True))
    peer.connection.send_data(1, b"ab")
    assert peer.feed(word(WINDOW, 1, 5)) == [Event(EventKind.WINDOW, 1)]
    peer.connection.send_data(1, b"cd", True)
    assert sent_data(peer) == {1: b"abcd"}


def test_streams_share_the_window_of_the_connection(form: str) -> None:
    """One frame of each in turn."""
    peer = Peer(form)
    peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, 200_000)) + b"".join(peer.request(n, True) for n in (1, 3, 5)))
    for stream in (1, 3, 5):
        peer.connection.send_data(stream, bytes(50_000), True)
    assert {stream: len(payload) for stream, payload in sent_data(peer).items()} == {1: 50_000, 3: 15_535}
    assert peer.feed(word(WINDOW, 0, 40_000)) == []
    assert [(stream, len(payload)) for _, _, stream, payload in peer.sent()] == [(3, 16384), (5, 16384), (3, 7232)]
    assert peer.connection.window == 0
    events = peer.feed(word(WINDOW, 0, 100_000))
    assert {(event.kind, event.stream, event.is_end) for event in events} == {
        (EventKind.WINDOW, 3, True), (EventKind.WINDOW, 5, True)
    }  # fmt: skip
    assert {stream: len(payload) for stream, payload in sent_data(peer).items()} == {3: 10_849, 5: 33_616}
    assert peer.connection.stream_count == peer.connection.queued_bytes() == 0


def test_many_streams_drain_at_once(form: str) -> None:
    """More than fit into the rows of one read."""
    peer = Peer(form)
    numbers = range(1, 601, 2)
    peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, 0)) + b"".join(peer.request(number, True) for number in numbers))
    for number in numbers:
        peer.connection.send_data(number, b"x", True)
    events = peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, 1)))
    assert [event for event in events if event.kind == EventKind.WINDOW] == [
        Event(EventKind.WINDOW, number, True) for number in numbers
    ]
    assert peer.connection.stream_count == 0


def test_a_window_becomes_negative(form: str) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1, True))
    peer.connection.send_data(1, bytes(60_000))
    peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, 10_000)))
    assert peer.connection.stream(1).send_window == -50_000
    peer.connection.send_data(1, b"x", True)
    peer.sent()
    peer.feed(word(WINDOW, 1, 50_000))
    assert peer.sent() == []
    peer.feed(word(WINDOW, 1, 1))
    assert peer.sent() == split(data(1, b"x", True))


def test_settings_are_acknowledged_before_what_they_let_out(form: str) -> None:
    """Until the peer sees the acknowledgement, its windows are the old ones."""
    peer = Peer(form)
    peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, 0)) + peer.request(1, True))
    peer.connection.send_data(1, b"abc", True)
    peer.sent()
    peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, 10)))
    assert peer.sent() == split(frame(FrameType.SETTINGS, flags=ACK) + data(1, b"abc", True))


def test_a_waiting_stream_whose_window_shrinks(form: str) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1, True) + peer.request(3, True))
    peer.connection.send_data(1, bytes(65535))
    peer.connection.send_data(3, b"abc", True)
    peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, 0)) + word(WINDOW, 0, 100))
    assert 3 not in sent_data(peer)
    peer.feed(word(WINDOW, 3, 3))
    assert sent_data(peer) == {3: b"abc"}


@pytest.mark.parametrize("stream", [0, 1])
def test_a_window_does_not_overflow(form: str, stream: int) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1, True))
    assert peer.feed(word(WINDOW, stream, WINDOW_MAX - 65535)) == []
    (event,) = peer.feed(word(WINDOW, stream, 1))
    assert event.code == ErrorCode.FLOW_CONTROL_ERROR
    assert event.kind == (EventKind.RESET if stream else EventKind.CLOSED)


def test_settings_do_not_overflow_a_window(form: str) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1, True) + word(WINDOW, 1, 10))
    assert peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, WINDOW_MAX - 10))) == []
    (event,) = peer.feed(settings((Setting.INITIAL_WINDOW_SIZE, WINDOW_MAX - 9)))
    assert event == Event(EventKind.CLOSED, 0, code=ErrorCode.FLOW_CONTROL_ERROR)


@pytest.mark.parametrize("stream", [0, 1])
def test_an_increment_of_zero(form: str, stream: int) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1, True))
    (event,) = peer.feed(word(WINDOW, stream, 0))
    assert event.code == ErrorCode.PROTOCOL_ERROR
    assert event.kind == (EventKind.RESET if stream else EventKind.CLOSED)


def test_the_owner_opens_the_windows(form: str) -> None:
    peer = Peer(form, Http2Limits(stream_window_bytes=70_000, connection_window_bytes=100_000))
    peer.feed(peer.request(1))
    peer.feed(b"".join(data(1, bytes(10_000)) for _ in range(7)))
    connection = peer.connection
    assert connection.held_bytes == 70_000 and connection.stream(1).receive_window == 0
    connection.acknowledge(1, 34_999)
    assert peer.sent() == []
    connection.acknowledge(1, 1)
    assert peer.sent() == split(word(WINDOW, 1, 35_000))
    connection.acknowledge(1, 15_000)
    assert peer.sent() == split(word(WINDOW, 0, 50_000))
    assert (connection.receive_window, connection.stream(1).receive_window) == (80_000, 35_000)
    with pytest.raises(ValueError):
        connection.acknowledge(1, 20_001)
    with pytest.raises(ValueError):
        connection.acknowledge(1, -1)
    connection.acknowledge(99, 20_000)
    assert connection.held_bytes == 0


def test_a_window_may_be_used_up(form: str) -> None:
    peer = Peer(form, Http2Limits(stream_window_bytes=70_000, connection_window_bytes=70_000))
    events = peer.feed(peer.request(1) + data(1, bytes(10_000)) * 7)
    assert events[-1].kind == EventKind.DATA and peer.connection.receive_window == 0


def test_a_reset_stream_no_longer_waits_for_the_connection(form: str) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1, True) + peer.request(3, True) + peer.request(5, True))
    peer.connection.send_data(1, bytes(65535))
    for stream in (3, 5):
        peer.connection.send_data(stream, b"abc", True)
    peer.connection.reset(3, ErrorCode.CANCEL)
    peer.feed(word(RST, 5, ErrorCode.CANCEL))
    peer.sent()
    assert peer.feed(word(WINDOW, 0, 100)) == [] and peer.sent() == []


def test_the_windows_are_kept(form: str) -> None:
    limits = Http2Limits(stream_window_bytes=70_000, connection_window_bytes=100_000)
    peer = Peer(form, limits)
    peer.feed(peer.request(1) + peer.request(3))
    peer.feed(b"".join(data(1, bytes(10_000)) for _ in range(7)))
    events = peer.feed(data(1, b"x"))
    assert events == [Event(EventKind.RESET, 1, code=ErrorCode.FLOW_CONTROL_ERROR)]
    peer.feed(b"".join(data(3, bytes(10_000)) for _ in range(2)))
    assert peer.connection.receive_window == 9_999
    events = peer.feed(data(3, bytes(10_000)))
    assert events == [Event(EventKind.CLOSED, 0, code=ErrorCode.FLOW_CONTROL_ERROR)]


def test_padding_is_acknowledged_by_the_connection(form: str) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1))
    for _ in range(8_000):
        assert peer.feed(frame(DATA, b"\xff" + bytes(255), PADDED, 1)) == [Event(EventKind.DATA, 1)]
        peer.now_ms += 100
    updates = [(stream, int.from_bytes(payload, "big")) for kind, _, stream, payload in peer.sent() if kind == WINDOW]
    assert updates == [(1, 1 << 19)] * 3
    connection = peer.connection
    assert connection.held_bytes == 0
    assert connection.receive_window + connection.unannounced == LIMITS.connection_window_bytes
    assert connection.stream(1).receive_window + connection.stream(1).unannounced == LIMITS.stream_window_bytes


def test_an_ended_stream_gets_no_window(form: str) -> None:
    peer = Peer(form, Http2Limits(stream_window_bytes=65535, connection_window_bytes=1 << 20))
    peer.feed(peer.request(1) + b"".join(data(1, bytes(16_000), number == 3) for number in range(4)))
    peer.connection.acknowledge(1, 64_000)
    assert peer.sent() == []


# --- settings, ping, and the rest


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        (Setting.ENABLE_PUSH, 0, None),
        (Setting.ENABLE_PUSH, 1, None),
        (Setting.ENABLE_PUSH, 2, ErrorCode.PROTOCOL_ERROR),
        (Setting.INITIAL_WINDOW_SIZE, WINDOW_MAX, None),
        (Setting.INITIAL_WINDOW_SIZE, WINDOW_MAX + 1, ErrorCode.FLOW_CONTROL_ERROR),
        (Setting.MAX_FRAME_SIZE, 16383, ErrorCode.PROTOCOL_ERROR),
        (Setting.MAX_FRAME_SIZE, 16384, None),
        (Setting.MAX_FRAME_SIZE, (1 << 24) - 1, None),
        (Setting.MAX_FRAME_SIZE, 1 << 24, ErrorCode.PROTOCOL_ERROR),
        (Setting.HEADER_TABLE_SIZE, 0xFFFFFFFF, None),
        (Setting.MAX_CONCURRENT_STREAMS, 0, None),
        (Setting.MAX_HEADER_LIST_SIZE, 0, None),
        (99, 0xFFFFFFFF, None),
    ],
)
def test_values_of_settings(form: str, name: int, value: int, code: int | None) -> None:
    peer = Peer(form)
    events = peer.feed(settings((name, value)))
    assert [event.code for event in events] == ([] if code is None else [code])
    assert ((SETTINGS, ACK, 0, b"") in peer.sent()) is (code is None)


def test_larger_frames_if_the_peer_takes_them(form: str) -> None:
    peer = Peer(form)
    peer.feed(settings((Setting.MAX_FRAME_SIZE, 20_000)) + peer.request(1, True))
    peer.connection.send_data(1, bytes(20_000), True)
    assert [len(payload) for kind, *_, payload in peer.sent() if kind == DATA] == [20_000]


def test_larger_frames_if_the_limits_allow_them(form: str) -> None:
    peer = Peer(form, Http2Limits(frame_bytes_max=100_000))
    (_, event) = peer.feed(peer.request(1) + data(1, bytes(100_000)))
    assert len(event.data) == 100_000
    assert peer.feed(data(1, bytes(100_001)))[0].code == ErrorCode.FRAME_SIZE_ERROR


def test_ping(form: str) -> None:
    peer = Peer(form)
    assert peer.feed(frame(PING, b"12345678") + frame(PING, b"abcdefgh", ACK)) == []
    assert peer.sent() == split(frame(PING, b"12345678", ACK))


def test_settings_that_are_acknowledged_bound_the_table(form: str) -> None:
    peer = Peer(form, Http2Limits(table_bytes=0))
    assert len(peer.feed(peer.request(1, True))) == 1
    peer.feed(frame(SETTINGS, b"", ACK))
    assert peer.feed(peer.request(3, True)) == [Event(EventKind.CLOSED, 0, code=ErrorCode.COMPRESSION_ERROR)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"frame_bytes_max": 16383}, {"frame_bytes_max": 1 << 24}, {"stream_window_bytes": -1},
        {"stream_window_bytes": 1 << 31}, {"connection_window_bytes": 65534}, {"connection_window_bytes": 1 << 31},
    ],
)  # fmt: skip
def test_limits_that_cannot_be_announced(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Http2Limits(**arguments)


def test_connections_share_a_space(form: str) -> None:
    first, second = Peer(form), Peer(form)
    shared = modules(form)["connection"].Http2Connection(first.space, LIMITS)
    second.space, second.connection = first.space, shared
    second.feed(PREFACE + settings())
    for number in (1, 3, 5):
        for peer in (first, second):
            (event,) = peer.feed(peer.request(number, True, [("x-id", str(number))]))
            assert event.fields == (b"POST", b"/send", str(number).encode(), None)


@pytest.mark.parametrize("wanted", [[b"a", b"b", b"a"], [b"X-Id"]])
def test_wanted_names_are_checked(wanted: list[bytes]) -> None:
    with pytest.raises(ValueError):
        EventSpace(wanted, LIMITS)


def test_text_of_many_requests_is_handed_over_in_parts(form: str) -> None:
    """Each request refers to a value of 4,000 bytes: the text of the space is full before the read is handled."""
    peer = Peer(form)
    peer.feed(peer.request(1, True, [("x-id", "v" * 3900)]))
    stream = b"".join(peer.request(number, True, [("x-id", "v" * 3900)]) for number in range(3, 121, 2))
    assert len(stream) < 2000
    events = peer.feed(stream)
    assert [event.stream for event in events] == list(range(3, 121, 2))
    assert all(event.fields[2] == b"v" * 3900 for event in events)


def test_an_idle_stream_costs_little(form: str) -> None:
    import tracemalloc

    peer = Peer(form)
    stream = b"".join(peer.request(number) for number in range(1, 2001, 2))
    peer.feed(stream[:1])
    tracemalloc.start()
    try:
        peer.feed(stream[1:])
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peer.connection.stream_count == 1000
    assert size < 1000 * 1024


def test_the_owner_sees_how_much_can_go_out(form: str) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1, True))
    connection: Any = peer.connection
    assert connection.ready_bytes == 0
    connection.send_data(1, bytes(10_000))
    assert connection.ready_bytes == 10_009 == len(connection.data_to_send())
    assert connection.ready_bytes == 0


def test_what_is_not_complete_is_known(form: str) -> None:
    peer = Peer(form)
    connection = peer.connection

    def unended() -> list[int]:
        found = [stream.number for stream in connection.unended_streams()]
        assert connection.unended_count == len(found)
        return found

    peer.feed(b"".join(peer.request(number) for number in (1, 3, 5, 7, 9)) + peer.request(11, end=True))
    assert unended() == [1, 3, 5, 7, 9]
    peer.feed(data(1, b"x", end=True))
    peer.feed(word(FrameType.RST_STREAM, 3, ErrorCode.CANCEL))
    connection.reset(5, ErrorCode.CANCEL)
    connection.send_headers(7, ANSWER, True)
    assert unended() == [7, 9]
    peer.feed(data(7, end=True) + word(FrameType.WINDOW_UPDATE, 9, 0))
    assert unended() == []
    connection.send_headers(11, ANSWER)
    connection.send_data(11, bytes(70_000))
    assert [(one.number, one.drained_bytes) for one in connection.queued_streams()] == [(11, 65_535)]
    peer.feed(word(FrameType.WINDOW_UPDATE, 0, 10_000) + word(FrameType.WINDOW_UPDATE, 11, 10_000))
    assert connection.queued_streams() == [] and connection.drained_bytes == 70_000


def test_the_bytes_of_a_frame_or_block_that_is_not_complete(form: str) -> None:
    peer = Peer(form, greeted=False)
    assert not peer.connection.is_settled
    peer.feed(PREFACE)
    assert not peer.connection.is_settled
    peer.feed(frame(SETTINGS))
    assert peer.connection.is_settled and peer.connection.begun_bytes == 0
    ping = frame(PING, bytes(8))
    peer.feed(ping[:-1])
    assert peer.connection.begun_bytes == len(ping) - 1
    peer.feed(ping[-1:] + headers(1, b"\x83", flags=0))
    assert peer.connection.begun_bytes == 2
    peer.feed(frame(CONTINUATION, b"\x86\x84", END_HEADERS, 1))
    assert peer.connection.begun_bytes == 0
