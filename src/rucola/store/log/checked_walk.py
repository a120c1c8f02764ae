"""Walks records of segments on a disk that may have unreadable sectors.

An access through a map that touches an unreadable sector kills the process. Each part of a segment is therefore read
with a system call before the walk reaches that part.
"""

from __future__ import annotations

from array import array

from rucola.common.columns import ROW_WIDTH, WalkStop
from rucola.formats.checksum import crc32
from rucola.formats.message import walk_records
from rucola.store.log.mapped_file import MappedFile

_AHEAD_BYTES = 256 * 1024
_HEAD_BYTES = 8


class CheckedWalk:
    """Walks forwards, one segment after the other.

    Attributes:
        table: the rows of the last call.
        unreadable: whether the last call stopped at a record that the disk cannot read.

    Args:
        stretches: see ``walk_records``.
    """

    def __init__(self, table: array[int], stretches: array[int] | None = None) -> None:
        self.table = table
        self._stretches = stretches
        self.unreadable = False
        self._file: MappedFile | None = None
        self._end = 0
        self._bad = False

    def walk(self, file: MappedFile, position: int, check: int) -> tuple[int, int, int]:
        """Does the same as ``walk_records``, beginning at ``position`` of the segment. This method may stop after any
        record, as if the table were full.
        """
        if file is not self._file or position > self._end:
            self._file, self._end, self._bad = file, position, False
        segment, rows_max = file.map, len(self.table) // ROW_WIDTH
        while True:
            rows, behind, stop = walk_records(
                segment.buffer,
                segment.view,
                position,
                self._end,
                file.start,
                self.table,
                rows_max,
                crc32,
                check,
                self._stretches,
            )
            wanting = not rows and stop in (WalkStop.TORN, WalkStop.LIMIT) and self._is_cut(file, position)
            self.unreadable = wanting and self._bad
            if rows and stop in (WalkStop.TORN, WalkStop.LIMIT):
                return rows, behind, WalkStop.TABLE_FULL
            if not wanting or self._bad or self._end == file.size:
                return rows, behind, WalkStop.TORN if wanting and stop == WalkStop.LIMIT and self._bad else stop
            self._read_on(file, _AHEAD_BYTES)

    def read_to(self, file: MappedFile, end: int) -> int:
        """Reads the walked segment up to ``end``; returns the position up to which it may be accessed."""
        if end > self._end and not self._bad:
            self._read_on(file, end - self._end)
        return self._end

    def _is_cut(self, file: MappedFile, position: int) -> bool:
        """Whether the record at ``position`` may extend beyond what was read."""
        left = self._end - position
        if left < _HEAD_BYTES:
            return True
        return int.from_bytes(file.map.view[position : position + 4], "big", signed=True) > left

    def _read_on(self, file: MappedFile, length: int) -> None:
        target = min(self._end + length, file.size)
        self._end, wanted = file.map.readable_end(self._end, target), target
        self._bad = self._end < wanted
