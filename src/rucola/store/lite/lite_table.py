"""The columns of lite topics in memory, and the files ``table`` and ``synced`` (``formats.lite``).

A row of the columns belongs to an id. The event loop's thread changes rows; the maintenance thread copies them part
by part, under the lock. So the parts of a table are of different times, from its ``from_unit`` to its ``to_unit``;
units in between may be in a row or not, and count once, because a row tells its last unit.
"""

from __future__ import annotations

import threading
import zlib
from array import array
from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from rucola.common.numbers import INT64_MAX
from rucola.errors import StoreDamagedError
from rucola.formats.checksum import crc32
from rucola.formats.lite import LITE_SYNCED, LITE_TABLE, TABLE_ROWS, to_big_endian
from rucola.runtime.files import Files

_MAGIC = b"RUCOLAL1"
_SYNCED_MAGIC = b"RUCOLAL2"
_SLOT_BYTES = 64
_CRC = Struct(">I")
_COLUMN_HEAD = Struct(">II")
_TABLE_BYTES_MAX = 64 << 30
_ADVICE = "the queues of lite topics are built again from the log"


class TableHead(NamedTuple):
    """The fields of ``LITE_TABLE`` but the magic and the number of parts."""

    names: int
    names_bytes: int
    from_unit: int
    to_unit: int
    repeated_to: int = 0


class LiteColumns:
    """One row per id.

    Attributes:
        nexts: next queue offset.
        starts: first queue offset of the messages that are not deleted.
        lasts: cell of the last unit plus one; 0 if there is none.
        times: store time of the last message in seconds.
        lock: protects the rows against the copy of the maintenance thread.
    """

    def __init__(self) -> None:
        self.nexts = array("q")
        self.starts = array("q")
        self.lasts = array("q")
        self.times = array("I")
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.nexts)

    def resize(self, count: int) -> None:
        """Adds empty rows, or drops the last ones, so that there are ``count``."""
        for column in (self.nexts, self.starts, self.lasts, self.times):
            more = count - len(column)
            if more > 0:
                column.frombytes(bytes(more * column.itemsize))
            else:
                del column[count:]

    def copy(self, first: int, last: int) -> tuple[array[int], ...]:
        """Returns the columns of the rows from ``first`` to ``last`` (excluded), of one moment."""
        with self.lock:
            return self.nexts[first:last], self.starts[first:last], self.lasts[first:last], self.times[first:last]

    def memory_bytes(self) -> int:
        """Returns how much memory the columns take."""
        return sum(each.itemsize * len(each) for each in (self.nexts, self.starts, self.lasts, self.times))


def encode_parts(columns: LiteColumns, count: int) -> list[bytes]:
    """Returns the columns of the first ``count`` rows as in the file. May run beside the thread that changes them."""
    parts = []
    for first in range(0, count, TABLE_ROWS):
        pieces = []
        for column in columns.copy(first, min(first + TABLE_ROWS, count)):
            content = zlib.compress(to_big_endian(column).tobytes(), 1)
            pieces.append(_COLUMN_HEAD.pack(len(content), crc32(content)) + content)
        parts.append(b"".join(pieces))
    return parts


def write_table(files: Files, path: str, head: TableHead, parts: list[bytes]) -> None:
    """Replaces the table.

    Raises:
        DiskError: the table on the disk is the old one or the new one.
    """

    def pieces() -> Iterator[bytes]:
        content = LITE_TABLE.struct.pack(_MAGIC, *head, len(parts))
        yield content + _CRC.pack(crc32(content))
        yield from parts

    files.replace_file(path, pieces())


def read_table(files: Files, path: str, columns: LiteColumns) -> TableHead:
    """Reads the table into the empty ``columns``.

    Raises:
        StoreDamagedError: there is no table, or it is damaged.
    """
    content = files.read_file(path, _TABLE_BYTES_MAX)
    if content is None:
        raise StoreDamagedError(path, 0, "there is no table", _ADVICE)
    position = LITE_TABLE.size + _CRC.size
    if len(content) < position or content[:8] != _MAGIC:
        raise StoreDamagedError(path, 0, "not a table of lite topics", _ADVICE)
    if _CRC.unpack_from(content, LITE_TABLE.size)[0] != crc32(content[: LITE_TABLE.size]):
        raise StoreDamagedError(path, 0, "the checksum is wrong", _ADVICE)
    _, *fields, parts = LITE_TABLE.unpack(content)
    head = TableHead(*fields)
    if parts != -(-head.names // TABLE_ROWS) or not 0 <= head.from_unit <= head.to_unit:
        raise StoreDamagedError(path, 0, "the counts do not agree", _ADVICE)
    for part in range(parts):
        rows = min(TABLE_ROWS, head.names - part * TABLE_ROWS)
        for column in (columns.nexts, columns.starts, columns.lasts, columns.times):
            position = _read_column(content, position, rows, column, path)
    return head


def _read_column(content: bytes, position: int, rows: int, column: array[int], path: str) -> int:
    """Appends a column of ``rows`` rows to ``column``; returns the position after it."""
    try:
        size, crc = _COLUMN_HEAD.unpack_from(content, position)
        start = position + _COLUMN_HEAD.size
        packed = content[start : start + size]
        if crc32(packed) != crc:
            raise ValueError("the checksum is wrong")
        expected = rows * column.itemsize
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(packed, expected + 1)
        if len(plain) != expected:
            raise ValueError(f"a column has not the length of {rows} rows")
    except (ValueError, zlib.error, struct_error) as error:
        raise StoreDamagedError(path, position, str(error), _ADVICE) from error
    column.extend(to_big_endian(array(column.typecode, plain)))
    return start + len(packed)


class LiteSyncedFile:
    """The file ``synced``. Only one thread at a time may call ``write``."""

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self._files = files
        self._sequence = 0
        self._written = (-1, -1, -1)

    def read(self) -> tuple[int, int, int]:
        """Returns the number of synced units, that of bytes of names, and the oldest unit; if no slot is valid, numbers
        that prove nothing.
        """
        content = self._files.read_file(self.path) or b""
        best = (0, 0, INT64_MAX)
        for start in (0, _SLOT_BYTES):
            slot = content[start : start + LITE_SYNCED.size + _CRC.size]
            if len(slot) < LITE_SYNCED.size + _CRC.size or slot[:8] != _SYNCED_MAGIC:
                continue
            if _CRC.unpack_from(slot, LITE_SYNCED.size)[0] != crc32(slot[: LITE_SYNCED.size]):
                continue
            _, sequence, *numbers = LITE_SYNCED.unpack(slot)
            if sequence > self._sequence:
                self._sequence, best = sequence, (numbers[0], numbers[1], numbers[2])
        return best

    def write(self, units: int, names_bytes: int, first: int) -> None:
        """Notes what is synced; does nothing if it is what was noted last.

        Raises:
            DiskError: the note on the disk is the old one or the new one.
        """
        if self._written == (units, names_bytes, first):
            return
        self._sequence += 1
        content = LITE_SYNCED.struct.pack(_SYNCED_MAGIC, self._sequence, units, names_bytes, first)
        slot = (content + _CRC.pack(crc32(content))).ljust(_SLOT_BYTES, b"\0")
        if self._files.exists(self.path):
            self._files.write_at(self.path, self._sequence % 2 * _SLOT_BYTES, slot)
        else:
            self._files.replace_file(self.path, slot * 2)
        self._written = units, names_bytes, first
