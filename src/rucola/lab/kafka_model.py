"""A model of Kafka's layout, written by us from its documentation (Implementation: log, message format). It is not
Kafka.

A partition is a directory with three files: the log, an offset index and a time index. Each index gets one entry for
about every 4,096 bytes of log (``index.interval.bytes``): offset and position (8 bytes), or time and offset (12 bytes).
So both indexes are sparse: a search finds the last entry before its target, and reads the log from there. The model
leaves out batches of several records, the CRC's Castagnoli polynomial, transactions, and more than one segment.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import NamedTuple

BATCH = Struct(">qiibIhiqqqhii")
"""Head of a batch, 61 bytes: base offset, length of what follows, leader epoch, magic, CRC, attributes, last offset
delta, first and last time, producer's id, epoch and sequence, number of records.
"""
KEY = Struct(">i")
OFFSET_ENTRY, TIME_ENTRY = Struct(">ii"), Struct(">qi")
INDEX_INTERVAL_BYTES = 4096
WARM_BYTES = 8192
"""Size in bytes of the warm section: the end of an index, which a search tries first."""
_SCAN_BYTES = 65_536


class PartitionWriter:
    """Appends to one partition."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._log = os.open(directory / "0.log", os.O_WRONLY | os.O_CREAT)
        self._directory = directory
        self._end = self._offset = 0
        self._since_entry = INDEX_INTERVAL_BYTES

    def append(self, key: bytes, value: bytes, time_ms: int) -> None:
        """Appends one record, and adds an entry to each index if the last entries are far enough behind."""
        if self._since_entry >= INDEX_INTERVAL_BYTES:
            self._since_entry = 0
            _add(self._directory / "0.index", OFFSET_ENTRY.pack(self._offset, self._end))
            _add(self._directory / "0.timeindex", TIME_ENTRY.pack(time_ms, self._offset))
        payload = KEY.pack(len(key)) + key + value
        length = BATCH.size - 12 + len(payload)
        crc = zlib.crc32(payload)
        head = BATCH.pack(self._offset, length, 0, 2, crc, 0, 0, time_ms, time_ms, -1, -1, -1, 1)
        os.write(self._log, head + payload)
        self._since_entry += len(head) + len(payload)
        self._end += len(head) + len(payload)
        self._offset += 1

    def sync(self) -> None:
        """Syncs the log. The indexes are not synced: they can be made again from the log."""
        os.fdatasync(self._log)

    def close(self) -> None:
        """Closes the log."""
        os.close(self._log)


def _add(path: Path, entry: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, entry)
    os.close(file)


class Found(NamedTuple):
    """A record and its position in the log."""

    offset: int
    position: int
    time_ms: int
    key: bytes
    value: bytes


class PartitionReader:
    """Reads one partition."""

    def __init__(self, directory: Path) -> None:
        self._log = os.open(directory / "0.log", os.O_RDONLY)
        self._offsets = SparseIndex(directory / "0.index", OFFSET_ENTRY)
        self._times = SparseIndex(directory / "0.timeindex", TIME_ENTRY)

    def records(self, position: int = 0) -> Iterator[Found]:
        """Yields the records from a position on; reads the log in pieces."""
        buffer, start = b"", position
        while True:
            more = os.pread(self._log, _SCAN_BYTES, start + len(buffer))
            buffer, at = buffer + more, 0
            while at + BATCH.size <= len(buffer):
                fields = BATCH.unpack_from(buffer, at)
                end = at + 12 + fields[1]
                if end > len(buffer):
                    break
                key_end = at + BATCH.size + KEY.size + KEY.unpack_from(buffer, at + BATCH.size)[0]
                yield Found(fields[0], start + at, fields[7], buffer[at + 65 : key_end], buffer[key_end:end])
                at = end
            if not more:
                return
            buffer, start = buffer[at:], start + at

    def at_offset(self, offset: int) -> Found:
        """Returns the record with this offset, or the next record; the offset index tells where reading begins."""
        position = self._offsets.entry_before(offset)[1]
        return next(record for record in self.records(position) if record.offset >= offset)

    def at_time(self, time_ms: int) -> Found:
        """Returns the first record at or after a time; uses the time index, then the offset index, then the log."""
        offset = self._times.entry_before(time_ms)[1]
        position = self._offsets.entry_before(offset)[1]
        return next(record for record in self.records(position) if record.time_ms >= time_ms)

    def with_key(self, key: bytes) -> Found:
        """Returns the first record with this key. There is no index of keys, so the log is read from its beginning."""
        return next(record for record in self.records() if record.key == key)

    def close(self) -> None:
        """Closes files and maps."""
        os.close(self._log)
        self._offsets.close()
        self._times.close()


class SparseIndex:
    """A mapped index. Its binary search first tries the warm section, which is at the end of the index."""

    def __init__(self, path: Path, entry: Struct) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._map.madvise(mmap.MADV_RANDOM)
        self._entry = entry
        self.entries = len(self._map) // entry.size

    def entry_before(self, target: int, warm: bool = True) -> tuple[int, int]:
        """Returns the last entry whose first number is at most ``target``, or the first entry if all have larger
        numbers.
        """
        low, high = 0, self.entries - 1
        first_warm = max(0, high - WARM_BYTES // self._entry.size)
        if warm and self._key(first_warm) < target:
            low = first_warm
        while low < high:
            middle = (low + high + 1) // 2
            if self._key(middle) <= target:
                low = middle
            else:
                high = middle - 1
        found = self._entry.unpack_from(self._map, low * self._entry.size)
        return found[0], found[1]

    def _key(self, number: int) -> int:
        key: int = self._entry.unpack_from(self._map, number * self._entry.size)[0]
        return key

    def close(self) -> None:
        """Closes the map."""
        self._map.close()
