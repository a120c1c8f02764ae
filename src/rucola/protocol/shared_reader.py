"""Reads the frames of many connections with one buffer and one table of frames.

A server reads from one connection at a time and usually handles the complete frames of a read immediately. So
connections share the memory for reading, and a connection without a partly received frame needs no buffer of its own.
``SharedFrameReader`` copies data that must outlast a read: a partly received frame, and frames that are handled in a
later iteration of the event loop (``keep``, ``set_aside``).
"""

from __future__ import annotations

from contextlib import suppress

from rucola.common.columns import ROW_WIDTH, new_table
from rucola.protocol._frame_cy import scan_frames
from rucola.protocol.frame import FrameBatch, FrameReader

ROWS_MAX = 256
"""Largest number of frames in one batch. A read with more frames makes several batches."""
BEGUN_BYTES = 16 * 1024
"""A partly received frame up to this size is copied back into the shared buffer before each read. A larger frame gets a
buffer of its own, so that its bytes are not copied again and again.
"""
KEPT_BYTES_MAX = 64 * 1024 * 1024
"""While ``ReadSpace.kept_bytes`` is at most this number, a read may fill the whole shared buffer. Above this number, a
read into the shared buffer takes at most ``SMALL_READ_BYTES``.
"""
SMALL_READ_BYTES = 4096
GROWTH_BYTES_MAX = 1024 * 1024
"""Largest number of bytes by which a connection's own buffer grows at a time. New memory costs time, most of all in a
virtual machine, and all other connections wait meanwhile.
"""
_ZEROS = memoryview(bytes(GROWTH_BYTES_MAX))


class ReadSpace:
    """The memory into which all connections of one server read.

    Args:
        capacity: largest size of a read in bytes.

    Attributes:
        batch: the frames of the current read. All reads use this object, because at most one read is handled at a time.
        kept_bytes: total size in bytes of copied batches, and of frames set aside, that are not handled yet.
    """

    __slots__ = ("batch", "kept_bytes", "source", "table", "view")

    def __init__(self, capacity: int = 256 * 1024) -> None:
        self.source = bytearray(max(capacity, 64))
        self.view = memoryview(self.source)
        self.table = new_table(ROWS_MAX)
        self.batch = FrameBatch(self.source, self.view, self.table, 0)
        self.kept_bytes = 0


class SharedFrameReader(FrameReader):
    """Splits the bytes of one connection into frames, using the memory of a ``ReadSpace``.

    After ``buffer`` and a read, ``received`` returns the first batch of frames, and each call of ``more`` the next
    batch, until ``more`` returns None. A caller that stops earlier must call ``set_aside`` before another connection
    reads.

    Attributes:
        has_more: whether the last batch was full, so that the read may hold further frames.
        is_large: whether a partly received frame has a buffer of its own.
    """

    __slots__ = ("_aside_bytes", "_begun", "_is_aside", "_space", "has_more", "is_large")

    def __init__(self, space: ReadSpace) -> None:
        self._space = space
        self._capacity = len(space.source)
        self._begun = b""
        self.has_more = False
        self.is_large: bool
        self._is_aside = True
        self._aside_bytes = 0
        self._start = self._end = 0
        self._share()

    @property
    def needed_bytes(self) -> int:
        """Size in bytes of the partly received frame that has a buffer of its own."""
        return int.from_bytes(self._view[:4], "big") + 4

    def buffer(self, small: bool = False) -> memoryview:
        """Returns the memory into which the transport may write next; never empty. Invalidates the batches of all
        connections.

        Args:
            small: limits the next read to ``SMALL_READ_BYTES``. Has no effect while a partly received frame has a
                buffer of its own.
        """
        if self.is_large:
            self._extend()
            return super().buffer()
        view, end = self._view, self._end
        if end:
            view[:end] = self._begun
        if small or self._space.kept_bytes > KEPT_BYTES_MAX:
            return view[end : end + SMALL_READ_BYTES]
        return view[end:] if end else view

    def received(self, count: int) -> FrameBatch | None:
        """Accounts for ``count`` bytes written to ``buffer()``.

        Returns:
            The first batch of the frames that are now complete; None if no frame is complete.

        Raises:
            FormatError: the bytes are not a frame; the connection must be closed. Earlier frames of the same batch are
                dropped. This is safe, because no response has confirmed them.
        """
        self._end += count
        rows, self._start, error, unread = scan_frames(self._source, self._start, self._end, self._table, ROWS_MAX)
        if error:
            self.has_more = False
            raise self._refusal(error)
        self.has_more = rows == ROWS_MAX and self._start < self._end
        batch = None
        if rows:
            if self.is_large:
                batch = FrameBatch(self._source, self._view, self._table, rows)
            else:
                batch = self._space.batch
                batch.count, batch.judged, batch.hashing = rows, 0, None
            if unread:
                self._read_others(batch)
        if self.has_more:
            self._is_aside = False
            return batch
        if self._start == self._end and not self.is_large:  # the usual case
            self._begun = b""
            self._is_aside = True
            self._start = self._end = 0
        else:
            self._move_out()
        if self._aside_bytes:
            self._count_aside(0)
        return batch

    def more(self) -> FrameBatch | None:
        """Returns the next frames of the same read, also after ``set_aside``; None if no further frame is complete.

        Raises:
            FormatError: as ``received``.
        """
        if not self.has_more:
            return None
        if self._is_aside and not self.is_large:
            self.buffer()
        return self.received(0)

    def keep(self, batch: FrameBatch) -> FrameBatch:
        """Returns a copy of ``batch`` that stays valid while other connections read. Pass the copy to ``release`` once
        all its rows are handled.
        """
        table = batch.table[: batch.count * ROW_WIDTH]
        source, view = batch.source, batch.view
        if source is self._space.source:
            source = bytearray(view[: batch.end])
            view = memoryview(source)
        kept = FrameBatch(source, view, table, batch.count)
        kept.judged, kept.account, kept.hashing = batch.judged, batch.account, batch.hashing
        kept.kept_bytes = len(source) + len(table) * table.itemsize
        self._space.kept_bytes += kept.kept_bytes
        return kept

    def release(self, batch: FrameBatch) -> None:
        """Subtracts from ``kept_bytes`` the size of a batch that ``keep`` returned and whose rows are all handled."""
        self._space.kept_bytes -= batch.kept_bytes

    def set_aside(self) -> None:
        """Copies the frames that ``more`` would return next, so that they no longer use the shared buffer."""
        if not self._is_aside:
            self._move_out()
            self._count_aside(self._end if self.has_more else 0)

    def close(self) -> None:
        """Called when the connection has ended: frames that were set aside no longer count in ``kept_bytes``."""
        self._count_aside(0)

    def _move_out(self) -> None:
        self._is_aside = True
        rest = self._end - self._start
        if rest <= min(BEGUN_BYTES, self._capacity // 4):
            self._begun = bytes(self._view[self._start : self._end])
            self._share()
        elif not self.is_large or self._start:
            # A batch may still refer to the old buffer, so this connection gets a new one.
            self._source = bytearray(self._view[self._start : self._end])
            self._view = memoryview(self._source)
            self.is_large = True
            self._plan_frame(rest)
        elif rest == len(self._source):
            self._plan_frame(rest)
        self._start, self._end = 0, rest

    def _count_aside(self, size: int) -> None:
        self._space.kept_bytes += size - self._aside_bytes
        self._aside_bytes = size

    def _extend(self) -> None:
        """Extends this connection's own buffer. For a large buffer, the operating system then usually remaps memory
        pages, and the bytes in the buffer are not copied.
        """
        more = self._wanted - len(self._source)
        if more > 0:
            with suppress(BufferError):  # something refers to the buffer; the base class copies it instead
                self._view.release()
                self._source.extend(_ZEROS[:more])
            self._view = memoryview(self._source)

    def _share(self) -> None:
        space = self._space
        self._source, self._view, self._table = space.source, space.view, space.table
        self._wanted = self._capacity
        self.is_large = False

    def _plan_frame(self, rest: int) -> None:
        """Chooses the next size of this connection's own buffer: in proportion to the bytes that have arrived, and at
        most the size of the partly received frame. The buffer grows only when it is full.
        """
        growth = min(max(rest, self._capacity - rest), GROWTH_BYTES_MAX)
        self._wanted = min(max(self.needed_bytes, rest), rest + growth)
