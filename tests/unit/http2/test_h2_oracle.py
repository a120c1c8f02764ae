"""Random frames, read by the library ``h2`` too: the same events, the same windows, refusals at the same frame.

A wrong frame is refused by both; whether this ends its stream or the connection is left open, as ``h2`` ends the
connection where RFC 9113 asks for less. Where only one refuses is in ``is_allowed``. Never compared are frames after
GOAWAY of the client, which ``h2`` refuses altogether, and a body that is shorter than its content-length because
HEADERS end the stream, which ``h2`` does not notice.
"""

from __future__ import annotations

import random

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
from tests.sizes import size
from tests.unit.http2.wire import (
    ACK,
    END_HEADERS,
    PADDED,
    PRIORITY_FLAG,
    REQUEST,
    Peer,
    data,
    frame,
    headers,
    settings,
    word,
)

from rucola.http2.columns import EventKind
from rucola.http2.frames import PREFACE, ErrorCode, FrameType, Setting
from rucola.http2.hpack import encode_block
from rucola.http2.limits import BurstRate, Http2Limits
from rucola.http2.streams import StreamState

SEQUENCES = size(200, 100_000)
FRAMES = 40
MANY = BurstRate(1 << 30, 0)
LIMITS = Http2Limits(
    streams_max=100, list_bytes_max=65536,
    quick_resets=MANY, forced_resets=MANY, control_frames=MANY, small_frames=MANY,
)  # fmt: skip
ANSWER = encode_block([(b":status", b"200")])
WRONG_FIELDS = (
    [(":method", "GET")],
    [*REQUEST, (":path", "/again")],
    [*REQUEST, ("x", "1"), (":authority", "late")],
    [*REQUEST, (":status", "200")],
    [*REQUEST, ("connection", "close")],
    [*REQUEST, ("te", "gzip")],
    [*REQUEST, ("Upper", "1")],
    [*REQUEST[:2], (":path", "")],
    [*REQUEST, ("x", " a")],
    [*REQUEST, ("content-length", "x")],
    [],
)
Seen = tuple[str, int, bytes | int]


class Client:
    """Makes random frames; most of them are right at their place, as far as it knows."""

    def __init__(self, seed: int, peer: Peer) -> None:
        self.rng, self.peer = random.Random(seed), peer
        self.last = -1
        self.open: set[int] = set()
        self.promised: set[int] = set()  # with content-length

    def stream(self) -> int:
        """A stream: mostly one that the client has not ended."""
        if self.open and self.rng.random() < 0.98:
            return self.rng.choice(sorted(self.open))
        return self.rng.randrange(self.last + 6)

    def next(self) -> bytes:
        """The next frame, or the frames of a block."""
        if not self.open and self.rng.random() < 0.98:
            return self.request()
        kinds = (self.request, self.data, self.data, self.control, self.control, self.trailers, self.odd)
        return self.rng.choices(kinds, (30, 30, 10, 20, 10, 6, 1))[0]()

    def request(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.99:
            self.last += 2 * rng.choice((1, 1, 1, 2))
            number = self.last
        else:
            number = rng.randrange(self.last + 6)
        end = rng.random() < 0.3
        fields = [*REQUEST, ("x-id", str(rng.randrange(40)))]
        if rng.random() < 0.1 and not end:
            fields.append(("content-length", str(rng.choice((0, 3, 6)))))
            self.promised.add(number)
        if rng.random() < 0.01:
            fields = rng.choice(WRONG_FIELDS)
        if not end and number == self.last:
            self.open.add(number)
        block = self.peer.encoder.encode(fields)
        if rng.random() < 0.1 and len(block) > 4:
            return (
                headers(number, block[:3], end, 0)
                + frame(FrameType.CONTINUATION, block[3:4], 0, number)
                + frame(FrameType.CONTINUATION, block[4:], END_HEADERS, number)
            )
        if rng.random() < 0.1:
            place = rng.choice((0, 0, 0, 0, 0, 0, number, number + 2)).to_bytes(4, "big")
            return headers(number, b"\2" + place + b"\x07" + block + b"\0\0", end, END_HEADERS | PADDED | PRIORITY_FLAG)
        return headers(number, block, end)

    def data(self) -> bytes:
        rng, number = self.rng, self.stream()
        end = rng.random() < 0.3
        if end:
            self.open.discard(number)
        payload = bytes(rng.choice((0, 3, 3, 6, 100, 16384, rng.randrange(16385))))
        if rng.random() < 0.1 and len(payload) < 16000:
            return frame(FrameType.DATA, b"\4" + payload + bytes(4), PADDED | end, number)
        return data(number, payload, end)

    def trailers(self) -> bytes:
        number, end = self.stream(), self.rng.random() < 0.95
        if number in self.promised:
            return settings()
        if end:
            self.open.discard(number)
        fields = [("x-id", "1")] if self.rng.random() < 0.95 else [(":path", "/")]
        return headers(number, self.peer.encoder.encode(fields), end)

    def control(self) -> bytes:
        rng, number = self.rng, self.stream()
        kind = rng.randrange(8)
        if kind == 0:
            self.open.discard(number)
            return word(FrameType.RST_STREAM, number, rng.choice((0, 2, 8, 99)))
        if kind == 1:
            return word(
                FrameType.WINDOW_UPDATE,
                rng.choice((0, number)),
                rng.choices((1, 1000, 1 << 20, 1 << 30, 0), (9, 9, 9, 1, 1))[0],
            )
        if kind == 2:
            name, value = rng.choice(((2, 0), (2, 1), (3, 7), (4, 0), (4, 1000), (4, 70_000), (5, 20_000), (6, 100)))
            return settings((name, value))
        if kind == 3:
            return frame(FrameType.PING, bytes(8), rng.choice((0, ACK)))
        if kind == 4:
            place = rng.choice((0, 0, 0, 0, 0, 0, number, number + 2)).to_bytes(4, "big")
            return frame(FrameType.PRIORITY, place + b"\x09", 0, number)
        if kind == 5:
            return frame(rng.choice((20, 99)), b"abc", 0, number)
        if kind == 6 and rng.random() < 0.1:
            return frame(FrameType.GOAWAY, bytes(8))
        return settings()

    def odd(self) -> bytes:
        """Something that is mostly wrong."""
        rng, number = self.rng, self.stream()
        kind = rng.choice(list(FrameType))
        if rng.random() < 0.3:
            return settings((rng.choice((2, 4, 5)), rng.choice((2, 16383, 1 << 31, (1 << 32) - 1))))
        payload = bytes(rng.choice((0, 1, 4, 5, 6, 8, 9)))
        if kind == FrameType.HEADERS:
            payload = rng.choice((b"\x80", b"\xff\xff", b"\x40"))
        return frame(kind, payload, rng.choice((0, 1, 4, 8, 12, 32, 40)), rng.choice((0, number)))


def ours(peer: Peer, bytes_: bytes) -> tuple[list[Seen], bool]:
    """What our connection sees, and whether it refuses."""
    seen: list[Seen] = []
    for event in peer.feed(bytes_):
        if event.kind == EventKind.REQUEST:
            seen.append(("request", event.stream, event.fields[1] or b""))
            seen.append(("id", event.stream, event.fields[2] or b""))
        elif event.kind == EventKind.DATA:
            seen.append(("data", event.stream, event.data))
        elif event.kind == EventKind.TRAILERS:
            seen.append(("trailers", event.stream, event.fields[2] or b""))
        elif event.kind == EventKind.RESET:
            seen.append(("reset", event.stream, event.code))
        elif event.kind == EventKind.GOAWAY:
            seen.append(("goaway", 0, event.code))
        if event.is_end:
            seen.append(("end", event.stream, 0))
    sent = {kind for kind, *_ in peer.sent()}
    return seen, bool(sent & {FrameType.RST_STREAM, FrameType.GOAWAY})


def theirs(other: h2.connection.H2Connection, bytes_: bytes) -> tuple[list[Seen], bool]:
    """What ``h2`` sees, and whether it refuses."""
    seen: list[Seen] = []
    refused = False
    try:
        events = other.receive_data(bytes_)
    except h2.exceptions.ProtocolError:
        return [], True
    for event in events:
        if isinstance(event, h2.events.RequestReceived):
            found = dict(event.headers)
            seen.append(("request", event.stream_id, found.get(b":path", b"")))
            seen.append(("id", event.stream_id, found.get(b"x-id", b"")))
        elif isinstance(event, h2.events.DataReceived):
            seen.append(("data", event.stream_id, event.data))
        elif isinstance(event, h2.events.TrailersReceived):
            seen.append(("trailers", event.stream_id, dict(event.headers).get(b"x-id", b"")))
        elif isinstance(event, h2.events.StreamEnded):
            seen.append(("end", event.stream_id, 0))
        elif isinstance(event, h2.events.StreamReset):
            refused |= not event.remote_reset
            seen.append(("reset", event.stream_id, int(event.error_code)))
        elif isinstance(event, h2.events.ConnectionTerminated):
            seen.append(("goaway", 0, int(event.error_code)))
    return seen, refused or any(kind == FrameType.RST_STREAM for kind in _kinds(other.data_to_send()))


def _kinds(sent: bytes) -> list[int]:
    kinds = []
    while sent:
        kinds.append(sent[3])
        sent = sent[9 + int.from_bytes(sent[:3], "big") :]
    return kinds


def server() -> h2.connection.H2Connection:
    """A server of ``h2`` with our settings."""
    other = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
    other.initiate_connection()
    other.update_settings({Setting.INITIAL_WINDOW_SIZE: LIMITS.stream_window_bytes})
    other.increment_flow_control_window(LIMITS.connection_window_bytes - 65535)
    return other


def act(client: Client, peer: Peer, other: h2.connection.H2Connection, seen: list[Seen]) -> None:
    """Lets both servers answer or reset a stream; the client mostly knows."""
    rng = client.rng
    for what, number, _ in seen:
        if what == "request" and rng.random() < 0.3:
            if rng.random() < 0.3:
                peer.connection.reset(number, ErrorCode.CANCEL)
                other.reset_stream(number, ErrorCode.CANCEL)
                if rng.random() < 0.8:
                    client.open.discard(number)
            elif peer.connection.stream(number) is not None:
                peer.connection.send_headers(number, ANSWER, True)
                other.send_headers(number, [(":status", "200")], True)
    peer.sent()
    other.data_to_send()


@pytest.mark.timeout(size(600, 7200))
def test_random_frames(form: str) -> None:
    counts = {"same": 0, "refused": 0, "allowed": 0}
    for seed in range(SEQUENCES if form == "compiled" else SEQUENCES // 20 + 1):
        peer = Peer(form, LIMITS, greeted=False)
        other, client = server(), Client(seed, peer)
        for place in range(FRAMES):
            stream = client.next() if place else PREFACE + settings() + frame(FrameType.SETTINGS, b"", ACK) * 2
            before = peer.connection._state(int.from_bytes(stream[5:9], "big"))
            seen, refused = ours(peer, stream)
            expected, other_refused = theirs(other, stream)
            if refused != other_refused and is_allowed(stream, before, refused):
                counts["allowed"] += 1
                break
            assert refused == other_refused, (seed, stream.hex(), before.name, refused, seen, expected)
            if refused:
                counts["refused"] += 1
                break
            assert seen == expected, (seed, stream.hex(), before.name)
            counts["same"] += 1
            act(client, peer, other, seen)
            assert peer.connection.window == other.outbound_flow_control_window
            for open_stream in peer.connection.streams():
                window = min(open_stream.send_window, peer.connection.window)
                if not open_stream.is_ended:
                    assert window == other.local_flow_control_window(open_stream.number), (seed, stream.hex())
            if ("goaway", 0) in [one[:2] for one in seen]:
                break
    assert counts["same"] > 5 * counts["refused"] > 0, counts
    assert counts["allowed"] * 3 < counts["refused"], counts


def is_allowed(stream: bytes, state: StreamState, refused: bool) -> bool:
    """Whether RFC 9113 leaves it open, or ``h2`` differs from it.

    - After our RST_STREAM the peer's frames may still be on their way and are ignored (5.1); ``h2`` resets again.
    - RST_STREAM on an idle stream is an error (6.4); ``h2`` ignores it.
    """
    if state == StreamState.RESET_BY_US:
        return not refused
    return state == StreamState.IDLE and stream[3] == FrameType.RST_STREAM and refused
