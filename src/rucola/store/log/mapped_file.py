"""One segment: a file of fixed length that holds the bytes of a log from ``start`` on. The file is mapped when it is
needed.

One thread maps, parks (unmaps for a while) and closes the file. Another thread may sync the file at any time, except
while it is being parked. A sync covers everything written before ``sync`` was called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rucola.errors import DiskError, StoreDamagedError
from rucola.runtime.file_map import Buffer, FileMap
from rucola.runtime.files import Files
from rucola.store.log.transient_store_pool import PoolBuffer

ALLOCATION_STEP = 64 * 1024
"""Blocks of a growing segment are allocated in steps of this many bytes."""

_ZEROS = bytes(ALLOCATION_STEP)
_GROUP_BITS = 16


class MappedFile:
    """A segment of a ``SegmentList``.

    Attributes:
        path: path of the file.
        start: offset of its first byte in the log; the name of the file is the same number with 20 digits.
        size: length in bytes.
        end: offset after its last byte.
        allocated: number of bytes from the start that are known to have disk blocks, so that a write through the map
            cannot fail.
        pending: memory that receives the bytes before they are written to the file; None if bytes are written directly
            into the map.

    Args:
        scattered: whether reads and writes are small and spread over the file; if True, nothing is read ahead.
        on_map: called each time the file is mapped.
    """

    __slots__ = (
        "_ahead",
        "_files",
        "_mapped",
        "_on_map",
        "_parked",
        "_readable",
        "_scattered",
        "_writable",
        "allocated",
        "end",
        "path",
        "pending",
        "size",
        "start",
    )

    def __init__(
        self,
        files: Files,
        path: str,
        start: int,
        size: int,
        writable: bool,
        allocated: int,
        scattered: bool = False,
        on_map: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.end = start + size
        self.allocated = allocated
        self.pending: PoolBuffer | None = None
        self._files = files
        self._writable = writable
        self._scattered = scattered
        self._ahead = True
        self._on_map = on_map
        self._parked: FileMap | None = None
        self._mapped: FileMap | None = None
        self._readable: set[int] | range | None = None

    def write_behind(self, buffer: PoolBuffer | None) -> None:
        """Lets ``buffer`` receive the new bytes, which a commit writes into the file. None if no buffer is free."""
        self.pending = buffer

    def committed(self) -> PoolBuffer | None:
        """Returns the buffer, whose bytes are all in the file; None if there was none."""
        buffer, self.pending = self.pending, None
        return buffer

    def set_read_ahead(self, ahead: bool) -> None:
        """Sets whether later reads also load the bytes after them into memory."""
        self._ahead = ahead
        if self._mapped is not None:
            self._mapped.read_ahead(ahead)

    def end_fill(self) -> None:
        """Ends what ``FileMap.expect_fill`` announced: the file is full."""
        self.set_read_ahead(self._ahead)

    @property
    def target(self) -> FileMap | PoolBuffer:
        """The buffer that receives new bytes."""
        return self.pending or self.map

    @property
    def map(self) -> FileMap:
        """The mapped file; maps the file if it is not mapped."""
        return self._mapped or self._map_file()

    def _map_file(self) -> FileMap:
        segment = self._parked
        if segment is None or not segment.map():
            segment = self._files.map_file(self.path, self.size, self._writable)
        # Python sets ``_mapped`` first. It must be set before ``_parked`` is cleared, because ``sync``, on another
        # thread, reads ``_parked`` first.
        self._mapped, self._parked = segment, None
        if self._scattered:
            segment.expect_scattered()
        if not self._ahead:
            segment.read_ahead(False)
        if self._on_map is not None:
            self._on_map()
        return segment

    @property
    def buffer(self) -> Buffer:
        """The map as a buffer, for Cython kernels."""
        return (self._mapped or self.map).buffer

    @property
    def view(self) -> memoryview:
        """The map as a memoryview, for slices."""
        return (self._mapped or self.map).view

    def ensure(self, position: int, length: int) -> None:
        """Reads part of the file from the disk before it is first accessed through the map.

        Raises:
            DiskError: the disk cannot read this part; an access through the map would kill the process.
        """
        if isinstance(self._readable, range):
            return
        if self._readable is None:
            self._readable = set()
        for group in _groups(position, position + length):
            if group not in self._readable:
                start, end = group << _GROUP_BITS, min(group + 1 << _GROUP_BITS, self.size)
                self._read_once(start, end)
                self._readable.add(group)

    def set_readable(self) -> None:
        """Notes that the whole file has been read into memory, so that later calls do not read it again."""
        self._readable = _groups(0, self.size)

    def _read_once(self, start: int, end: int) -> None:
        if self._readable is not None and all(group in self._readable for group in _groups(start, end)):
            return
        stopped = self.map.readable_end(start, end)
        if stopped < end:
            raise DiskError(self.path, "read", f"the disk cannot read position {stopped}", stopped)

    def allocate_to(self, position: int) -> None:
        """Allocates disk blocks beyond ``allocated`` until ``position`` is covered. The bytes after ``allocated`` must
        hold no data.

        Raises:
            DiskFullError: there is no space; nothing was changed.
        """
        if position > self.allocated:
            target = min(self.size, -(-position // ALLOCATION_STEP) * ALLOCATION_STEP)
            self.map.allocate(self.allocated, target - self.allocated)
            self.allocated = target

    def zero(self, position: int) -> bool:
        """Fills the file with zeros from ``position`` to its end; returns whether any byte was not zero.

        Only blocks with nonzero bytes are written, so that holes stay holes.
        """
        view, changed = self.map.view, False
        for start, end in self._nonzero_ranges(position):
            view[start:end] = bytes(end - start)
            changed = True
        return changed

    def data_end(self, position: int) -> int:
        """Returns the position after the last nonzero byte at or after ``position``; ``position`` if only zeros
        follow.
        """
        end = position
        for start, stop in self._nonzero_ranges(position):
            end = start + len(bytes(self.map.view[start:stop]).rstrip(b"\0"))
        return end

    def _nonzero_ranges(self, position: int) -> Iterator[tuple[int, int]]:
        """Yields the ranges at or after ``position`` that hold nonzero bytes, each of at most ``ALLOCATION_STEP``
        bytes.
        """
        segment = self.map
        for first, last in segment.data_ranges(position):
            for start in range(first, last, ALLOCATION_STEP):
                end = min(start + ALLOCATION_STEP, last)
                self._read_once(start, end)
                if bytes(segment.view[start:end]) != _ZEROS[: end - start]:
                    yield start, end

    def sync(self) -> None:
        """Syncs the file if it is mapped, or if ``park`` kept its descriptor. A file that was never mapped was never
        written.
        """
        parked = self._parked
        segment = parked or self._mapped
        if segment is not None:
            segment.sync()
        if parked is not None and parked.close_unmapped():
            self._parked = None

    def park(self, unsynced: bool) -> bool:
        """Unmaps the file for a while. The caller makes sure that no ``sync`` of the file runs at the same time.

        Args:
            unsynced: whether the file was written after the last sync; if True, its descriptor is kept for the next
                sync.

        Returns:
            True if a descriptor is kept for the next sync, from this map or from an earlier one.
        """
        segment = self._mapped
        if segment is not None and unsynced:
            segment.unmap()
            self._parked, self._mapped = segment, None
        elif segment is not None:
            self.close()
        return self._parked is not None

    def close(self) -> None:
        """Unmaps the file and closes its descriptor. The next access opens and maps the file again."""
        segment, self._mapped = self._mapped, None
        parked, self._parked = self._parked, None
        for mapped in (segment, parked):
            if mapped is not None:
                mapped.close()


def _groups(start: int, end: int) -> range:
    """Returns the indices of the groups of pages that hold the bytes from ``start`` to ``end``."""
    return range(start >> _GROUP_BITS, (end - 1 >> _GROUP_BITS) + 1)


@contextmanager
def readable() -> Iterator[None]:
    """Turns a read error of the disk into ``StoreDamagedError``.

    Raises:
        StoreDamagedError: the disk could not read a part.
    """
    try:
        yield
    except DiskError as error:
        if error.operation != "read":
            raise
        advice = "restore the file from a copy, or start with --quarantine to serve the rest"
        raise StoreDamagedError(error.path, error.position, error.reason, advice) from error
