"""Connections that share the memory for reads."""

from __future__ import annotations

import itertools
import tracemalloc
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import sizes

from rucola.errors import FormatError
from rucola.protocol import shared_reader
from rucola.protocol.command import FRAME_BYTES_MAX, RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.protocol.shared_reader import BEGUN_BYTES, ROWS_MAX, ReadSpace, SharedFrameReader

SMALL = RemotingCommand(34, 1, body=b"body").encode()


def frames(count: int, body_bytes: int = 0) -> bytes:
    return b"".join(RemotingCommand(34, number, body=bytes(body_bytes)).encode() for number in range(count))


def spoil(space: ReadSpace) -> None:
    """Overwrites the shared buffer, as a read of another connection would."""
    space.view[:] = b"\xee" * len(space.view)
    space.table[:] = array("q", (-7,)) * len(space.table)


def batches(reader: SharedFrameReader, data: bytes) -> list[FrameBatch]:
    """Passes ``data`` to the reader in parts, and overwrites the shared space after each; returns copied batches."""
    found, position = [], 0
    while position < len(data):
        buffer = reader.buffer()
        assert len(buffer) > 0
        piece = data[position : position + len(buffer)]
        buffer[: len(piece)] = piece
        position += len(piece)
        batch = reader.received(len(piece))
        while batch is not None:
            found.append(reader.keep(batch))
            reader.set_aside()
            spoil(reader._space)
            batch = reader.more()
        spoil(reader._space)
    return found


def opaques(found: list[FrameBatch]) -> list[int]:
    return [batch.command(row).opaque for batch in found for row in range(batch.count)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300)), min_size=1, max_size=30),
    st.lists(st.integers(1, 700), min_size=1, max_size=12),
    st.sampled_from([64, 256, 1024]),
)
@settings(max_examples=sizes.size(20, 100))
def test_any_split_of_three_connections(sent: list[tuple[int, int]], sizes: list[int], capacity: int) -> None:
    space = ReadSpace(capacity)
    readers = [SharedFrameReader(space) for _ in range(3)]
    streams, expected, got = [b"", b"", b""], [[], [], []], [[], [], []]  # type: ignore[var-annotated]
    for number, (which, body_bytes) in enumerate(sent):
        streams[which] += RemotingCommand(34, number, body=bytes([number % 256]) * body_bytes).encode()
        expected[which].append((number, bytes([number % 256]) * body_bytes))
    turn = 0
    while any(streams):
        for which, reader in enumerate(readers):
            size = sizes[turn % len(sizes)]
            turn += 1
            for batch in batches(reader, streams[which][:size]):
                got[which] += [
                    (batch.command(row).opaque, bytes(batch.command(row).body)) for row in range(batch.count)
                ]
                reader.release(batch)
            streams[which] = streams[which][size:]
    assert got == expected
    assert space.kept_bytes == 0 and not any(reader.is_large or reader.begun_bytes for reader in readers)


def test_a_connection_without_a_begun_frame_needs_no_memory() -> None:
    space = ReadSpace()
    many, large = frames(2000), RemotingCommand(34, body=bytes(300_000)).encode()
    tracemalloc.start()
    try:
        readers = [SharedFrameReader(space) for _ in range(100)]
        for reader in readers:
            batches(reader, many)
            batches(reader, large)
        assert tracemalloc.get_traced_memory()[0] < 100 * 1024
    finally:
        tracemalloc.stop()


def test_more_frames_than_rows_are_several_batches() -> None:
    found = batches(SharedFrameReader(ReadSpace()), frames(2 * ROWS_MAX + 3))
    assert [batch.count for batch in found] == [ROWS_MAX, ROWS_MAX, 3]
    assert opaques(found) == list(range(2 * ROWS_MAX + 3))


def test_frames_that_were_not_taken_yet_wait_aside() -> None:
    """Complete frames that were not fetched yet are copied before the buffer is reused; an incomplete large frame
    follows them.
    """
    space = ReadSpace()
    reader = SharedFrameReader(space)
    data = frames(ROWS_MAX + 1) + RemotingCommand(34, 7777, body=bytes(100_000)).encode()
    buffer = reader.buffer()
    buffer[: len(data) - 50_000] = data[:-50_000]
    first = reader.received(len(data) - 50_000)
    assert first is not None and reader.has_more
    reader.set_aside()
    spoil(space)
    second = reader.more()
    assert second is not None and [second.command(row).opaque for row in range(second.count)] == [ROWS_MAX]
    assert reader.more() is None and reader.is_large
    spoil(space)
    assert opaques(batches(reader, data[-50_000:])) == [7777]


def test_large_frame_and_back() -> None:
    """The buffer of a large frame grows only a few times, because each time costs a copy."""
    reader = SharedFrameReader(ReadSpace(64 * 1024))
    sizes, large = set(), RemotingCommand(310, 5, body=bytes(3_000_000)).encode()
    for position in range(0, len(large), 1000):
        found = batches(reader, large[position : position + 1000])
        sizes.add(len(reader._source))
    assert opaques(found) == [5]
    assert len(large) <= max(sizes) < len(large) + 1000 and len(sizes) < 12
    assert not reader.is_large


def test_announced_bytes_are_not_allocated() -> None:
    reader = SharedFrameReader(ReadSpace(64 * 1024))
    head = (FRAME_BYTES_MAX - 4).to_bytes(4, "big") + b"\x00\x00\x00\x10"
    for size in (108, 60 * 1024, 60 * 1024, 60 * 1024):
        data = head + bytes(size - 8) if size == 108 else bytes(size)
        assert batches(reader, data) == []
    reader.buffer()
    assert len(reader._source) <= 4 * 64 * 1024


def test_a_small_read_continues_a_begun_frame() -> None:
    space = ReadSpace()
    reader = SharedFrameReader(space)
    frame = frames(1)
    assert batches(reader, frame[:50]) == []
    buffer = reader.buffer(small=True)
    assert len(buffer) == shared_reader.SMALL_READ_BYTES
    buffer[: len(frame) - 50] = frame[50:]
    batch = reader.received(len(frame) - 50)
    assert batch is not None and bytes(batch.view[: batch.end]) == frame
    assert len(reader.buffer(small=True)) == shared_reader.SMALL_READ_BYTES
    assert len(reader.buffer()) == len(space.source)


def test_the_buffer_of_a_large_frame_grows_in_steps_and_in_place() -> None:
    """Before the fix, growing to 16 MiB took 50 ms, in which the broker served nobody."""
    reader = SharedFrameReader(ReadSpace())
    frame = RemotingCommand(34, 1, body=bytes(range(256)) * (5 * 4096)).encode()
    sizes, owner, position = [], None, 0
    while position < len(frame):
        buffer = reader.buffer()
        if reader.is_large:
            sizes.append(len(reader._source))
            owner = reader._source if owner is None else owner
            assert reader._source is owner
        piece = frame[position : position + len(buffer)]
        buffer[: len(piece)] = piece
        del buffer
        position += len(piece)
        batch = reader.received(len(piece))
    assert batch is not None and bytes(batch.command(0).body) == bytes(range(256)) * (5 * 4096)
    steps = [after - before for before, after in itertools.pairwise(sizes)]
    assert 0 < max(steps) <= shared_reader.GROWTH_BYTES_MAX
    assert sizes[-1] == len(frame)


def test_a_buffer_that_somebody_still_uses_is_copied() -> None:
    reader = SharedFrameReader(ReadSpace(64 * 1024))
    frame = RemotingCommand(34, 1, body=bytes(range(256)) * 4096).encode()
    kept, position = [], 0
    while position < len(frame):
        kept.append(reader.buffer())
        piece = frame[position : position + len(kept[-1])]
        kept[-1][: len(piece)] = piece
        position += len(piece)
        batch = reader.received(len(piece))
    assert batch is not None and bytes(batch.command(0).body) == bytes(range(256)) * 4096


def test_reads_are_small_while_many_batches_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_reader, "KEPT_BYTES_MAX", 100_000)
    space = ReadSpace()
    kept = []
    for _ in range(3):
        reader = SharedFrameReader(space)
        kept += [(reader, batch) for batch in batches(reader, frames(100))]
    other = SharedFrameReader(space)
    assert len(other.buffer()) == shared_reader.SMALL_READ_BYTES
    for reader, batch in kept:
        reader.release(batch)
    assert space.kept_bytes == 0 and len(other.buffer()) == len(space.source)


def test_reads_are_small_while_many_frames_wait_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, the readers of 1,000 connections kept 250 MB of requests."""
    space, data = ReadSpace(), SMALL * 4 * ROWS_MAX
    quarter = len(data) // 4
    monkeypatch.setattr(shared_reader, "KEPT_BYTES_MAX", 8 * quarter)
    readers = [SharedFrameReader(space) for _ in range(3)]
    for reader in readers:
        reader.buffer()[: len(data)] = data
        reader.received(len(data))
        reader.set_aside()
    other = SharedFrameReader(space)
    assert space.kept_bytes == 9 * quarter
    assert len(other.buffer()) == shared_reader.SMALL_READ_BYTES
    assert readers[0].more() is not None
    readers[0].set_aside()
    assert space.kept_bytes == 8 * quarter
    while readers[0].more() is not None:
        pass
    readers[1].close()
    assert space.kept_bytes == 3 * quarter
    readers[2].close()
    readers[2].close()
    assert space.kept_bytes == 0 and len(other.buffer()) == len(space.source)


def test_bytes_that_are_no_frame_are_refused_with_their_batch() -> None:
    reader = SharedFrameReader(ReadSpace())
    with pytest.raises(FormatError) as caught:
        batches(reader, SMALL + (FRAME_BYTES_MAX - 3).to_bytes(4, "big"))
    assert caught.value.position == len(SMALL)


def test_a_begun_frame_is_kept_until_bytes_arrive() -> None:
    """If the transport requests the buffer but then reads nothing, an incomplete frame is kept."""
    space = ReadSpace()
    reader = SharedFrameReader(space)
    assert batches(reader, SMALL[:9]) == []
    reader.buffer()
    spoil(space)
    assert reader.begun_bytes == 9 < BEGUN_BYTES
    assert opaques(batches(reader, SMALL[9:])) == [1]
