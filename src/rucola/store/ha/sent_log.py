"""The log of a master, as its slaves get it: bytes up to the end of what may leave."""

from __future__ import annotations

from collections.abc import Callable

from rucola.store.log.cold_read import ColdRead
from rucola.store.log.log_reader import LogReader


class SentLog:
    """A log. Event loop only.

    Args:
        log: the log.
        sendable: returns the physical offset up to which slaves may get it.
        segment_bytes: size of a segment.
    """

    def __init__(self, log: LogReader, sendable: Callable[[], int], segment_bytes: int) -> None:
        self._log, self._sendable = log, sendable
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
