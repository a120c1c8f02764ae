"""The commit log: every message of every topic, one after the other (``formats.message``, RocketMQ 5.3.3
``CommitLog``).

One thread appends. ``publish`` raises ``max_offset`` only when the records below it are complete, so that other threads
see whole records only. Apart from ``publish``, only the appending thread changes the state; the flush and commit
threads read some of it. Store times never decrease. A record never crosses a segment border; a full segment ends with a
blank record.

With a pool (``transient_store_pool``) records go to memory first, and ``CommitService`` raises ``max_offset`` once the
records are in the file. How records get into a segment is told in ``write_target``.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from contextlib import suppress

from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.common.kernel_columns import FRAME_BODY_LEN, FRAME_PHYSICAL_OFFSET, FRAME_RECORD_SIZE
from rucola.errors import DiskError
from rucola.formats.checksum import crc32
from rucola.formats.message import encode_rows, fit_rows
from rucola.runtime.clock import Clock
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.config import MessageStoreConfig
from rucola.store.log.allocate import SegmentAllocator
from rucola.store.log.log_reader import LogReader
from rucola.store.log.mapped_file import MappedFile
from rucola.store.log.multi_path import MultiPathSegmentList
from rucola.store.log.store_time import StoreTime
from rucola.store.log.transient_store_pool import TransientStorePool
from rucola.store.log.warm import SegmentWarmer
from rucola.store.log.write_target import DirectTarget, RunTarget, WriteTarget
from rucola.store.results import PutMessageStatus
from rucola.store.row_run import AppendOptions, RowRun

logger = logging.getLogger(__name__)
_POPULATE_BYTES = 1 << 20
"""Number of bytes of the segment that are loaded into memory ahead of the appends; loading takes a few tenths of a
millisecond.
"""
_WRITTEN_BODY_BYTES, _WRITTEN_BYTES = 16 * 1024, 64 * 1024
"""The messages of one append are written with a system call if the first body has at least ``_WRITTEN_BODY_BYTES``, and
all of them have about ``_WRITTEN_BYTES`` or more. Through a map, the system fills each new page with zeros before the
message gets there: 256 KiB take 2.8 times as much CPU time. For fewer bytes the call costs more than it saves, and
dispatch must then bring the pages into the map. In small segments, a fixed part of a segment counts as many bytes, so
that tests use both ways.
"""
_FIXED_MAX = 74 + 20 + 20 + 2 + 20 + 2 + 8
"""Largest number of bytes that a record needs besides topic, body and properties: fixed fields, IPv6 hosts, checksum,
separators and a blank record.
"""


class CommitLog(LogReader):
    """Writes the commit log; ``LogReader`` has the methods that read it.

    Attributes:
        store_host: address and port of this broker, 8 or 20 bytes, written into each record.
        suffix: property text that ``append_rows`` adds to each message on the fast path.
        written_offset: physical offset after the newest record; without a pool, it equals ``max_offset``.
        store_timestamp_ms: store time of the newest record. A thread that needs this time and ``written_offset`` must
            read the time first. Then the time is never later than the store time of the newest record below the offset.
        published_timestamp_ms: store time of the newest visible record, or of an older one. A thread that needs this
            time and ``max_offset`` must read the time first. Then the time is never later than the store time of the
            newest record below the offset.
        pool: lends memory to new segments; None without a transient store pool.
        refusal: why the last ``append_rows`` stopped early.
    """

    def __init__(
        self, files: Files, clock: Clock, config: MessageStoreConfig, root: str, on_space: Callable[[], None]
    ) -> None:
        segments = MultiPathSegmentList.of(files, config, root)
        super().__init__(segments)
        self.store_host = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
        self.suffix = b""
        self.written_offset = 0
        self.store_timestamp_ms = 0
        self.published_timestamp_ms = 0
        self.pool: TransientStorePool | None = None
        self._writes_all = config.write_without_mmap
        segment_bytes = config.mapped_file_size_commit_log
        self._written_body_bytes = min(_WRITTEN_BODY_BYTES, segment_bytes // 32)
        self._written_bytes = min(_WRITTEN_BYTES, segment_bytes // 8)
        self._run_target = None if config.pooled else RunTarget(config.mapped_file_size_commit_log)
        if config.pooled:
            self.pool = TransientStorePool(config.transient_store_pool_size, config.mapped_file_size_commit_log)
        self._direct = self.pool is None
        self._fail_fast = config.fast_fail_if_no_buffer_in_store_pool
        self.refusal = PutMessageStatus.PUT_OK
        self._time = StoreTime(clock)
        self._directories = segments
        self._record_crc = config.enabled_append_prop_crc
        warmer = SegmentWarmer(files, config) if config.warm_maped_file_enable else None
        self._allocator = SegmentAllocator(files, segments, on_space, warmer)
        self._file: MappedFile | None = None
        self._filling: MappedFile | None = None
        """The segment into which bytes of another log are written; None before the first."""
        self._target: WriteTarget | None = None
        self._populated_to = 0
        self._request_at = 0
        self._attend_at = 0
        self._copied_to = 0

    def start(self) -> None:
        """Prepares the log for appends at ``max_offset``: creates a segment, allocates its blocks and starts the
        allocating thread.

        Raises:
            DiskError: the segment cannot be created, or there is no memory for the pool.
        """
        if self.pool is not None:
            self.pool.start()
        self._directories.make_directories()
        file = self.segments.find(self.max_offset)
        if file is None:
            start = self.max_offset - self.max_offset % self.segments.segment_bytes
            file = self.segments.append(start)
            if self.pool is not None:
                file.write_behind(self.pool.borrow())
        else:
            file.allocated = self.max_offset - file.start
            file.map.allocate(file.allocated, file.size - file.allocated)
            file.allocated = file.size
        self._use(file, self.max_offset)
        self._allocator.start()

    @property
    def buffered(self) -> bool:
        """Whether new records go to a memory buffer first. A segment has no buffer if it existed at start-up, or if no
        buffer was free.
        """
        return self._file is not None and self._file.pending is not None

    def loaded(self, end_offset: int, store_timestamp_ms: int) -> None:
        """Sets the end of the log and the store time of its newest record, as recovery found them."""
        self.max_offset = self.written_offset = end_offset
        self.store_timestamp_ms = self.published_timestamp_ms = store_timestamp_ms

    def publish(self, end_offset: int, store_timestamp_ms: int) -> None:
        """Makes the records below ``end_offset`` visible to readers on all threads. After recovery, no other method
        does that.

        The offset is set before the time, and must be read after the time. Then the time is never later than the store
        time of the newest record below the offset. Called by the appending thread or, with a pool, by the committing
        thread, never by both at once.
        """
        self.max_offset = end_offset
        self.published_timestamp_ms = store_timestamp_ms

    def now_ms(self) -> int:
        """Returns the store time that a message would get now; see ``store_time``."""
        return self._time.now_ms(self.store_timestamp_ms)

    def not_before(self, time_ms: int) -> None:
        """See ``StoreTime.not_before``."""
        self._time.not_before(time_ms)

    def stop(self) -> None:
        """Ends the allocating thread. Nothing may be appended afterwards."""
        self._allocator.stop()
        with suppress(DiskError):  # after a failure, ``sound`` says whether only zeros follow the end of the log
            if self._run_target is not None:
                self._run_target.erase()
            self._erase_copy()

    def lacks_segment(self) -> bool:
        """True if the allocating thread could not create a segment. The thread keeps trying, and calls ``on_space``
        when it succeeds.
        """
        return self._allocator.failing

    @property
    def sound(self) -> bool:
        """Whether only zeros follow the end of the log."""
        return (self._run_target is None or self._run_target.sound) and self._copied_to <= self.written_offset

    @property
    def unwritten(self) -> bool:
        """Whether the last append was refused because a write found no space; another attempt is allowed."""
        return self._run_target is not None and self._run_target.unwritten

    @property
    def failed(self) -> bool:
        """Whether it is unknown which bytes follow the end of the log (``RunTarget``)."""
        return self._run_target is not None and self._run_target.failed

    def append_rows(
        self,
        run: RowRun,
        topic: bytes,
        born_host: bytes,
        queue_offsets: array[int],
        options: AppendOptions,
    ) -> int:
        """Encodes rows into the log, across segment borders where needed.

        Args:
            queue_offsets: the next queue offset of each queue of the topic; they are advanced.

        Returns:
            The index of the first row not stored. If this is not the end, ``refusal`` states the reason.
        """
        now = self.now_ms()
        source, view, table, first, last = run
        suffix, together, store_host = options
        if suffix is None:
            suffix = self.suffix
        host = store_host or self.store_host
        if together and last - first > 1:
            lengths = (len(topic), len(queue_offsets), len(born_host), len(host))
            if not self._make_room(run, lengths, suffix):
                return first
        while True:
            target = self._target
            assert target is not None
            body_bytes = table[first * ROW_WIDTH + FRAME_BODY_LEN]
            if body_bytes >= self._written_body_bytes and (last - first) * body_bytes >= self._written_bytes:
                target = self._run_target or target
            try:
                done = encode_rows(
                    source,
                    view,
                    table,
                    first,
                    last,
                    target.buffer,
                    target.view,
                    target.place(self.written_offset, now, self._record_crc),
                    topic,
                    queue_offsets,
                    born_host,
                    host,
                    suffix,
                    crc32,
                )
            except ValueError:
                # The rows before the illegal row were encoded. An encoded row holds the physical offset of its
                # new record; in other rows, a lower offset may remain from an earlier call.
                done = self._encoded(table, first, last)
                self.refusal = PutMessageStatus.MESSAGE_ILLEGAL
                return self._advance(table, first, done, queue_offsets, now, target)
            if done < last and target.grow():
                self._take_back(table, first, done, queue_offsets)
                continue
            reached = self._advance(table, first, done, queue_offsets, now, target)
            if reached < done or done == last:
                return reached
            first = done
            if not self._roll(table, first, first + 1, len(topic) + len(suffix)):
                return first

    def _make_room(self, run: RowRun, lengths: tuple[int, int, int, int], suffix: bytes) -> bool:
        """Makes sure that all rows fit into the current segment. Returns False, and sets ``refusal``, if they cannot.

        Everything is checked before the first row is encoded, because a record that a reader of the files may have seen
        is never removed.

        Args:
            lengths: length of the topic, number of its queues, lengths of both hosts.
        """
        file = self._file
        assert file is not None
        source, _, table, first, last = run
        space = file.end - self.written_offset
        try:
            if fit_rows(source, table, first, last, space, *lengths, suffix, self._record_crc) == last:
                return True
        except ValueError:
            self.refusal = PutMessageStatus.MESSAGE_ILLEGAL
            return False
        return self._roll(table, first, last, lengths[0] + len(suffix))

    def _advance(
        self, table: array[int], first: int, done: int, queue_offsets: array[int], now: int, target: WriteTarget
    ) -> int:
        """Makes rows that were encoded into ``target`` part of the log. Returns ``done``, or ``first`` if they could
        not be written.
        """
        if done > first:
            row = (done - 1) * ROW_WIDTH
            end = table[row + FRAME_PHYSICAL_OFFSET] + table[row + FRAME_RECORD_SIZE]
            start = self.written_offset
            if target.must_write and not target.write(start, end - start, done - first):
                self._target = target  # Only this target can remove what the failed write left behind.
                self._take_back(table, first, done, queue_offsets)
                self.refusal = PutMessageStatus.SERVICE_NOT_AVAILABLE
                return first
            self.written_offset = end
            self.store_timestamp_ms = now
            if self._direct:
                self.publish(end, now)
            if end >= self._attend_at:
                self._attend(end, target.must_write)
        return done

    def _encoded(self, table: array[int], first: int, last: int) -> int:
        expected = self.written_offset
        for index in range(first, last):
            row = index * ROW_WIDTH
            if table[row + FRAME_PHYSICAL_OFFSET] != expected or table[row + FRAME_RECORD_SIZE] <= 0:
                return index
            expected += table[row + FRAME_RECORD_SIZE]
        return last

    def _roll(self, table: array[int], first: int, last: int, extra: int) -> bool:
        """Starts the next segment. Returns False, and sets ``refusal``, if the rows fit into no segment or no segment
        can be created.
        """
        need = 8 + (last - first) * (_FIXED_MAX + extra)
        for column in (FrameColumn.BODY_LEN, FrameColumn.PROPERTIES_LEN):
            # A slice is faster than one table access per row, and a batch may have 32,768 rows.
            lengths = table[first * ROW_WIDTH + column : last * ROW_WIDTH : ROW_WIDTH]
            need += sum(length for length in lengths if length > 0)
        if need > self.segments.segment_bytes:
            # RocketMQ returns PUT_OK here, stores nothing, and leaves two segments that end with a blank record.
            self.refusal = PutMessageStatus.MESSAGE_ILLEGAL
            return False
        file, target = self._file, self._target
        assert file is not None and target is not None
        if self._fail_fast and self.pool is not None and not self.pool.free:
            self.refusal = PutMessageStatus.CREATE_MAPPED_FILE_FAILED
            return False
        if self._run_target is not None:
            self._run_target.forget_refusal()
        try:
            following = self._prepare(file.end)
        except DiskError as error:
            event(logger, logging.ERROR, "log has no next segment, messages are refused", start=file.end, error=error)
            self.refusal = PutMessageStatus.SERVICE_NOT_AVAILABLE
            return False
        # Once the blank record is written, nothing may fail: readers of the files may have seen it, so it must stay.
        if not target.close_segment(self.written_offset):
            self.refusal = PutMessageStatus.SERVICE_NOT_AVAILABLE
            following.close()
            return False
        if self.pool is not None:
            following.write_behind(self.pool.borrow())
        self._go_on_in(following)
        return True

    def _prepare(self, start: int) -> MappedFile:
        """Returns the segment that starts at ``start``, which no other thread sees yet.

        Raises:
            DiskError: it cannot be created or mapped.
        """
        self._allocator.take(start)
        return self.segments.prepare(start)

    def _go_on_in(self, following: MappedFile) -> None:
        """Makes a prepared segment the one that is filled."""
        self.segments.publish(following)
        self._use(following, following.start)
        self.written_offset = following.start
        if self._direct:
            self.publish(following.start, self.published_timestamp_ms)

    # -- a copy of another log -----------------------------------------------------------------------------------------

    def write_copy(self, physical_offset: int, content: memoryview) -> int:
        """Writes bytes of another log where that log has them. They are no part of this one before ``publish_copy``.

        Args:
            physical_offset: where they belong, in the newest segment.
            content: the bytes; what lies beyond the end of the segment is left out.

        Returns:
            The number of bytes written.

        Raises:
            DiskError: they could not be written, or only in part.
            ValueError: they belong to no place at or after the end of the log in this segment.
        """
        file = self._file
        assert file is not None
        if not self.written_offset <= physical_offset < file.end:
            raise ValueError(f"{physical_offset} is not from {self.written_offset} to {file.end}")
        if file is not self._filling:
            self._fill(file, physical_offset)
        count = min(len(content), file.end - physical_offset)
        self._copied_to = max(self._copied_to, physical_offset + count)
        file.map.write(physical_offset - file.start, content[:count])
        return count

    def _fill(self, file: MappedFile, physical_offset: int) -> None:
        """Begins to write bytes of another log into ``file``."""
        if self._filling is not None:
            self._filling.end_fill()
        self._filling = file
        file.map.expect_fill(physical_offset - file.start)

    def publish_copy(self, end_offset: int, store_timestamp_ms: int) -> None:
        """Makes written bytes part of the log.

        Args:
            end_offset: physical offset at which a record ends; all records below it are complete.
            store_timestamp_ms: store time of the newest of them.
        """
        self.written_offset = end_offset
        self.store_timestamp_ms = store_timestamp_ms
        self.publish(end_offset, store_timestamp_ms)
        if end_offset >= self._attend_at:
            self._attend(end_offset, True)

    def next_segment(self) -> None:
        """Begins the next segment; the newest one is full.

        Raises:
            DiskError: it cannot be created or mapped; the log is unchanged.
        """
        assert self._file is not None
        self._go_on_in(self._prepare(self._file.end))

    def _erase_copy(self) -> None:
        """Overwrites with zeros what ``write_copy`` has left after the end of the log, and syncs them.

        Raises:
            DiskError: this failed.
        """
        file, end = self._file, self.written_offset
        if file is not None and self._copied_to > end:
            file.map.write(end - file.start, bytes(self._copied_to - end))
            file.sync()
            self._copied_to = end

    def _attend(self, end: int, written: bool) -> None:
        """Prepares for future appends: loads pages into memory and requests the next segment.

        Args:
            written: whether the append that ended at ``end`` used a system call. The next ones are expected to do the
                same, and need no pages of the map.
        """
        file = self._file
        assert file is not None
        while self._populated_to < file.end and end >= self._populated_to - _POPULATE_BYTES // 2:
            if not written:
                file.map.populate(self._populated_to - file.start, _POPULATE_BYTES)
            self._populated_to += _POPULATE_BYTES
        if end >= self._request_at:
            self._allocator.want(file.end)
            self._request_at = file.end + 1
        self._attend_at = min(self._request_at, self._populated_to - _POPULATE_BYTES // 2)
        if self._populated_to >= file.end:
            self._attend_at = self._request_at

    def _use(self, file: MappedFile, end: int) -> None:
        self._file = file
        if self._run_target is not None:
            self._run_target.use(file)
        self._target = self._run_target if self._writes_all else DirectTarget(file)
        # The next segment is requested when this one is half full. So the next segment is ready in time, and small
        # stores never create a second segment.
        self._request_at = file.start + file.size // 2
        self._populated_to = end - (end - file.start) % _POPULATE_BYTES
        if self._writes_all or file.pending is not None:
            self._populated_to = file.end
        self._attend_at = end
        if self._request_at > end:
            self._attend(end, self._writes_all)

    def _take_back(self, table: array[int], first: int, done: int, queue_offsets: array[int]) -> None:
        """Makes the queue offsets of rows in a ``RunTarget`` free again; the rows will be encoded again or refused.

        Rows that were encoded directly into a segment are never taken back.
        """
        for index in range(done - 1, first - 1, -1):
            row = index * ROW_WIDTH
            if table[row + FrameColumn.SYS_FLAG] & 0xC not in (4, 12):
                queue_offsets[table[row + FrameColumn.QUEUE_ID]] = table[row + FrameColumn.QUEUE_OFFSET]
