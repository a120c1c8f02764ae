"""The receive buffer: the memory it hands out, and how it grows and shrinks."""

from __future__ import annotations

import tracemalloc

import orjson
import pytest
from tests.unit.protocol.rows import frame_of

from rucola.common.columns import ROW_WIDTH, FrameColumn, FrameKind
from rucola.errors import FormatError
from rucola.protocol.command import FRAME_BYTES_MAX, RemotingCommand
from rucola.protocol.frame import FrameBatch, FrameReader

SMALL = RemotingCommand(34, 1, body=b"body").encode()


def feed(reader: FrameReader, data: bytes) -> FrameBatch | None:
    """Does one read; the buffer must have space for all of ``data``."""
    buffer = reader.buffer()
    assert len(buffer) >= len(data)
    buffer[: len(data)] = data
    return reader.received(len(data))


def feed_all(reader: FrameReader, data: bytes) -> tuple[int, int]:
    """Fills the buffer repeatedly; returns the frames found and the size of the largest buffer."""
    found = largest = position = 0
    while position < len(data):
        buffer = reader.buffer()
        assert len(buffer) > 0
        piece = data[position : position + len(buffer)]
        buffer[: len(piece)] = piece
        batch = reader.received(len(piece))
        position += len(piece)
        found += batch.count if batch else 0
        largest = max(largest, len(reader._source))
    return found, largest


def test_batch() -> None:
    reader = FrameReader()
    batch = feed(reader, SMALL + SMALL[:9])
    assert batch is not None and batch.count == 1
    assert batch.command(0) == RemotingCommand(34, 1, body=b"body")
    assert bytes(batch.body(0)) == b"body"
    assert batch.table[FrameColumn.CODE] == 34
    assert batch.source[: len(SMALL)] == SMALL
    assert bytes(batch.view[: len(SMALL)]) == SMALL
    batch = feed(reader, SMALL[9:] + SMALL)
    assert batch is not None and [batch.command(row).code for row in range(batch.count)] == [34, 34]
    assert feed(reader, SMALL[:3]) is None
    assert feed(reader, SMALL[3:-1]) is None
    assert feed(reader, SMALL[-1:]) is not None


def test_more_frames_than_rows() -> None:
    frames = b"".join(RemotingCommand(34, opaque).encode() for opaque in range(150))
    reader = FrameReader()
    batch = feed(reader, frames)
    assert batch is not None and batch.count == 150
    assert [batch.command(row).opaque for row in range(150)] == list(range(150))
    batch = feed(reader, frames)
    assert batch is not None and batch.count == 150


def test_buffer_grows_while_reads_fill_it_up_to_capacity() -> None:
    reader = FrameReader(64 * 1024)
    assert len(reader.buffer()) == 16 * 1024
    found, largest = feed_all(reader, SMALL * 3000)
    assert (found, largest) == (3000, 64 * 1024)
    assert len(reader.buffer()) == 64 * 1024


def test_the_begin_of_a_frame_is_moved_in_place() -> None:
    reader = FrameReader()
    frame = RemotingCommand(310, body=bytes(90 * 1024)).encode()
    assert feed_all(reader, frame * 4)[0] == 4
    assert feed(reader, frame + frame[:-1]) is not None
    tracemalloc.start()
    try:
        reader.buffer()
        assert tracemalloc.get_traced_memory()[1] < 4096
    finally:
        tracemalloc.stop()
    assert feed(reader, frame[-1:] + SMALL) is not None


def test_large_frame_and_back() -> None:
    reader = FrameReader(64 * 1024)
    large = RemotingCommand(310, body=bytes(3_000_000)).encode()
    found, largest = feed_all(reader, large + SMALL)
    assert found == 2
    assert 3_000_000 < largest < 3_000_000 + 1000
    reader.buffer()
    assert len(reader._source) == 64 * 1024


def test_announced_bytes_are_not_allocated() -> None:
    reader = FrameReader(64 * 1024)
    head = (FRAME_BYTES_MAX - 4).to_bytes(4, "big") + b"\x00\x00\x00\x10"
    assert feed(reader, head + bytes(100)) is None
    assert len(reader.buffer()) < 64 * 1024
    for size in (16 * 1024 - 108, 60 * 1024, 60 * 1024, 60 * 1024):
        buffer = reader.buffer()
        assert reader.received(min(size, len(buffer))) is None
    assert len(reader._source) <= 4 * 64 * 1024


def test_largest_frame() -> None:
    header = RemotingCommand(310).encode_header()
    body = bytes(FRAME_BYTES_MAX - 8 - len(header))
    assert feed_all(FrameReader(), frame_of(header, body))[0] == 1
    with pytest.raises(FormatError):
        RemotingCommand(310, body=body + b"x").encode()
    with pytest.raises(FormatError, match="length"):
        feed(FrameReader(), (FRAME_BYTES_MAX - 3).to_bytes(4, "big"))


@pytest.mark.parametrize(
    "head", ["00000000", "00000003", "ffffffff", "0000000a02000001", "0000000a00000000", "0000000a00000007"]
)
def test_refusals(head: str) -> None:
    reader = FrameReader()
    with pytest.raises(FormatError) as caught:
        feed(reader, SMALL + bytes.fromhex(head))
    assert caught.value.position == len(SMALL)
    assert head in caught.value.got


@pytest.mark.parametrize(
    "header", [b"not json", b'{"code":"x","opaque":1}', b'{"code":1,"extFields":{"i":"\\ud800"}}', b"[]"]
)
def test_undecodable_headers_are_refused_with_the_read(header: bytes) -> None:
    with pytest.raises(FormatError):
        feed(FrameReader(), SMALL + frame_of(header))


def test_unusual_headers_are_read_into_the_row() -> None:
    header = orjson.dumps({"code": 310, "opaque": 77, "flag": 2, "extFields": {"b": "T\u00e9"}})
    batch = feed(FrameReader(), SMALL + frame_of(header))
    assert batch is not None and batch.count == 2
    row = batch.table[ROW_WIDTH : ROW_WIDTH + 5].tolist()
    assert row == [FrameKind.PLAIN, 310, 77, 2, 0]
    assert batch.command(1).ext_fields == {"b": "T\u00e9"}
