"""The timer log: a unit for each waiting message, appended in the order of the timer topic's queue (``formats.timer``).

The event loop's thread appends and reads units. One thread at a time may call ``sync``.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import NamedTuple

from rucola.formats.timer import (
    STOP_AT_LIMIT,
    STOP_AT_NO_UNIT,
    TIMER_BLANK,
    TIMER_BLANK_MAGIC,
    TIMER_UNIT,
    TIMER_UNIT_BYTES,
    UNIT_COLUMNS,
    chain_units,
    scan_units,
)
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files
from rucola.store.log.mapped_file import MappedFile
from rucola.store.log.segment_list import SegmentList

_CHAIN_STEP = 4096
_MAGIC = Struct(">i")
_MAGIC_AT = TIMER_UNIT.position("magic")
_PIECE_UNITS = 20_000
_PIECE_BYTES = TIMER_UNIT_BYTES * _PIECE_UNITS
"""Number of bytes of a segment that are read at a time."""


class WaitingUnit(NamedTuple):
    """The fields of a unit that describe its message, in the order of ``chain_units``."""

    physical_offset: int
    size: int
    magic: int
    write_time_ms: int


class LoggedUnit(NamedTuple):
    """A unit and its position in the timer log."""

    position: int
    magic: int
    write_time_ms: int
    due_ms: int
    physical_offset: int


class TimerLog:
    """Reads and writes the timer log.

    Attributes:
        files: the segments.
        end: position after the last unit.
    """

    def __init__(self, files: Files, path: str, segment_bytes: int) -> None:
        self.segments = SegmentList(files, path, segment_bytes)
        self.end = 0
        self._files = files
        self._synced = 0
        self._last_unit = ((segment_bytes - TIMER_BLANK.size) // TIMER_UNIT_BYTES - 1) * TIMER_UNIT_BYTES
        """Position of the last unit in a full segment."""

    def load(self) -> None:
        """Opens the segments. ``recover`` sets ``end``.

        Raises:
            StoreDamagedError: a file is not a segment, or a segment is missing.
        """
        self.segments.load()

    def recover(
        self, position: int, wheel: FileMap, precision_ms: int, physical_end: int, seen_from: int
    ) -> tuple[set[int], int]:
        """Finds the end of the timer log, zeroes the bytes after the end, and removes later segments. Adds the units to
        the wheel, beginning with those of the segment that holds ``position``.

        Args:
            physical_end: end of the commit log; the timer log ends before the first unit whose record reaches beyond
                ``physical_end``.
            seen_from: the result lists only records from this physical offset on.

        Returns:
            The physical offsets of the records from ``seen_from`` on that have a unit, and the physical offset of the
            last unit's record; -1 if there is no unit.
        """
        seen: set[int] = set()
        last = -1
        self.end = self.segments.start
        room = array("q", bytes(8 * (_PIECE_UNITS + 1)))
        for file in list(self.segments.files):
            whole = True
            if file.end > position or file is self.segments.files[-1]:
                # A killed process may have left bytes of the segment in memory only. The segment is mapped here, so
                # that the next sync covers these bytes.
                _ = file.map
                for at in range(0, file.size, _PIECE_BYTES):
                    # The bytes are read by a system call, because pages that are accessed through the memory map stay
                    # in the memory of the process.
                    piece = self._files.read_at(file.path, at, _PIECE_BYTES)
                    done, stop, count, newest = scan_units(
                        piece, 0, file.start + at, physical_end, wheel.buffer, precision_ms, seen_from, room
                    )
                    seen.update(room[:count])
                    last = newest if newest >= 0 else last
                    self.end = file.start + at + done
                    whole = stop != STOP_AT_NO_UNIT
                    if stop != STOP_AT_LIMIT:
                        break
            if not whole:
                break
            if file is not self.segments.files[-1]:
                self.end = file.end
        self._cut()
        return seen, last

    def append(
        self,
        previous_position: int,
        magic: int,
        write_time_ms: int,
        delay_ms: int,
        physical_offset: int,
        size: int,
        topic_hash: int,
    ) -> int:
        """Appends a unit; returns its position.

        Raises:
            DiskFullError: no space; nothing was changed.
        """
        file = self.segments.find(self.end)
        if file is not None and TIMER_UNIT_BYTES + TIMER_BLANK.size > file.end - self.end:
            at = self.end - file.start
            if file.size - at >= TIMER_BLANK.size:
                self._allocate(file, at + TIMER_BLANK.size)
                TIMER_BLANK.struct.pack_into(file.map.view, at, file.size - at, 0, TIMER_BLANK_MAGIC)
            self.end = file.end
            file = self.segments.find(self.end)
        if file is None:
            file = self.segments.append(self.end)
        at = self.end - file.start
        self._allocate(file, at + TIMER_UNIT_BYTES)
        TIMER_UNIT.struct.pack_into(
            file.map.view,
            at,
            TIMER_UNIT_BYTES,
            previous_position,
            magic,
            write_time_ms,
            delay_ms,
            physical_offset,
            size,
            topic_hash,
            0,
        )
        position = self.end
        self.end += TIMER_UNIT_BYTES
        return position

    def chain(self, position: int) -> array[int]:
        """Returns the units of the chain that begins at ``position``, newest first, each as ``UNIT_COLUMNS``
        integers.
        """
        units = array("q")
        out = array("q", bytes(8 * UNIT_COLUMNS * _CHAIN_STEP))
        while 0 <= position < self.end:
            file = self.segments.find(position)
            if file is None:
                break
            count, following = chain_units(file.map.buffer, file.start, position, out)
            units += out[: UNIT_COLUMNS * count]
            if following >= position:
                break
            position = following
        return units

    def units_from(self, position: int, count: int) -> list[LoggedUnit]:
        """Returns up to ``count`` units from ``position`` on, in the order in which they were appended."""
        units: list[LoggedUnit] = []
        while len(units) < count and position < self.end:
            file = self.segments.find(position)
            if file is None:
                break
            at = position - file.start
            if at > self._last_unit:  # the segment ends with a blank
                position = file.end
                continue
            fitting = min((self._last_unit - at) // TIMER_UNIT_BYTES + 1, (self.end - position) // TIMER_UNIT_BYTES)
            length = min(fitting, count - len(units)) * TIMER_UNIT_BYTES
            for unit in TIMER_UNIT.struct.iter_unpack(file.map.view[at : at + length]):
                units.append(LoggedUnit(position, unit[2], unit[3], unit[3] + unit[4], unit[5]))
                position += TIMER_UNIT_BYTES
        return units

    def set_magic(self, position: int, magic: int) -> None:
        """Changes the magic of a unit. The change reaches the disk with the pages of the file, without a sync."""
        file = self.segments.find(position)
        if file is not None:
            at = position - file.start
            _MAGIC.pack_into(file.map.view, at + _MAGIC_AT, magic)

    def sync(self) -> int:
        """Syncs everything appended so far; returns the position up to which the timer log is synced.

        Raises:
            DiskError: the units may not have reached the disk.
        """
        end = self.end
        for file in list(self.segments.files):
            if file.end > self._synced:
                file.sync()
        self._synced = end
        return end

    def remove_expired(self, min_offset: int) -> None:
        """Removes the oldest segments, as long as all their records lie before ``min_offset``; never removes the last
        segment.

        Raises:
            DiskError: a file cannot be removed.
        """
        while len(self.segments.files) > 1:
            file = self.segments.files[0]
            if TIMER_UNIT.unpack(file.map.view, self._last_unit)[5] >= min_offset:
                break
            self.segments.files = self.segments.files[1:]
            file.close()
            self._files.remove(file.path)
            self._files.sync_directory(self.segments.path)

    def close(self) -> None:
        """Unmaps all files."""
        self.segments.close()

    def _allocate(self, file: MappedFile, position: int) -> None:
        file.allocated = max(file.allocated, self.end - file.start)
        file.allocate_to(position)

    def _cut(self) -> None:
        """Overwrites the bytes after ``end`` with zeros and removes later segments."""
        self.segments.remove_after(self.end)
        file = self.segments.find(self.end)
        if file is not None:
            file.zero(self.end - file.start)
        self._synced = 0
