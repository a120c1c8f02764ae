"""A stream of bytes means the same in any pieces; changed bytes never do worse than end the connection."""

from __future__ import annotations

import random

import pytest
from tests.sizes import size
from tests.unit.http2.wire import (
    END_HEADERS,
    PADDED,
    PRIORITY_FLAG,
    Event,
    Peer,
    code_of,
    data,
    frame,
    headers,
    settings,
    word,
)

from rucola.http2.columns import EventKind
from rucola.http2.frames import PREFACE, ErrorCode, FrameType, Setting
from rucola.http2.hpack import encode_block

ANSWER = encode_block([(b":status", b"200")])


def conversation(peer: Peer) -> bytes:
    """All types of frames, with some errors of streams."""
    first = peer.request(1)
    block = peer.encoder.encode([(":method", "POST"), (":scheme", "http"), (":path", "/send"), ("x-id", "3")])
    return b"".join(
        (
            PREFACE,
            settings((Setting.INITIAL_WINDOW_SIZE, 70_000), (Setting.HEADER_TABLE_SIZE, 0)),
            first,
            data(1, b"abc"),
            headers(3, block[:3], True, 0),
            frame(FrameType.CONTINUATION, block[3:9], 0, 3),
            frame(FrameType.CONTINUATION, block[9:], END_HEADERS, 3),
            frame(FrameType.PING, b"12345678"),
            frame(FrameType.DATA, b"\3def\0\0\0", PADDED, 1),
            frame(FrameType.PRIORITY, b"\0\0\0\1\7", 0, 5),
            headers(5, b"\x82", True),
            headers(1, b"\x00\x04x-id\x0219", True),
            frame(FrameType.HEADERS, b"\2\0\0\0\3\0" + peer.encoder.encode([(":method", "GET")]) + b"\0\0", 0x2D, 7),
            peer.request(9, more=[("x-id", "a" * 300)]),
            word(FrameType.RST_STREAM, 9, ErrorCode.CANCEL),
            word(FrameType.WINDOW_UPDATE, 0, 1000),
            word(FrameType.WINDOW_UPDATE, 3, 1000),
            frame(200, b"unknown", 3, 9),
            frame(FrameType.GOAWAY, bytes(8)),
            peer.request(11, True, [("x-id", "b" * 300)]),
        )
    )


def outcome(form: str, stream: bytes, pieces: list[int]) -> tuple[list[Event], bytes]:
    """Events and answer if a stream comes in pieces of these lengths, then the rest."""
    peer, events = Peer(form, greeted=False), []
    for length in [*pieces, len(stream)]:
        events += peer.feed(stream[:length])
        stream = stream[length:]
    return events, peer.connection.data_to_send()


def test_a_cut_at_every_position(form: str) -> None:
    stream = conversation(Peer(form))
    whole = outcome(form, stream, [])
    assert [event.kind.name for event in whole[0]] == (
        ["REQUEST", "DATA", "REQUEST", "DATA", "TRAILERS", "REQUEST", "RESET", "GOAWAY", "REQUEST"]
    )
    for place in range(1, len(stream), 1 if form == "compiled" else 7):
        assert outcome(form, stream, [place]) == whole, place


@pytest.mark.parametrize("length", [1, 2, 9, 10])
def test_small_pieces(form: str, length: int) -> None:
    stream = conversation(Peer(form))
    assert outcome(form, stream, [length] * (len(stream) // length)) == outcome(form, stream, [])


def test_large_frames_in_random_pieces(form: str) -> None:
    rng, peer = random.Random(5), Peer(form)
    sizes = [rng.choice((0, 1, 500, 16383, 16384)) for _ in range(60)]
    stream = PREFACE + settings() + peer.request(1) + b"".join(data(1, bytes(length)) for length in sizes)
    whole = outcome(form, stream, [])
    for _ in range(size(10, 300)):
        pieces = [rng.choice((1, 100, 4096, 5000, 40_000, 70_000)) for _ in range(200)]
        assert outcome(form, stream, pieces) == whole
    assert [len(event.data) for event in whole[0][1:]] == sizes


def test_the_buffer_is_bounded(form: str) -> None:
    peer = Peer(form)
    peer.feed(peer.request(1))
    for _ in range(40):
        peer.feed(data(1, bytes(16384)))
        peer.connection.acknowledge(1, peer.connection.held_bytes)
    assert 16384 + 9 <= len(peer.connection.source) <= 64 * 1024
    for _ in range(5):
        peer.feed(frame(FrameType.PING, bytes(8)))
    assert len(peer.connection.source) == 4096
    peer.feed(b"\0\x40\0\0\0\0\0\0\1" + bytes(16383))
    assert len(peer.connection.buffer()) >= 1


def changed(rng: random.Random, stream: bytes) -> bytes:
    """A few changes, mostly in heads of frames, where they mean most."""
    found = bytearray(stream)
    for _ in range(rng.choice((1, 1, 2, 5))):
        place = rng.randrange(len(PREFACE), len(found))
        kind = rng.randrange(4)
        if kind == 0:
            found[place] = rng.randrange(256)
        elif kind == 1:
            found[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del found[place : place + rng.randrange(12)]
        else:
            other = rng.randrange(len(PREFACE), len(found))
            found[place:place] = found[other : other + rng.randrange(40)]
    return bytes(found)


@pytest.mark.timeout(size(600, 3600))
def test_changed_bytes_end_at_worst_the_connection(form: str) -> None:
    rng = random.Random(11)
    stream = conversation(Peer(form))
    over = 0
    for _ in range(size(1500, 400_000) if form == "compiled" else size(60, 2000)):
        peer = Peer(form, greeted=False)
        events: list[Event] = []
        rest = changed(rng, stream)
        while rest:
            count = rng.choice((1, 30, 1000))
            found = peer.feed(rest[:count])
            for event in found:
                answer(peer, event, rng)
            events += found
            rest = rest[count:]
        closed = [event for event in events if event.kind == EventKind.CLOSED]
        assert peer.connection.is_over is bool(closed) and len(closed) <= 1
        over += len(closed)
        if closed:
            assert events[-1] == closed[0]
            assert code_of(peer.sent(), FrameType.GOAWAY) == closed[0].code
        assert len(peer.connection.source) <= 64 * 1024
    assert over > 5


def answer(peer: Peer, event: Event, rng: random.Random) -> None:
    """What an owner may do at any time."""
    if event.kind == EventKind.DATA:
        peer.connection.acknowledge(event.stream, len(event.data))
    if rng.random() < 0.1:
        peer.connection.reset(event.stream, ErrorCode.CANCEL)
    if event.is_end and event.kind != EventKind.WINDOW:
        peer.connection.send_headers(event.stream, ANSWER)
        peer.connection.send_data(event.stream, bytes(rng.choice((0, 10, 100_000))), True)


def test_flags_that_a_type_does_not_have(form: str) -> None:
    peer = Peer(form)
    assert peer.feed(frame(FrameType.PING, bytes(8), PADDED | PRIORITY_FLAG)) == []
    assert peer.feed(frame(FrameType.SETTINGS, b"", PADDED)) == []
