"""The log of a master, as its slaves get it: bytes up to the end of what may leave."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from struct import Struct
from typing import Final

from rucola.formats.message import RECORD_HEAD
from rucola.formats.record_search import find_record
from rucola.store.log.cold_read import ColdRead
from rucola.store.log.log_reader import HEAD_BYTES, LogReader

_LOOK_BYTES: Final = 64 * 1024
_LOOKS_MAX: Final = 128
"""Number of looks for the next record, which may follow a record of up to 4 MiB."""
_I64 = Struct(">q")
_PHYSICAL_OFFSET_AT = RECORD_HEAD.position("physical_offset")


class SentLog:
    """A log. Event loop only.

    Args:
        log: the log.
        sendable: returns the physical offset up to which slaves may get it.
        segment_bytes: size of a segment.
        newest_ms: returns the store time of the newest record, in ms.
    """

    def __init__(
        self, log: LogReader, sendable: Callable[[], int], segment_bytes: int, newest_ms: Callable[[], int]
    ) -> None:
        self._log, self._sendable, self._newest_ms = log, sendable, newest_ms
        self.segment_bytes = segment_bytes

    @property
    def min_offset(self) -> int:
        """Physical offset of the first byte that has not expired."""
        return self._log.min_offset

    @property
    def sendable_offset(self) -> int:
        """Physical offset up to which slaves may get the log: with SYNC_FLUSH, what is synced."""
        return self._sendable()

    def copy_of(self, physical_offset: int, most: int, cold: ColdRead | None) -> bytes | bytearray | None:
        """Returns up to ``most`` bytes from ``physical_offset``, of one segment and below ``sendable_offset``.

        Args:
            physical_offset: an offset of the log.
            most: largest number of bytes.
            cold: gets what is not in memory; the result is then None. Without it, the call waits for the disk.

        Raises:
            DiskError: the disk cannot read these bytes.
        """
        file = self._log.segments.find(physical_offset)
        assert file is not None, "an offset from min_offset up to sendable_offset"
        position = physical_offset - file.start
        length = min(most, file.end - physical_offset, self.sendable_offset - physical_offset)
        if cold is None:
            return file.map.read(position, length)
        content = bytearray(length)
        if file.map.read_resident(position, memoryview(content)):
            return content
        if file.map.is_resident(position, length):  # the file system cannot tell
            return file.map.read(position, length)
        cold.add(file.map, position, length)
        return None

    def seconds_from(self, physical_offset: int) -> float:
        """Returns the seconds between the store times of the newest record and of the first one that begins at
        ``physical_offset`` or behind it; 0 if there is none, NaN if it is not in memory. What lies before the beginning
        of the log counts as its beginning.
        """
        at = max(physical_offset, self.min_offset)
        for _ in range(_LOOKS_MAX):
            if at >= self.sendable_offset:
                return 0.0
            content = self.copy_of(at, _LOOK_BYTES, ColdRead())
            if content is None:
                return nan
            record = self._record_in(bytes(content), at)
            if record >= 0:
                return max(self._newest_ms() - self._log.store_timestamp(record), 0) / 1000
            # The first bytes of a record may be the last ones of this look, except at the end of a segment.
            whole = len(content) < _LOOK_BYTES or len(content) <= HEAD_BYTES
            at += len(content) if whole else len(content) - HEAD_BYTES
        return nan

    @staticmethod
    def _record_in(content: bytes, start: int) -> int:
        """Returns the physical offset of the first record that begins in ``content``, with its first bytes; -1 if none
        does.
        """
        last, at = len(content) - HEAD_BYTES, 0
        while 0 <= (at := find_record(content, at, len(content))) <= last:
            if _I64.unpack_from(content, at + _PHYSICAL_OFFSET_AT)[0] == start + at:
                return start + at
            at += 1
        return -1
