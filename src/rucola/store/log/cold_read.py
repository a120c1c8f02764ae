"""Reads messages that may no longer be in memory: copies them from the file instead of accessing the file's map.

An access through the map to a page that is not in memory stops the whole process until the disk has delivered it. If
the disk cannot read the page, the process is killed. A copy by system call reports which case applies: the data is in
memory, it must be fetched from the disk, or the disk cannot read it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Protocol

from rucola.errors import DiskError, StoreError
from rucola.runtime.file_map import Buffer, FileMap
from rucola.store.log.mapped_file import MappedFile

COPY_MAX_BYTES = 8 << 20
"""Largest number of bytes that are copied at a time. A unit with a larger size is either damaged or belongs to one of
the rare giant messages. The record of such a unit is read through the map, which loads only the pages accessed.
"""
_SIZE_BYTES = 4
"""Length in bytes of the size field at the start of a record."""


class LogPart(Protocol):
    """The bytes of the log from ``start`` to ``end``."""

    @property
    def start(self) -> int:
        """Physical offset of the first byte."""

    @property
    def end(self) -> int:
        """Physical offset after the last byte."""

    @property
    def buffer(self) -> Buffer:
        """The bytes as a buffer, for Cython kernels."""

    @property
    def view(self) -> memoryview:
        """The bytes as a memoryview, for slices."""


FindPart = Callable[[int], LogPart | None]
"""Returns the part that holds a physical offset."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A part of the log, copied into memory of its own."""

    start: int
    buffer: bytearray
    view: memoryview

    @property
    def end(self) -> int:
        """Physical offset after the last byte."""
        return self.start + len(self.buffer)


class ColdRead:
    """Parts of the log that must be fetched from the disk."""

    def __init__(self) -> None:
        self._parts: list[tuple[FileMap, int, int]] = []

    def add(self, segment: FileMap, position: int, length: int) -> None:
        """Adds ``length`` bytes from ``position`` of ``segment``."""
        self._parts.append((segment, position, length))

    def fetch(self) -> None:
        """Loads the parts into memory. Any thread may call it. Errors are raised by the read that follows."""
        for segment, position, length in self._parts:
            with suppress(DiskError):
                segment.read(position, length)


class NotInMemoryError(StoreError):
    """Records must be read from the disk: call ``cold.fetch``, then repeat the call."""

    def __init__(self, cold: ColdRecords) -> None:
        super().__init__(cold)
        self.cold = cold

    def __str__(self) -> str:
        return "records are not in memory"


class ColdRecords:
    """Tracks records that are read one by one and whose sizes are not known in advance: lists records that are not in
    memory, then fetches them.

    One object serves one operation, from its first attempt to its last. Records that were fetched for the operation
    count as being in memory.
    """

    def __init__(self) -> None:
        self._wanted: dict[tuple[int, int], tuple[MappedFile, FileMap]] = {}
        """The records to fetch: physical offset and number of bytes; 0 means the whole record."""
        self._looked_at: set[tuple[int, int]] = set()
        self._unreadable: set[tuple[int, int]] = set()

    def check(self) -> None:
        """Does nothing if no record must be fetched.

        Raises:
            NotInMemoryError: at least one record must be fetched.
        """
        if self._wanted:
            raise NotInMemoryError(self)

    def waits(self, file: MappedFile, physical_offset: int, length: int = 0) -> bool:
        """Whether the record at ``physical_offset`` of ``file`` must not be read: it has not been fetched yet, or the
        disk cannot read it.

        Args:
            length: number of bytes that are needed; 0 means the whole record.
        """
        key = physical_offset, length
        if key in self._wanted:
            return True
        if key not in self._looked_at:
            if not _is_resident(file, physical_offset, length):
                self._wanted[key] = file, file.map
                return True
            self._looked_at.add(key)
        return key in self._unreadable

    def fetch(self) -> None:
        """Fetches the records that ``waits`` has noted. Any thread may call it while no other thread reads the
        records.
        """
        for (physical_offset, length), (file, segment) in self._wanted.items():
            position = physical_offset - file.start
            try:
                size = length or _size_in(segment.read(position, _SIZE_BYTES))
                segment.read(position, min(size, file.end - physical_offset))
            except DiskError:
                self._unreadable.add((physical_offset, length))
        self._looked_at.update(self._wanted)
        self._wanted.clear()


def _is_resident(file: MappedFile, physical_offset: int, length: int) -> bool:
    """Whether a record, or ``length`` bytes of it, is in memory."""
    position = physical_offset - file.start
    if not length:
        head = memoryview(bytearray(_SIZE_BYTES))
        if not file.map.read_resident(position, head):
            return False
        length = _size_in(head)
    return file.map.read_resident(position, memoryview(bytearray(min(length, file.end - physical_offset))))


def _size_in(head: bytes | bytearray | memoryview) -> int:
    """Returns the size that a record states, limited to plausible values."""
    return min(max(int.from_bytes(head[:_SIZE_BYTES], "big", signed=True), _SIZE_BYTES), COPY_MAX_BYTES)


class Copies:
    """Copies the records of some units.

    Attributes:
        cold: the parts that were not in memory and were not read from disk; None if everything was read. If ``cold`` is
            set, ignore the other attributes.
        complete: whether all records could be read.
    """

    def __init__(self) -> None:
        self.cold: ColdRead | None = None
        self.complete = True
        self._parts: list[LogPart] = []

    def take(self, chosen: array[int], count: int, find: Callable[[int], MappedFile | None], may_block: bool) -> None:
        """Copies the records to which ``count`` units point; adjacent records are copied together.

        If a record is longer than its unit states, the whole record is copied.

        Args:
            chosen: pairs of physical offset and size.
            find: returns the segment that holds a physical offset.
            may_block: whether to wait for the disk.
        """
        at = 0
        spans: list[tuple[int, int, MappedFile, int]] = []
        while at < count:
            begin = end = last = chosen[2 * at]
            file = find(begin)
            stop = begin + 1 if file is None else file.end
            while at < count and chosen[2 * at] == end < stop:
                last = end
                end += max(chosen[2 * at + 1], 1)
                at += 1
            if file is None:
                self.complete = False
            else:
                spans.append((begin, min(end, stop), file, last))
        for begin, end, file, last in _apart(spans):
            if end - begin > COPY_MAX_BYTES:
                self._parts.append(file)
            elif (copy := self._copy(file, begin, end, may_block)) is not None:
                whole_end = min(last + _size_in(copy.view[last - begin :]), file.end)
                if whole_end > end:
                    copy = self._copy(file, begin, whole_end, may_block) or copy
                self._parts.append(copy)
        self._parts.sort(key=attrgetter("start"))

    def find(self, physical_offset: int) -> LogPart | None:
        """Returns the copy that holds ``physical_offset``; None when this part could not be read."""
        for index in range(bisect_right(self._parts, physical_offset, key=attrgetter("start")) - 1, -1, -1):
            if physical_offset < self._parts[index].end:
                return self._parts[index]
        return None

    def _copy(self, file: MappedFile, begin: int, end: int, may_block: bool) -> Copy | None:
        buffer = bytearray(end - begin)
        view = memoryview(buffer)
        position = begin - file.start
        if may_block:
            try:
                view[:] = file.map.read(position, len(buffer))
            except DiskError:
                self.complete = False
                return None
        elif not file.map.read_resident(position, view):
            self.cold = self.cold or ColdRead()
            self.cold.add(file.map, position, len(buffer))
            return None
        return Copy(begin, buffer, view)


def _apart(spans: list[tuple[int, int, MappedFile, int]]) -> list[tuple[int, int, MappedFile, int]]:
    """Merges spans that overlap. Spans overlap only if a unit is damaged. The span of the damaged unit may end in the
    middle of the record of an intact unit; without the merge, the copy of that record could be incomplete.

    Args:
        spans: begin, end, segment, and the start of the last record.
    """
    apart: list[tuple[int, int, MappedFile, int]] = []
    for span in sorted(spans, key=itemgetter(0)):
        if apart and span[0] < apart[-1][1]:
            begin, end, file, last = apart[-1]
            apart[-1] = begin, max(end, span[1]), file, max(last, span[3])
        else:
            apart.append(span)
    return apart
