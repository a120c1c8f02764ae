"""A store file that is mapped into memory: its map, and the system calls on its file descriptor."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from rucola.errors import DiskError
from rucola.runtime.disk_calls import DescriptorCalls, DiskCall, disk_error, read_at, read_into, write_all
from rucola.runtime.extents import has_blocks
from rucola.runtime.memory import lock_memory

Buffer: TypeAlias = "mmap.mmap | bytearray"
"""Types of buffer from which Rucola's Cython kernels read records."""

_MADV_POPULATE_WRITE = 23
_READ_STEP = 256 * 1024
"""Number of bytes read at a time; a buffer of this size stays in the CPU cache."""
PAGE_BYTES = 4096
"""Least number of bytes that memory or a disk loses or keeps together."""
_NO_WAIT: int | None = getattr(os, "RWF_NOWAIT", None)


def whole_pages(length: int) -> int:
    """``length`` rounded up to whole pages of memory."""
    return -(-length // mmap.PAGESIZE) * mmap.PAGESIZE


class FileMap:
    """One mapped file. ``buffer`` and ``view`` may be used only on the thread that maps, unmaps and closes the file.

    Any thread may call ``sync``. ``sync`` syncs the opened file, even if a different file is now at its path. A
    ``close`` during a sync leaves the descriptor open until the sync ends.

    Attributes:
        buffer: the map itself, for the Cython kernels.
        view: the map as a memoryview; a slice of it stays valid after ``unmap`` and ``close``.
    """

    def __init__(self, calls: DescriptorCalls, path: str, descriptor: int, size: int, writable: bool) -> None:
        self.path = path
        self.size = size
        self._access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self.buffer = mmap.mmap(descriptor, size, access=self._access)
        self.view = memoryview(self.buffer)
        self._calls = calls
        self._descriptor = descriptor
        self._guard = threading.Lock()
        self._mapped = True
        self._uses = 0
        self._closed = False

    def map(self) -> bool:
        """Maps the file again after ``unmap``; returns False if it has been closed.

        Raises:
            DiskError: the file cannot be mapped; this object is unchanged.
        """
        with self._guard:
            if self._closed:
                return False
            with DiskCall(self.path, "map"):
                self.buffer = mmap.mmap(self._descriptor, self.size, access=self._access)
            self.view = memoryview(self.buffer)
            self._mapped = True
        return True

    def unmap(self) -> None:
        """Unmaps the file without closing it. While slices exist, their memory stays mapped."""
        with self._guard:
            self._mapped = False
        self._release()

    def close_unmapped(self) -> bool:
        """Closes the file unless it is mapped; returns whether it is closed now."""
        with self._guard:
            if not self._mapped:
                self._close()
            return self._closed

    def _release(self) -> None:
        self.view.release()
        with suppress(BufferError):  # slices exist; the file is unmapped when the last of them is freed
            self.buffer.close()

    def _close(self) -> None:
        """Closes the descriptor. The caller holds the lock ``_guard``."""
        self._closed = True
        if not self._uses and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def allocate(self, position: int, length: int) -> None:
        """Allocates blocks for a part of the file that holds no data yet; see ``DescriptorCalls.allocate``.

        The part is extended to the end of its last page: the first write to a mapped page needs blocks for all of it,
        and where blocks are smaller than pages, a full disk would kill the process.

        Raises:
            DiskFullError: there is no space. A disk that refuses to allocate what has blocks already, as a full xfs
                does, is no reason.
        """
        self._blocks(self._calls.allocate, position, length)

    def fill_holes(self, position: int, length: int) -> None:
        """Allocates blocks for a part of the file that may hold data: other writers leave holes. Does nothing where
        the system cannot allocate without writing. Otherwise as ``allocate``.
        """
        self._blocks(self._calls.fill_holes, position, length)

    def _blocks(self, allocate: Callable[[int, int, int], object], position: int, length: int) -> None:
        length = min(whole_pages(position + length), self.size) - position
        with DiskCall(self.path, "allocate"):
            try:
                allocate(self._descriptor, position, length)
            except OSError as error:
                if error.errno != errno.ENOSPC or not has_blocks(self._descriptor, position, length):
                    raise

    def populate(self, position: int, length: int) -> None:
        """Triggers, in one call, the page faults that later writes to ``length`` bytes from ``position`` would cause
        (Linux 5.14 or newer).

        The first write to a page of a fresh file causes a fault, which takes several microseconds. If one call triggers
        many faults, each takes a tenth of that. The content of the file does not change. ``position`` is a multiple of
        the page size.
        """
        if self._calls.populate_write:
            try:
                self.buffer.madvise(_MADV_POPULATE_WRITE, position, min(length, self.size - position))
            except (AttributeError, OSError):
                # The system does not know this advice or refuses it: each page then causes a fault at its first write.
                self._calls.populate_write = False

    def expect_scattered(self) -> None:
        """Announces random access: a page fault then loads only its own page.

        Without this, the system reads ahead by the amount set for the disk, which may be several megabytes. In a store
        with very many queues, this would happen at the first access to each queue.
        """
        with suppress(AttributeError, OSError):
            self.buffer.madvise(mmap.MADV_RANDOM)

    def expect_fill(self, position: int) -> None:
        """Announces that system calls will write the bytes from ``position`` on, and that they are read in the map
        soon after. ``read_ahead`` ends this.

        Without this, reads of the new pages make the system load what follows them: pages of zeros, up to several
        megabytes at a time, which it fills once more when they are written.
        """
        position += -position % PAGE_BYTES
        with suppress(AttributeError, OSError, ValueError):
            self.buffer.madvise(mmap.MADV_RANDOM, position, self.size - position)

    def read_ahead(self, ahead: bool) -> None:
        """Sets whether a page fault, or a read by system call, also loads the bytes after those requested."""
        # Both calls are only advice, and another thread may be unmapping the file at this moment.
        with suppress(AttributeError, OSError, ValueError):
            self.buffer.madvise(mmap.MADV_NORMAL if ahead else mmap.MADV_RANDOM)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_NORMAL if ahead else os.POSIX_FADV_RANDOM)

    def write(self, position: int, content: bytes | memoryview) -> None:
        """Writes at ``position`` by a system call. The bytes are then visible in the map too. Other threads run during
        the call.
        """
        with DiskCall(self.path, "write"):
            write_all(self._descriptor, content, position)

    def lock(self, position: int, length: int) -> str:
        """Locks part of the file in memory until the file is unmapped; returns the reason if the system refused,
        otherwise an empty string.
        """
        return lock_memory(self.buffer, position, length)

    def will_need(self) -> None:
        """Tells the system that the file will be needed soon."""
        with suppress(AttributeError, OSError):  # advice
            self.buffer.madvise(mmap.MADV_WILLNEED)

    def rewrite(self, position: int, content: bytes | bytearray) -> None:
        """Writes ``content`` into the map, even if the map already holds it, so that the next sync writes it to disk.
        An earlier sync may have failed to write it.
        """
        self.view[position : position + len(content)] = content

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """Returns the ranges from ``position`` on that may hold nonzero bytes, each as (start, end).

        Holes, and allocated blocks that were never written, are left out if the file system reports them.
        """
        ranges: list[tuple[int, int]] = []
        at = position
        while at < self.size:
            try:
                start = os.lseek(self._descriptor, at, os.SEEK_DATA)
                at = os.lseek(self._descriptor, start, os.SEEK_HOLE)
            except (AttributeError, OSError) as error:
                if isinstance(error, OSError) and error.errno == errno.ENXIO:
                    return ranges
                return [*ranges, (at, self.size)]
            ranges.append((start, min(at, self.size)))
        return ranges

    def read(self, position: int, length: int) -> bytes:
        """Returns a copy of ``length`` bytes. Other threads run while this call waits for the disk.

        Raises:
            DiskError: the disk cannot read these bytes; an access through the map would kill the process.
        """
        if not self._begin_use():
            raise DiskError(self.path, "read", "the file is closed")
        content = b""
        try:
            while len(content) < length:
                more = read_at(self._descriptor, length - len(content), position + len(content))
                if not more:
                    raise OSError(errno.EIO, f"the file ends at {position + len(content)}")
                content = content + more if content else more
        except OSError as error:
            reason = f"{error.strerror or error}, position {position + len(content)}"
            raise DiskError(self.path, "read", reason, self.readable_end(position, position + length)) from error
        finally:
            self._end_use()
        return content

    def readable_end(self, position: int, end: int) -> int:
        """Returns the position of the first unreadable byte from ``position`` on; ``end`` if all bytes can be read.

        The call loads the readable bytes into memory, so they may then be accessed through the map.
        """
        buffer = memoryview(bytearray(min(_READ_STEP, max(end - position, 0))))
        while position < end:
            try:
                count = read_into(self._descriptor, buffer[: end - position], position)
            except OSError:
                if len(buffer) <= PAGE_BYTES:
                    return position
                buffer = buffer[: min(PAGE_BYTES, len(buffer) - 1)]
                continue
            if count == 0:
                return position
            position += count
        return end

    def replace_unreadable(self) -> list[tuple[int, int]]:
        """Reads the whole file. If the disk cannot read parts of the file, a copy in memory replaces the map; these
        parts are zero in the copy. Only for files that are mapped for reading.

        Returns:
            The unreadable parts, each as (start, end) in bytes.

        Raises:
            DiskError: a part that could be read a moment ago cannot be read now.
        """
        length = min(os.fstat(self._descriptor).st_size, self.size)
        ranges = [(start, min(end, length)) for start, end in self.data_ranges(0) if start < length]
        unreadable: list[tuple[int, int]] = []
        for start, end in ranges:
            at = start
            while (stopped := self.readable_end(at, end)) < end:
                at = min(stopped - stopped % PAGE_BYTES + PAGE_BYTES, end)
                unreadable.append((stopped, at))
        if length < self.size:
            unreadable.append((length, self.size))
        if unreadable:
            self._replace_map(ranges, unreadable)
        return unreadable

    def _replace_map(self, ranges: list[tuple[int, int]], unreadable: list[tuple[int, int]]) -> None:
        copy = mmap.mmap(-1, self.size)
        bounds = [0, *(edge for part in unreadable for edge in part), self.size]
        readable = list(zip(bounds[::2], bounds[1::2], strict=True))
        for start, end in ranges:
            for first, last in readable:
                for at in range(max(start, first), min(end, last), _READ_STEP):
                    part = self.read(at, min(at + _READ_STEP, end, last) - at)
                    copy[at : at + len(part)] = part
        self._release()
        self.buffer, self.view = copy, memoryview(copy).toreadonly()

    def read_resident(self, position: int, into: memoryview) -> bool:
        """Copies bytes that are in memory; returns False if some are not, or if the system cannot tell."""
        if _NO_WAIT is None:
            return False
        try:
            return os.preadv(self._descriptor, [into], position, _NO_WAIT) == len(into)
        except OSError:
            # The bytes are not in memory or not readable, or the file system cannot tell: ``read`` handles each case.
            return False

    def is_resident(self, position: int, length: int) -> bool:
        """Whether the given bytes are in memory. Also True where the system cannot tell; there, ``read_resident``
        returns False.
        """
        if _NO_WAIT is None:
            return True
        length = min(length, self.size - position)
        try:
            return os.preadv(self._descriptor, [bytearray(length)], position, _NO_WAIT) == length
        except BlockingIOError:
            return False
        except OSError as error:
            return error.errno != errno.EIO

    def sync(self) -> None:
        """Syncs everything written to the file so far; returns when that is done. Other threads run during the call.

        Does nothing after ``close``: if the owner of an unsynced file closes it, nobody needs the content any more.

        Raises:
            DiskError: the content may be lost, and a later success proves nothing about it (fsync reports an error only
                once).
        """
        if not self._begin_use():
            return
        try:
            self._calls.data_sync(self._descriptor)
        except OSError as error:
            raise disk_error(self.path, "sync", error) from error
        finally:
            self._end_use()

    def _begin_use(self) -> bool:
        """Keeps the descriptor open until ``_end_use``: the system may reuse the number of a closed descriptor for
        another file.

        Returns:
            False if the file is closed.
        """
        with self._guard:
            self._uses += not self._closed
            return not self._closed

    def _end_use(self) -> None:
        with self._guard:
            self._uses -= 1
            if self._closed:
                self._close()

    def close(self) -> None:
        """Closes and unmaps the file. While slices exist, their memory stays mapped."""
        with self._guard:
            closed, mapped = self._closed, self._mapped
            self._mapped = False
            self._close()
        if mapped and not closed:
            self._release()
