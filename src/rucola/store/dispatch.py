"""Adds the messages of the commit log to consume queues and index (RocketMQ's ``ReputMessageService`` and its
dispatchers).

Dispatch runs in batches on the thread that appends. Dispatch never goes beyond the offset that the caller gives. With
``SYNC_FLUSH``, the caller gives the flushed offset, so a consumer never sees a message before it is synced.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from math import inf
from typing import Protocol, TypeAlias

from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table, run_end
from rucola.common.kernel_columns import (
    RECORD_QUEUE_ID,
    RECORD_QUEUE_OFFSET,
    RECORD_SAME_TOPIC,
    RECORD_SIZE,
    RECORD_SYS_FLAG,
    RECORD_TAGS_CODE,
    RECORD_TOPIC_LEN,
    RECORD_TOPIC_POS,
)
from rucola.common.numbers import INT64_MAX
from rucola.common.sysflag import PREPARED_BIT
from rucola.errors import DiskFullError, StoreDamagedError
from rucola.formats.checksum import crc32
from rucola.formats.consume_queue import UNIT, UNIT_BYTES
from rucola.formats.message import ROWS_MAX, walk_records
from rucola.store.config import MessageStoreConfig, delay_levels_ms
from rucola.store.index_follower import IndexFollower
from rucola.store.log.mapped_file import MappedFile
from rucola.store.parts import StoreParts
from rucola.store.progress import Progress, PublishedProgress
from rucola.store.queue.consume_queue import ConsumeQueue, DispatchRequest
from rucola.store.queue.grouped_units import GroupedUnits, QueueGroup
from rucola.store.queue.multi_dispatch import MultiDispatch
from rucola.store.stats import StoreStats

_GROUPED_ROWS_MIN = 32
"""Number of records of one topic from which on it costs less CPU time to group them by queue than to put them one by
one.
"""
_ROWS_PER_CHANGE = 4
"""One by one, a record of another topic than the record before costs as much as this number of records."""
SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
Arrival: TypeAlias = "tuple[bytes, int, int, int | None]"
"""Topic, queue id, the queue's new maximum offset, and the tags code that all new messages share (None if their codes
differ).
"""


def due_time(view: memoryview, table: array[int], row: int, levels_ms: Sequence[int]) -> int:
    """Returns the tags code of a unit in the schedule topic: store time plus the delay of the message's level.

    RocketMQ 5.3.3, ``CommitLog#checkMessageAndReturnSize``: a level above the highest one counts as the highest one.

    Args:
        view: the segment to which the row refers.
        row: index of the row's first column.
        levels_ms: the delay of each level, in ms.
    """
    position = table[row + RecordColumn.PROPERTIES_POS]
    text = bytes(view[position : position + table[row + RecordColumn.PROPERTIES_LEN]])
    level = 0
    for pair in text.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name == b"DELAY" and value.isdigit():
            level = int(value[:9])
    if level <= 0:
        return table[row + RECORD_TAGS_CODE]
    delay_ms = levels_ms[min(level, len(levels_ms)) - 1] if levels_ms else 1000
    return table[row + RecordColumn.STORE_TIMESTAMP] + delay_ms


def set_due_times(file: MappedFile, units: bytearray, begin: int, end: int, levels_ms: Sequence[int]) -> int | None:
    """Sets the tags code of units ``begin`` to ``end`` (excluded), all of the schedule topic, to ``due_time``; returns
    the tags code of all of them, None if they differ.

    Args:
        file: the segment with the records of the units.
    """
    segment, row, codes = file.map, new_table(1), set()
    for position in range(begin * UNIT_BYTES, end * UNIT_BYTES, UNIT_BYTES):
        physical_offset, size, _ = UNIT.unpack(units, position)
        at = physical_offset - file.start
        walk_records(segment.buffer, segment.view, at, at + size, file.start, row, 1, crc32, 0)
        tags_code = due_time(segment.view, row, 0, levels_ms)
        units[position : position + UNIT_BYTES] = UNIT.pack(physical_offset, size, tags_code)
        codes.add(tags_code)
    return codes.pop() if len(codes) == 1 else None


class Screen(Protocol):
    """Decides which records get a unit."""

    def passes(self, topic: bytes, queue_ids: Iterable[int]) -> bool:
        """True only if ``admits`` is true of each row of these queues; then the caller need not check them one by
        one.
        """

    def admits(self, topic: bytes, file: MappedFile, table: array[int], row: int) -> bool:
        """Whether row ``row`` gets a unit in the queue that is stated in the row."""


class Lives(Protocol):
    """Finds where a log begins a topic anew."""

    def new_from(self, topic: bytes, table: array[int], first: int, last: int, start: int) -> int:
        """Returns the index of the first row whose record may begin its topic anew; ``last`` if there is none. If it is
        ``first``, the record does.

        Args:
            topic: the topic of all these rows.
            first: index of the first row.
            last: index after the last row.
            start: physical offset of the segment.
        """

    def begin(self, topic: bytes) -> int:
        """Deletes the earlier life of the topic that ``new_from`` has found; returns the physical offset from which
        records must be dispatched again, -1 if there are none.

        Raises:
            DiskError: it is unknown whether the earlier life is deleted.
        """


class Dispatcher:
    """Dispatches records to queues and index, and keeps the progress of this work. Other threads see only the published
    progress.

    Attributes:
        position: physical offset of the first record not dispatched.
        store_timestamp_ms: store time of the newest record dispatched.
        progress: the progress published last, and what must be synced for it.
        screen: while the log may hold damaged records, decides which records belong to a queue; None accepts all.
        follower: puts the keys into the index files; None without an index.
        levels_ms: the delay of each level of the schedule topic.
        lives: in a copy of another log, finds topics that were deleted and made again there; else None.
        lite_from: physical offset; lite topics get the records behind it even if the queues have them (a rebuild).
        paused: whether the last ``dispatch`` ended early because of ``maps_max`` or ``rows_max``.

    Args:
        parts: the log whose records are dispatched, and the queues and index that get them.
        stats: counts entries that light queues could not store.
    """

    def __init__(
        self,
        parts: StoreParts,
        config: MessageStoreConfig,
        stats: StoreStats | None = None,
    ) -> None:
        self.position = 0
        self.store_timestamp_ms = 0
        self.progress = PublishedProgress()
        self.screen: Screen | None = None
        self.lives: Lives | None = None
        self._begun_again: bytes | None = None
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._deleted = parts.deleted
        self._lite = parts.queues.lite
        self.lite_from = INT64_MAX
        self.follower = None if parts.index is None else IndexFollower(parts.log, parts.index)
        self.levels_ms = delay_levels_ms(config.message_delay_level)
        self._table = new_table(ROWS_MAX)
        self._grouped = GroupedUnits()
        self.paused = False
        self._maps_end: float = inf
        """Value of ``queues.maps_made`` at which the current ``dispatch`` ends."""
        self._touched: dict[ConsumeQueue, int | None] = {}
        self._arrived: dict[ConsumeQueue, int | None] = {}
        light = config.enable_multi_dispatch and config.enable_lmq
        self._multi = MultiDispatch(parts.queues, stats or StoreStats()) if light else None
        self._by_record = parts.queues.factory.by_record

    def screen_with(self, screen: Screen | None) -> None:
        """Sets ``screen``."""
        self.screen = screen

    def dispatch(
        self, end: int, queues_from: int = 0, index_from: int = 0, maps_max: float = inf, rows_max: float = inf
    ) -> int:
        """Dispatches the records from ``position`` up to ``end``.

        Args:
            end: physical offset at which a record ends.
            queues_from: physical offset; a batch that ends at or below this offset is not put into the queues, because
                recovery knows that the queues have the batch's entries.
            index_from: the same for the index.
            maps_max: number of newly mapped queue segments after which the dispatch ends early. It may map up to twice
                as many.
            rows_max: number of records after which the dispatch ends early, at the next end of a batch.

        Returns:
            The number of records dispatched.

        Raises:
            DiskFullError: no space for a queue file; the next call begins with the same batch.
            ResourceError: no descriptor or memory for a queue file; the next call begins with the same batch.
            StoreDamagedError: the log cannot be read further.
        """
        count, awaited = 0, self._queues.maps_awaited
        self.paused = self._queues.maps_awaited = False
        self._maps_end = self._queues.maps_made + maps_max
        try:
            while self.position < end and not self.paused:
                position = self.position
                file = self._log.segments.find(position)
                if file is None or not file.start <= position < file.end:
                    raise StoreDamagedError(
                        self._log.segments.path, position, "no such segment", "run rucola store verify"
                    )
                count += self._dispatch_batch(file, end, queues_from, index_from)
                if self._begun_again is not None:
                    queues_from = self._begin_again(self._begun_again, queues_from)
                elif self.position <= position:
                    raise StoreDamagedError(
                        file.path, position - file.start, f"no record ends before {end}", "run rucola store verify"
                    )
                if self.position < end and (self._queues.maps_made >= self._maps_end or count >= rows_max):
                    self.paused = True
            self._queues.maps_awaited = self.paused and (awaited or self._queues.maps_made >= self._maps_end)
            if self.follower is not None and self.follower.due:
                self.follower.catch_up(self.position)
        finally:
            # This also runs after a failure, because the bytes that were written must still be synced.
            self.publish()
        return count

    def _begin_again(self, topic: bytes, queues_from: int) -> int:
        """Deletes the earlier life of a topic; returns the new value of an argument of ``dispatch``. The index passes
        over records that it has.
        """
        assert self.lives is not None
        self._begun_again, self.paused = None, False
        again = self.lives.begin(topic)
        if 0 <= again < self.position:
            self.position = again
            return min(queues_from, again)
        return queues_from

    def publish(self) -> None:
        """Makes the dispatch progress visible to other threads, together with the queues and index files that must
        be synced for it. Calls no listener.

        ``dispatch`` calls this method. Code that removes queues or their files must also call it afterwards.
        """
        queues, touched = self._queues, self._touched
        if touched:
            self._touched = {}
            if arrived := self._arrived:
                for queue, tags_code in touched.items():
                    arrived[queue] = tags_code if arrived.get(queue, tags_code) == tags_code else None
            else:
                self._arrived = touched.copy()
            queues.written(touched)
        index_files, position = None, self.position
        if self._index is not None:
            index_files = self._index.take_written()
        index_position = (
            position if self.follower is None or self.follower.missing_from is None else self.index_position
        )
        fields = position, self.store_timestamp_ms, index_position, queues.queue_count, queues.later_files
        self.progress.publish(fields, touched, index_files)

    def sync(self) -> Progress | None:
        """Syncs everything that was published; returns the progress that is now synced. Only one thread at a time may
        call it. Returns None, and the progress is published still, if there is no space for names of lite topics.

        Raises:
            DiskError: published bytes may be missing on the disk, even if a later sync succeeds.
        """
        progress, queues, index_files = taken = self.progress.take()
        if self._lite is not None:
            try:
                self._lite.write_names()
            except DiskFullError:
                self.progress.put_back(taken)
                return None
            self._lite.sync()
        self._queues.sync(queues)
        if self._index is not None:
            self._index.sync(index_files)
        return progress

    def take_arrivals(self) -> list[Arrival]:
        """Returns the queues that got entries since the last call, each of them once."""
        arrived, self._arrived = self._arrived, {}
        arrivals = [(queue.topic, queue.queue_id, queue.max_offset, tags_code) for queue, tags_code in arrived.items()]
        return arrivals if self._lite is None else arrivals + self._lite.take_arrivals()

    def forget(self, queues: list[ConsumeQueue]) -> None:
        """Forgets these queues: they no longer belong to the store, have no waiters and need no sync."""
        for queue in queues:
            self._arrived.pop(queue, None)
        self.progress.forget(queues)
        self.publish()

    @property
    def index_position(self) -> int:
        """Physical offset of the first record whose keys are not in the index, at most ``position``."""
        missing_from = None if self.follower is None else self.follower.missing_from
        return self.position if missing_from is None else min(missing_from, self.position)

    def _dispatch_batch(self, file: MappedFile, end: int, queues_from: int, index_from: int) -> int:
        segment, start, table = file.map, file.start, self._table
        rows, position, stop = walk_records(
            segment.buffer,
            segment.view,
            self.position - start,
            min(end - start, file.size),
            start,
            table,
            ROWS_MAX,
            crc32,
            0,
        )
        if rows:
            in_queues = start + position > queues_from
            if in_queues:
                done = self._put_units(file, table, rows)
                if done < rows:
                    self.paused, rows = True, done
                    position, stop = table[done * ROW_WIDTH], WalkStop.LIMIT
                if not done:
                    return 0  # the first record begins its topic anew
            if self._multi is not None and (in_queues or start + position > self.lite_from):
                for queue, tags_code in self._multi.put(file, table, rows, self._deleted, lite_only=not in_queues):
                    self._touch(queue, tags_code)
            if self.follower is not None and start + position > index_from:
                self.follower.put(file, table, rows, self.position)
            self.store_timestamp_ms = table[(rows - 1) * ROW_WIDTH + RecordColumn.STORE_TIMESTAMP]
        if stop == WalkStop.TORN:
            raise StoreDamagedError(file.path, position, "a record cannot be read", "run rucola store verify")
        self.position = file.end if stop == WalkStop.BLANK else start + position
        return rows

    def _put_units(self, file: MappedFile, table: array[int], rows: int) -> int:
        """Puts a unit for each record of the batch.

        Returns:
            The number of records whose units were put: ``rows``, or fewer if too many segments were mapped, or if the
            next record begins its topic anew.
        """
        cost = rows
        if 1 < rows < _GROUPED_ROWS_MIN:
            cost += _ROWS_PER_CHANGE * table[ROW_WIDTH + RECORD_SAME_TOPIC : rows * ROW_WIDTH : ROW_WIDTH].count(0)
        if cost >= _GROUPED_ROWS_MIN and self._put_grouped(file, table, rows):
            return rows
        return self._put_in_order(file, table, rows)

    def _put_grouped(self, file: MappedFile, table: array[int], rows: int) -> bool:
        """Puts the units of a batch queue by queue. Returns False if the batch needs the order of the log, or holds
        what is decided record by record; some queues may have got their units by then.
        """
        groups = list(self._grouped.group(file, table, rows))
        queues = self._find_queues(groups)
        if queues is None:
            return False
        units = self._grouped.units
        for group, queue in zip(groups, queues, strict=True):
            topic, _, queue_offset, begin, end, _, tags_code = group
            if topic == SCHEDULE_TOPIC:
                tags_code = set_due_times(file, units, begin, end, self.levels_ms)
            if queue_offset == queue.max_offset:
                queue.put_units(units, end - begin, begin)
            elif not queue.put_units_again(queue_offset, units, end - begin, begin):
                return False
            if self._touched.setdefault(queue, tags_code) != tags_code:
                self._touched[queue] = None
        return True

    def _find_queues(self, groups: list[QueueGroup]) -> list[ConsumeQueue] | None:
        """Returns the queue of each group; None if the groups must not be put queue by queue: because they map too many
        segments, because topics were deleted or begin anew, because a record may not belong to the queue that it
        states, or because a queue takes its records one by one.
        """
        queues, screen, room = self._queues, self.screen, self._maps_end - self._queues.maps_made
        topics: dict[bytes, dict[int, ConsumeQueue]] = {}
        opened: list[ConsumeQueue | None] = []
        for topic, queue_id, _, _, _, breaks, _ in groups:
            if breaks or (screen is not None and not screen.passes(topic, (queue_id,))):
                return None
            if topic not in topics:
                if self._by_record(topic) or self._deleted.get(topic, 0) > self.position:
                    return None
                topics[topic] = queues.queues_of(topic)
            opened.append(topics[topic].get(queue_id))
        if len(groups) > room and queues.unmapped(opened) > room:
            return None
        found, has_lives = [], self.lives is not None
        for known, (topic, queue_id, queue_offset, _, _, _, _) in zip(opened, groups, strict=True):
            queue = queues.get(topic, queue_id) if known is None else known
            max_offset = queue.max_offset
            if queue_offset > max_offset or (has_lives and queue_offset == 0 < max_offset):
                return None
            found.append(queue)
        return found

    def _put_in_order(self, file: MappedFile, table: array[int], rows: int) -> int:
        """Puts a unit for each record of the batch, in the order of the log. Returns what ``_put_units`` does."""
        view, first = file.map.view, 0
        while first < rows:
            if first and self._queues.maps_made >= self._maps_end:
                return first
            last = run_end(table, first, rows, RECORD_SAME_TOPIC)
            position = table[first * ROW_WIDTH + RECORD_TOPIC_POS]
            topic = bytes(view[position : position + table[first * ROW_WIDTH + RECORD_TOPIC_LEN]])
            if topic in self._deleted:
                deleted_to = self._deleted[topic] - file.start
                while first < last and table[first * ROW_WIDTH] < deleted_to:
                    first += 1
                if first == last:
                    continue
            if self.lives is not None:
                new = self.lives.new_from(topic, table, first, last, file.start)
                if new == first:
                    self._begun_again = topic
                    return first
                last = new
            if last - first > 1:
                queue_ids = set(table[first * ROW_WIDTH + RECORD_QUEUE_ID : last * ROW_WIDTH : ROW_WIDTH])
                room = self._maps_end - self._queues.maps_made
                if len(queue_ids) > room and self._unmapped(topic, queue_ids) > room:
                    last = first + int(room)  # the number of maps is looked at again after so many rows
            if self.screen is not None and not self.screen.passes(
                topic, table[first * ROW_WIDTH + RECORD_QUEUE_ID : last * ROW_WIDTH : ROW_WIDTH]
            ):
                self._put_screened(self.screen, topic, file, table, first, last)
                first = last
                continue
            if self._by_record(topic):
                self._put_records(topic, file, table, first, last)
                first = last
                continue
            self._put_rows(topic, file, table, first, last)
            first = last
        return rows

    def _unmapped(self, topic: bytes, queue_ids: set[int]) -> int:
        return self._queues.unmapped(map(self._queues.queues_of(topic).get, queue_ids))

    def _put_screened(
        self, screen: Screen, topic: bytes, file: MappedFile, table: array[int], first: int, last: int
    ) -> None:
        """Puts records one by one and leaves out those that belong to no queue."""
        for row in range(first, last):
            if screen.admits(topic, file, table, row):
                put = self._put_records if self._by_record(topic) else self._put_rows
                put(topic, file, table, row, row + 1)

    def _put_rows(self, topic: bytes, file: MappedFile, table: array[int], first: int, last: int) -> None:
        """Puts records one by one."""
        queues, touched, start = self._queues.queues_of(topic), self._touched, file.start
        is_schedule = topic == SCHEDULE_TOPIC
        for row in range(first * ROW_WIDTH, last * ROW_WIDTH, ROW_WIDTH):
            if table[row + RECORD_SYS_FLAG] & PREPARED_BIT:
                continue
            queue = queues.get(table[row + RECORD_QUEUE_ID])
            if queue is None:
                queue = self._queues.get(topic, table[row + RECORD_QUEUE_ID])
            tags_code = table[row + RECORD_TAGS_CODE]
            if is_schedule:
                tags_code = due_time(file.map.view, table, row, self.levels_ms)
            queue.put(table[row + RECORD_QUEUE_OFFSET], start + table[row], table[row + RECORD_SIZE], tags_code)
            if touched.setdefault(queue, tags_code) != tags_code:  # ``_touch`` without its call
                touched[queue] = None

    def _put_records(self, topic: bytes, file: MappedFile, table: array[int], first: int, last: int) -> None:
        """Puts records one by one into queues whose units have more fields than those of a plain queue."""
        view = file.map.view
        for row in range(first * ROW_WIDTH, last * ROW_WIDTH, ROW_WIDTH):
            if table[row + RECORD_SYS_FLAG] & PREPARED_BIT:
                continue
            queue = self._queues.get(topic, table[row + RECORD_QUEUE_ID])
            tags_code = table[row + RECORD_TAGS_CODE]
            if topic == SCHEDULE_TOPIC:
                tags_code = due_time(view, table, row, self.levels_ms)
            position = table[row + RecordColumn.PROPERTIES_POS]
            properties = bytes(view[position : position + table[row + RecordColumn.PROPERTIES_LEN]])
            queue.put_record(
                DispatchRequest(
                    table[row + RECORD_QUEUE_OFFSET],
                    file.start + table[row],
                    table[row + RECORD_SIZE],
                    tags_code,
                    table[row + RecordColumn.STORE_TIMESTAMP],
                    properties,
                )
            )
            self._touch(queue, tags_code)

    def _touch(self, queue: ConsumeQueue, tags_code: int | None) -> None:
        """Notes that ``queue`` got entries with this tags code; None if the codes of its entries differ."""
        if self._touched.setdefault(queue, tags_code) != tags_code:
            self._touched[queue] = None
