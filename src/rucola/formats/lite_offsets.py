"""Consumer offsets of lite topics: the files ``config/rucolaLiteOffsets``, the *base*, and
``config/rucolaLiteOffsets.<generation>``, its *journal*. RocketMQ knows neither. Numbers are big-endian.

=========== ==========================================================================================================
file        content
=========== ==========================================================================================================
base        ``LITE_OFFSETS_BASE``, its CRC-32, then the groups, then ``pieces`` pieces of rows
journal     batches: ``LITE_OFFSETS_BATCH``, groups, rows. Only that of the base's generation counts; without a base,
            that of generation 0. A batch that is not whole ends it
groups      number (uint32) and length of the name (uint8) of each group, and the name; length 0: the group is gone
rows        ``LITE_OFFSET_ROW``; a later one of the same group and id replaces an earlier one
piece       length and CRC-32 of what follows (uint32 each): rows, compressed with zlib
=========== ==========================================================================================================

A row names its lite topic twice: by the id that the store has given it, and by the hash of its name. The hash counts;
the id is where to look first (``store.lite.lite_names``).
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

from rucola.errors import FormatError
from rucola.formats.checksum import crc32
from rucola.formats.layout import Field, Layout

FILE_NAME: Final = "rucolaLiteOffsets"
NO_OFFSET: Final = -1
PIECE_ROWS: Final = 65_536
ROW_FIELDS: Final = 3
"""A row in memory: group times 2**32 plus id, hash of the name, offset."""
_BASE_MAGIC, _BATCH_MAGIC = b"RUCOLAO1", b"RUCO"
_CRC = Struct(">I")
_GROUP = Struct(">IB")
_PIECE_HEAD = Struct(">II")

LITE_OFFSET_ROW = Layout(
    "lite offset",
    24,
    Field("group", "I", "Number of the group."),
    Field("id", "I", "Number of the lite topic's name when the row was written."),
    Field("name_hash", "q", "BLAKE2b of `<parent>$<lite>`, 8 bytes."),
    Field("consumer_offset", "q", "Queue offset of the next message; -1: none."),
)
LITE_OFFSETS_BASE = Layout(
    "lite offsets base",
    64,
    Field("magic", "8s", "`RUCOLAO1`."),
    Field("generation", "q", "Number of the journal that follows."),
    Field("groups", "q", "Number of groups."),
    Field("pieces", "q", "Number of pieces of rows."),
    Field("rows", "q", "Number of rows."),
    Field("state_version", "q", "Version of the table of offsets that was written for RocketMQ last; -1: none."),
    Field("timestamp", "q", "Time of this version in ms."),
    Field("counter", "q", "Counter of this version."),
)
LITE_OFFSETS_BATCH = Layout(
    "lite offsets batch",
    32,
    Field("magic", "4s", "`RUCO`."),
    Field("crc", "I", "CRC-32 of everything in the batch after it."),
    Field("generation", "q", "Number of the journal."),
    Field("position", "q", "Position of the batch in the file."),
    Field("groups", "I", "Number of groups."),
    Field("rows", "I", "Number of rows."),
)
_BATCH_CHECKED_FROM = LITE_OFFSETS_BATCH.position("generation")
_BASE_BYTES = LITE_OFFSETS_BASE.size + _CRC.size
Groups = Iterable[tuple[int, str]]


class OffsetTable(NamedTuple):
    """What a base holds.

    Attributes:
        generation: number of the journal that follows.
        written: version of the table that was written for RocketMQ: state version, time in ms, counter.
        groups: number and name of each group.
        rows: ``ROW_FIELDS`` numbers per row.
    """

    generation: int
    written: tuple[int, int, int]
    groups: list[tuple[int, str]]
    rows: array[int]


class OffsetBatch(NamedTuple):
    """A batch of a journal. ``end``: position after it."""

    groups: list[tuple[int, str]]
    rows: array[int]
    end: int


def hash_of(name: bytes) -> int:
    """Returns the hash of the name of a lite topic, a signed number of 64 bits."""
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big", signed=True)


def base_pieces(
    generation: int, written: tuple[int, int, int], groups: list[tuple[int, str]], rows: array[int]
) -> Iterator[bytes]:
    """Yields the content of a base."""
    width = PIECE_ROWS * ROW_FIELDS
    count = -(-len(rows) // width)
    head = LITE_OFFSETS_BASE.struct.pack(_BASE_MAGIC, generation, len(groups), count, len(rows) // ROW_FIELDS, *written)
    names = _group_bytes(groups)
    yield head + _CRC.pack(crc32(head)) + names + _CRC.pack(crc32(names))
    for first in range(0, len(rows), width):
        content = zlib.compress(_row_bytes(rows[first : first + width]), 1)
        yield _PIECE_HEAD.pack(len(content), crc32(content)) + content


def decode_base(content: bytes) -> OffsetTable:
    """Decodes a base.

    Raises:
        FormatError: ``content`` is no base, or damaged.
    """
    if len(content) < _BASE_BYTES or content[:8] != _BASE_MAGIC:
        raise FormatError(FILE_NAME, 0, "offsets of lite topics", repr(content[:8]))
    _check(content, 0, LITE_OFFSETS_BASE.size)
    _, generation, group_count, piece_count, row_count, *written = LITE_OFFSETS_BASE.unpack(content)
    groups, position = _groups_in(content, _BASE_BYTES, group_count)
    _check(content, _BASE_BYTES, position)
    position += _CRC.size
    rows = array("q")
    for _ in range(piece_count):
        position = _read_piece(content, position, rows)
    if len(rows) != row_count * ROW_FIELDS or position != len(content):
        raise FormatError(FILE_NAME, position, f"{row_count} rows", f"{len(rows) // ROW_FIELDS} rows")
    return OffsetTable(generation, (written[0], written[1], written[2]), groups, rows)


def encode_batch(generation: int, position: int, groups: list[tuple[int, str]], rows: array[int]) -> bytes:
    """Returns the bytes of a batch."""
    checked = Struct(">qqII").pack(generation, position, len(groups), len(rows) // ROW_FIELDS)
    checked += _group_bytes(groups) + _row_bytes(rows)
    return _BATCH_MAGIC + _CRC.pack(crc32(checked)) + checked


def batches_in(content: bytes, generation: int) -> Iterator[OffsetBatch]:
    """Yields the batches of a journal up to the first one that is not whole: a write was interrupted there.

    Raises:
        FormatError: a whole batch follows, so the one before it is damaged.
    """
    position = 0
    while (batch := _batch_at(content, position, generation)) is not None:
        yield batch
        position = batch.end
    later = position
    while (later := content.find(_BATCH_MAGIC, later + 1)) >= 0:
        if _batch_at(content, later, generation) is not None:
            raise FormatError(f"{FILE_NAME}.{generation}", position, "a whole batch, as later ones are", "another one")


def _batch_at(content: bytes, position: int, generation: int) -> OffsetBatch | None:
    if position + LITE_OFFSETS_BATCH.size > len(content):
        return None
    magic, crc, of, at, group_count, row_count = LITE_OFFSETS_BATCH.unpack(content, position)
    if magic != _BATCH_MAGIC or of != generation or at != position:
        return None
    try:
        groups, start = _groups_in(content, position + LITE_OFFSETS_BATCH.size, group_count)
    except FormatError:
        return None
    view, end = memoryview(content), start + row_count * LITE_OFFSET_ROW.size
    if end > len(content) or crc32(view[position + _BATCH_CHECKED_FROM : end]) != crc:
        return None
    return OffsetBatch(groups, _rows_in(view[start:end]), end)


def _group_bytes(groups: Groups) -> bytes:
    encoded = [(number, name.encode("utf-8", "surrogateescape")) for number, name in groups]
    return b"".join(_GROUP.pack(number, len(name)) + name for number, name in encoded)


def _groups_in(content: bytes, position: int, count: int) -> tuple[list[tuple[int, str]], int]:
    groups: list[tuple[int, str]] = []
    for _ in range(count):
        start = position + _GROUP.size
        if start > len(content) or start + content[start - 1] > len(content):
            raise FormatError(FILE_NAME, position, f"{count} groups", f"{len(groups)} groups")
        number, size = _GROUP.unpack_from(content, position)
        groups.append((number, content[start : start + size].decode("utf-8", "surrogateescape")))
        position = start + size
    return groups, position


def _read_piece(content: bytes, position: int, rows: array[int]) -> int:
    """Appends the rows of a piece to ``rows``; returns the position after it."""
    try:
        size, crc = _PIECE_HEAD.unpack_from(content, position)
        start = position + _PIECE_HEAD.size
        packed = content[start : start + size]
        if crc32(packed) != crc:
            raise ValueError("the checksum is wrong")
        limit = PIECE_ROWS * LITE_OFFSET_ROW.size
        plain = zlib.decompressobj().decompress(packed, limit + 1)
        if len(plain) > limit or len(plain) % LITE_OFFSET_ROW.size:
            raise ValueError(f"{len(plain)} bytes of rows")
    except (ValueError, zlib.error, struct_error) as error:
        raise FormatError(FILE_NAME, position, "a piece of rows", str(error)) from error
    rows.extend(_rows_in(plain))
    return start + len(packed)


def _row_bytes(rows: array[int]) -> bytes:
    """A row's group and id are one number of 64 bits."""
    swapped = rows[:]
    return _swap(swapped).tobytes()


def _rows_in(content: bytes | memoryview) -> array[int]:
    return _swap(array("q", bytes(content)))


def _swap(values: array[int]) -> array[int]:
    if sys.byteorder == "little":
        values.byteswap()
    return values


def _check(content: bytes, start: int, end: int) -> None:
    """Compares the checksum at ``end`` with that of the bytes from ``start`` on."""
    if content[end : end + _CRC.size] != _CRC.pack(crc32(memoryview(content)[start:end])):
        raise FormatError(FILE_NAME, start, "the right checksum", "another one")
