"""Each frame in each state of a stream: what the owner sees, and what the peer gets (RFC 9113 5.1, 6).

``R5`` is RST_STREAM with error code 5, ``G1`` GOAWAY with code 1; a word is an event, ``.`` nothing at all.
"""

from __future__ import annotations

import pytest
from tests.unit.http2.wire import LIMITS, Peer, code_of, data, frame, headers, settings, word

from rucola.http2.columns import EventKind
from rucola.http2.frames import ErrorCode, FrameType
from rucola.http2.hpack import encode_block
from rucola.http2.streams import RECEIVED, StreamState

FRAMES = (
    "HEADERS", "HEADERS,END", "DATA", "DATA,END", "PRIORITY", "RST", "WINDOW", "CONTINUATION", "PUSH", "SETTINGS",
    "PING", "GOAWAY", "OTHER",
)  # fmt: skip
TABLE = {
    "idle":          "REQUEST     REQUEST  G1   G1   .  G1    G1 G1 G1 A P GOAWAY .",
    "even":          "G1          G1       G1   G1   .  G1    G1 G1 G1 A P GOAWAY .",
    "open":          "RESET,R1    TRAILERS DATA DATA .  RESET .  G1 G1 A P GOAWAY .",
    "half local":    "RESET,R1    TRAILERS DATA DATA .  RESET .  G1 G1 A P GOAWAY .",
    "half remote":   "RESET,R5    RESET,R5 RESET,R5 RESET,R5 . RESET . G1 G1 A P GOAWAY .",
    "closed":        "G5          G5       R5   R5   .  .     .  G1 G1 A P GOAWAY .",
    "reset by peer": "R5          R5       R5   R5   .  .     .  G1 G1 A P GOAWAY .",
    "reset by us":   ".           .        .    .    .  .     .  G1 G1 A P GOAWAY .",
    "refused":       ".           .        .    .    .  .     .  G1 G1 A P GOAWAY .",
    "skipped":       "G1          G1       R5   R5   .  .     .  G1 G1 A P GOAWAY .",
    "open, we said GOAWAY":  "RESET,R1 TRAILERS DATA DATA . RESET . G1 G1 A P GOAWAY .",
    "idle, we said GOAWAY":  ".        .        G1   G1   . G1    G1 G1 G1 A P GOAWAY .",
    "after our GOAWAY":      ".        .        .    .    . .     . G1 G1 A P GOAWAY .",
    "open, peer said GOAWAY": "RESET,R1 TRAILERS DATA DATA . RESET . G1 G1 A P GOAWAY .",
    "over":          ".           .        .    .    .  .     .  .  .  . . .      .",
}  # fmt: skip
ANSWER = encode_block([(b":status", b"200")])


def prepared(form: str, state: str) -> tuple[Peer, int]:
    """A connection with a stream in a state, and the number of the stream."""
    peer = Peer(form)
    connection = peer.connection
    if state == "even":
        return peer, 2
    if state == "skipped":
        peer.feed(peer.request(3))
        return peer, 1
    if state == "idle, we said GOAWAY":
        connection.shut_down()
    elif state == "after our GOAWAY":
        connection.shut_down()
        assert peer.feed(peer.request(1)) == []
    elif state == "refused":
        peer.feed(headers(1, b"\x82"))
    elif state != "idle":
        peer.feed(peer.request(1, end=state in ("half remote", "closed")))
    if state in ("half local", "closed"):
        connection.send_headers(1, ANSWER, True)
    elif state == "reset by peer":
        peer.feed(word(FrameType.RST_STREAM, 1, ErrorCode.CANCEL))
    elif state == "reset by us":
        connection.reset(1, ErrorCode.CANCEL)
    elif state == "open, we said GOAWAY":
        connection.shut_down()
    elif state == "open, peer said GOAWAY":
        peer.feed(frame(FrameType.GOAWAY, bytes(8)))
    elif state == "over":
        connection.close(ErrorCode.NO_ERROR)
    return peer, 1


def bytes_of(peer: Peer, name: str, stream: int) -> bytes:
    """A frame by its name in ``FRAMES``."""
    end = name.endswith(",END")
    if name.startswith("HEADERS"):
        return headers(stream, b"", True) if end and peer.connection.stream(stream) else peer.request(stream, end)
    return {
        "DATA": data(stream, b"abc"),
        "DATA,END": data(stream, b"abc", True),
        "PRIORITY": frame(FrameType.PRIORITY, b"\0\0\0\0\1", 0, stream),
        "RST": word(FrameType.RST_STREAM, stream, ErrorCode.CANCEL),
        "WINDOW": word(FrameType.WINDOW_UPDATE, stream, 10),
        "CONTINUATION": frame(FrameType.CONTINUATION, b"", 4, stream),
        "PUSH": frame(FrameType.PUSH_PROMISE, bytes(4), 4, stream),
        "SETTINGS": settings((3, 100)),
        "PING": frame(FrameType.PING, b"12345678"),
        "GOAWAY": frame(FrameType.GOAWAY, bytes(8)),
        "OTHER": frame(99, b"abc", 255, stream),
    }[name]


@pytest.mark.parametrize("state", TABLE)
def test_frame_in_state(form: str, state: str) -> None:
    for name, expected in zip(FRAMES, TABLE[state].split(), strict=True):
        check_frame(form, state, name, expected)


def check_frame(form: str, state: str, name: str, expected: str) -> None:
    peer, stream = prepared(form, state)
    peer.sent()
    events = peer.feed(bytes_of(peer, name, stream))
    sent = peer.sent()
    found = [event.kind.name for event in events if event.kind != EventKind.CLOSED]
    for kind, flags, number, payload in sent:
        if kind == FrameType.RST_STREAM:
            assert number == stream, name
            found.append(f"R{payload[3]}")
        elif kind == FrameType.GOAWAY:
            found.append(f"G{payload[7]}")
        else:
            assert flags == 1 and number == 0, name
            found.append({FrameType.SETTINGS: "A", FrameType.PING: "P"}[FrameType(kind)])
    assert ",".join(found) == expected.replace(".", ""), name
    is_over = expected.startswith("G") and expected != "GOAWAY"
    assert peer.connection.is_over == (is_over or state == "over"), name
    assert [event.code for event in events if event.kind == EventKind.CLOSED] == [code_of(sent, 7)] * is_over, name
    if not peer.connection.is_over:
        check_it_goes_on(peer)


def check_it_goes_on(peer: Peer) -> None:
    """Checks that compression and windows are still in step: a further request is served."""
    peer.connection.last_announced = -1
    (request,) = peer.feed(peer.request(99, end=True, more=[("x-id", "7")]))
    assert request.kind == EventKind.REQUEST and request.fields[2] == b"7"
    connection = peer.connection
    connection.acknowledge(1, connection.held_bytes)
    assert connection.receive_window + connection.unannounced == LIMITS.connection_window_bytes


def test_the_table_names_each_state_and_frame() -> None:
    frames = (FrameType.HEADERS, FrameType.DATA, FrameType.RST_STREAM, FrameType.WINDOW_UPDATE)
    assert set(RECEIVED) == {(state, one) for state in StreamState for one in frames}
