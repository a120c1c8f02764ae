"""Where the records of an append are built.

Usually a record is built where readers see it, in the map of its segment, or in a buffer of the pool
(``transient_store_pool``). With ``writeWithoutMmap``, and without a pool if one append has many bytes, its records are
built in memory and then written: a single record with one system call, several records with two. Map and system calls
may take turns in one segment.

A write through a map causes a page fault for each fresh page, and kills the process if the file system turns out to
have no space. A system call reports the error instead. Written bytes are in the page cache either way: they survive the
end of the process, and the map shows them at once.

Deliberate difference from RocketMQ: the blank record that ends a segment is followed by zeros, not by leftover bytes
of the buffer.
"""

from __future__ import annotations

import logging

from rucola.errors import DiskError, DiskFullError
from rucola.formats.message import BLANK, MAGIC_BLANK, RecordPlacement, write_blank
from rucola.runtime.logs import event
from rucola.store.log.mapped_file import MappedFile

logger = logging.getLogger(__name__)
_FIRST_BYTES = 256 * 1024
_START_BYTES = 8
"""Length in bytes of the size and magic number at the start of a record."""


class DirectTarget:
    """A segment, or its buffer of the pool: a record that was built has been written.

    Args:
        file: the segment.
    """

    __slots__ = ("_file", "_size", "_start", "buffer", "view")

    must_write = False
    """Whether ``write`` must be called before the records are in the segment."""

    def __init__(self, file: MappedFile) -> None:
        target = file.target
        self.buffer = target.buffer
        self.view = target.view
        self._file = file
        self._start = file.start
        self._size = file.size

    def place(self, end: int, now_ms: int, record_crc: bool) -> RecordPlacement:
        """Returns where the next records are built; ``end`` is the physical offset at which the first one begins."""
        return RecordPlacement(end - self._start, self._size, self._start, now_ms, record_crc)

    def grow(self) -> bool:
        """Makes room for more records in the same segment; returns False if there is none. Forgets all records that
        were not written.
        """
        return False

    def write(self, end: int, content: int, count: int) -> bool:
        """Writes what was built.

        Args:
            end: physical offset of the first record.
            content: length of the records in bytes.
            count: number of records.

        Returns:
            False if they could not be written.
        """
        return True

    def close_segment(self, end: int) -> bool:
        """Fills the segment from ``end`` on with a blank record; returns False if it could not be written."""
        position = end - self._start
        if self._file.pending is not None:
            # A buffer still holds the bytes of the segment that used it before.
            self.view[position:] = bytes(self._size - position)
        write_blank(self.buffer, position, self._size - position)
        return True


class RunTarget:
    """Memory for the records of one append, which are then written to their segment. Methods are those of
    ``DirectTarget``. Used by the appending thread only.

    Attributes:
        unwritten: whether the last write found no space; another attempt is allowed.
        failed: whether writing, or erasing what a failed write left, failed for a reason other than lack of space; or
            whether the sync after erasing failed. After such a failure, it is unknown which bytes follow the end of the
            log, in the file and on disk.

    Args:
        size_max: largest size in bytes.
    """

    must_write = True

    def __init__(self, size_max: int) -> None:
        self.unwritten = self.failed = False
        self._size_max = size_max
        self._left_behind = 0
        self._left_at = 0
        self._space = 0
        self._file: MappedFile | None = None
        self._make(_FIRST_BYTES)

    @property
    def sound(self) -> bool:
        """Whether only zeros follow the end of the log."""
        return not self.failed and not self._left_behind

    def use(self, file: MappedFile) -> None:
        """Writes to ``file`` from now on."""
        self._file = file

    def place(self, end: int, now_ms: int, record_crc: bool) -> RecordPlacement:
        """Returns where the next records are built."""
        assert self._file is not None
        self._space = self._file.end - end
        return RecordPlacement(0, min(self._space, len(self.buffer)), end, now_ms, record_crc)

    def grow(self) -> bool:
        """Doubles the memory, unless it is the segment that is full. The content is lost."""
        if len(self.buffer) >= self._space:
            return False
        self._make(2 * len(self.buffer))
        return True

    def write(self, end: int, content: int, count: int) -> bool:
        """Writes the records at the end of the log."""
        return self._write(end, self.view[:content], _START_BYTES if count > 1 else 0)

    def close_segment(self, end: int) -> bool:
        """Writes the blank record."""
        assert self._file is not None
        return self._write(end, BLANK.pack(self._file.end - end, MAGIC_BLANK), 0)

    def forget_refusal(self) -> None:
        """Clears ``unwritten``: if the append is refused now, that has another cause."""
        self.unwritten = False

    def erase(self) -> None:
        """Overwrites with zeros any bytes that a failed write left after the end of the log, and syncs them.

        Raises:
            DiskError: this failed.
        """
        if self._left_behind:
            assert self._file is not None
            segment = self._file.map
            segment.write(self._left_at, bytes(self._left_behind))
            # The operating system reports a sync error only once. If this sync gets the error, ``failed`` passes it on
            # to the flush thread.
            self.failed = True
            segment.sync()
            self.failed = False
            self._left_behind = 0

    def _write(self, end: int, content: bytes | memoryview, hidden: int) -> bool:
        """Writes ``content`` at the end of the log; returns whether this succeeded.

        A failed write may leave part of the content in the file. Once other records follow, a recovery must not mistake
        that part for stored messages, so it is erased before the next write. Readers of the files must not mistake it
        for messages either. If several records are written, the size and magic number of the first record, ``hidden``
        bytes, are therefore written last; until then, readers stop in front of the first record. A single record needs
        no such order, because a part of it is not a valid record.
        """
        file = self._file
        assert file is not None
        self.unwritten = False
        try:
            self.erase()
            self._left_behind, self._left_at = len(content), end - file.start
            if hidden:
                file.map.write(self._left_at + hidden, content[hidden:])
            file.map.write(self._left_at, content[:hidden] if hidden else content)
        except DiskError as error:
            event(logger, logging.ERROR, "messages cannot be written", offset=end, error=error)
            full = isinstance(error, DiskFullError) and not self.failed
            self.unwritten = full and self._may_try_again()
            self.failed = not self.unwritten
            return False
        self._left_behind = 0
        return True

    def _may_try_again(self) -> bool:
        try:
            self.erase()
        except DiskFullError:
            return not self.failed  # The next write first erases what the failed write left.
        except DiskError:
            return False
        return True

    def _make(self, size: int) -> None:
        self.buffer = bytearray(min(size, self._size_max))
        self.view = memoryview(self.buffer)


WriteTarget = DirectTarget | RunTarget
