"""Reads messages for consumers: by queue offset, by key, by time (RocketMQ 5.3.3, ``DefaultMessageStore#getMessage``
and others).

Everything runs on the event loop's thread. Results are slices of the mapped log; small slices are copied into one
buffer. Records that may no longer be in memory are copied from the file, by ``cold_read``.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Collection, Iterable
from functools import partial
from itertools import islice

from rucola.common.columns import RecordColumn
from rucola.errors import DiskError
from rucola.formats.consume_queue import UNIT_BYTES, PullLimits, join_slices, merge_neighbours
from rucola.formats.index_file import ChainBudget
from rucola.formats.message import CHECK_BODY_CRC, CHECK_RECORD_CRC
from rucola.runtime.logs import event
from rucola.store.config import DamagedMessage, MessageStoreConfig
from rucola.store.log.cold_read import COPY_MAX_BYTES, ColdRecords, Copies, FindPart
from rucola.store.log.log_reader import HEAD_BYTES, Gap
from rucola.store.parts import StoreParts
from rucola.store.queue.readable_queue import ReadableQueue
from rucola.store.read_check import ReadCheck
from rucola.store.results import Boundary, GetMessageResult, GetMessageStatus, QueryMessageResult
from rucola.store.stats import StoreStats

logger = logging.getLogger(__name__)
_PULL_BYTES_MIN = 100
_PULL_BYTES_MAX = 128 << 20
_CANDIDATES_MAX = 4096
_CODES_MAX = 65_536
"""Largest number of tag codes in all cached sets together. A set takes 80 bytes a code."""
_AHEAD_MAX = 64
"""Largest number of records that are fetched together for a caller that reads them one after the other."""
_CHAIN_STEPS_MAX = 32_768
"""Largest number of index entries that a query examines. A slot usually has a few entries; a client that chooses keys
with the same hash can create millions.
"""
_OTHER_BYTES_MAX = 16 << 20
"""A query stops after it has read this many bytes of records that do not have the wanted key."""
JOIN_BELOW_BYTES = 4096
"""Average slice length in bytes below which copying takes less CPU time than sending slices separately.

CPU time of a response with 32 slices, measured on uvloop over loopback:

============ =============== ===========
slice length sent separately copied
============ =============== ===========
200 B        27 us           15 us
1,250 B      33 us           25 us
4,096 B      44 to 55 us     39 to 61 us
============ =============== ===========
"""
_ALL_TAGS = array("q")


class MessageReader:
    """Reads messages of a store.

    Attributes:
        check: checks messages before they are delivered.

    Args:
        memory_bytes: physical memory of the machine; determines which part of the log is assumed to be in memory.
    """

    def __init__(
        self,
        config: MessageStoreConfig,
        parts: StoreParts,
        memory_bytes: int,
        stats: StoreStats,
    ) -> None:
        self.check = ReadCheck(parts.log, config.check_on_read, stats)
        self._config = config
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._written_from = 0
        self._in_memory_bytes = memory_bytes * config.access_message_in_memory_max_ratio // 100
        count_max = max(config.max_transfer_count_on_message_in_memory, config.max_transfer_count_on_message_in_disk)
        self._chosen = array("q", bytes(16 * count_max))
        self._slices = array("q", bytes(16 * count_max))
        self._unreadable: set[str] = set()
        self._codes: dict[Collection[int], array[int]] = {}
        """Tag codes of recent pulls, sorted for ``select_units``."""
        self._codes_count = 0

    def loaded(self, physical_end: int, gaps: list[Gap]) -> None:
        """Must be called after recovery.

        Args:
            physical_end: end of the log; earlier records are possibly not in memory.
            gaps: parts of the log without messages.
        """
        self._written_from = physical_end
        self.check.loaded(physical_end, gaps)

    def get_message(
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: Collection[int] | None,
        may_block: bool,
    ) -> GetMessageResult:
        """See ``MessageStore.get_message``."""
        queue = self._queues.readable(topic, queue_id)
        if queue is None or queue.max_offset == 0:
            first = self._queues.first_offset(topic, queue_id)
            return GetMessageResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, first, 0)
        low, high = queue.min_offset, queue.max_offset
        if queue_offset < low:
            return GetMessageResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
        if queue_offset == high:
            return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high)
        if queue_offset > high:
            return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        try:
            return self._collect(queue, (low, high), queue_offset, max_messages, max_bytes, tag_codes, may_block)
        except DiskError as error:
            if error.operation != "read":
                raise
            return self._over_unreadable(queue, queue_offset, error)

    def message_at(self, physical_offset: int, cold: ColdRecords | None) -> memoryview | None:
        """See ``MessageStore.message_at``."""
        return self._log.message_at(physical_offset) if self._readable(physical_offset, cold) else None

    def look_ahead(self, physical_offsets: Iterable[int], cold: ColdRecords) -> None:
        """See ``MessageStore.look_ahead``."""
        for physical_offset in islice(physical_offsets, _AHEAD_MAX):
            self._waits(physical_offset, cold)

    def query_by_key(
        self, topic: bytes, key: bytes, count_max: int, begin_ms: int, end_ms: int, cold: ColdRecords | None
    ) -> QueryMessageResult:
        """See ``MessageStore.query_by_key``."""
        if self._index is None or not key:
            return QueryMessageResult([])
        count_max = min(count_max, self._config.max_msgs_num_batch)
        budget = ChainBudget(_CHAIN_STEPS_MAX)
        candidates = self._index.query(topic, key, _CANDIDATES_MAX, begin_ms, end_ms, budget)
        found: list[tuple[int, int]] = []
        other_bytes = waiting = 0
        partial = budget.cut
        for physical_offset in dict.fromkeys(candidates):
            if len(found) + waiting >= count_max:
                break
            if other_bytes > _OTHER_BYTES_MAX:
                partial = True
                break
            if self._waits(physical_offset, cold):
                waiting += 1
                continue
            size, matches = self._compare_key(physical_offset, topic, key, begin_ms, end_ms)
            if matches:
                found.append((physical_offset, size))
            else:
                other_bytes += size
        if cold is not None:
            cold.check()
        views = [view for offset, size in sorted(found) if (view := self._log.view(offset, size)) is not None]
        newest = self._index.newest() if views else (0, 0)
        return QueryMessageResult(views, *newest, partial)

    def offset_by_time(
        self, topic: bytes, queue_id: int, timestamp_ms: int, boundary: Boundary, cold: ColdRecords | None
    ) -> int:
        """See ``MessageStore.offset_by_time``."""
        queue = self._queues.readable(topic, queue_id)
        return 0 if queue is None else queue.offset_by_time(timestamp_ms, boundary, partial(self._searched_time, cold))

    def store_time_at(self, topic: bytes, queue_id: int, queue_offset: int, cold: ColdRecords | None) -> int:
        """See ``MessageStore.store_time_at``."""
        queue = self._queues.readable(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        physical_offset = queue.unit(queue_offset)[0]
        return self._log.store_timestamp(physical_offset) if self._readable(physical_offset, cold, HEAD_BYTES) else -1

    def in_memory(self, topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """See ``MessageStore.in_memory``."""
        queue = self._queues.readable(topic, queue_id)
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return False
        physical_offset, size, _ = queue.unit(queue_offset)
        if not self._may_be_cold(physical_offset):
            return True
        file = self._log.segments.find(physical_offset)
        if file is None or size <= 0:
            return False
        return file.map.is_resident(physical_offset - file.start, min(size, COPY_MAX_BYTES))

    def _searched_time(self, cold: ColdRecords | None, physical_offset: int) -> int:
        """Returns the store time of a record for a search by time. Raises an error rather than returning -1 for a
        record that cannot be read now, because the search would then go wrong.

        Raises:
            DiskError: the disk cannot read the record.
            NotInMemoryError: the record must be fetched first.
        """
        if not self._readable(physical_offset, cold, HEAD_BYTES):
            file = self._log.segments.find(physical_offset)
            assert file is not None
            raise DiskError(file.path, "read", f"record {physical_offset}")
        return self._log.store_timestamp(physical_offset)

    def _over_unreadable(self, queue: ReadableQueue, queue_offset: int, error: DiskError) -> GetMessageResult:
        """Handles a page of a queue that the disk cannot read: skips it, or ends the pull there so that the consumer
        waits.
        """
        low, high = queue.min_offset, queue.max_offset
        if error.path not in self._unreadable:
            self._unreadable.add(error.path)
            event(
                logger, logging.ERROR, "entries of a queue are not delivered", path=error.path, position=error.position
            )
        if self._config.damaged_message is not DamagedMessage.SKIP:
            return GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high)
        following = max(queue.offset_after(error.path, error.position), queue_offset + 1)
        following = min(following, high)
        return GetMessageResult(GetMessageStatus.MESSAGE_WAS_REMOVING, following, low, high)

    def _collect(
        self,
        queue: ReadableQueue,
        bounds: tuple[int, int],
        queue_offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: Collection[int] | None,
        may_block: bool,
    ) -> GetMessageResult:
        config, log, chosen = self._config, self._log, self._chosen
        self._queues.note_read(queue)
        low, high = bounds
        memory_from = log.max_offset - self._in_memory_bytes
        limits = PullLimits(
            log.min_offset,
            log.max_offset,
            memory_from,
            config.max_transfer_count_on_message_in_memory,
            config.max_transfer_bytes_on_message_in_memory,
            config.max_transfer_count_on_message_in_disk,
            config.max_transfer_bytes_on_message_in_disk,
        )
        selected = queue.select(
            queue_offset,
            chosen,
            _ALL_TAGS if tag_codes is None else self._codes_of(tag_codes),
            max_messages,
            min(max(max_bytes, _PULL_BYTES_MIN), _PULL_BYTES_MAX),
            max(config.max_filter_message_size, min(max_messages, high) * queue.unit_bytes),
            limits,
        )
        count, examined, missing = (0, 0, 0) if selected is None else selected
        if examined == 0:
            units = queue.segments.segment_bytes // UNIT_BYTES
            following = (queue_offset // units + 1) * units
            return GetMessageResult(GetMessageStatus.OFFSET_FOUND_NULL, following, low, high)
        next_offset = queue_offset + examined
        if count == 0:
            status = GetMessageStatus.MESSAGE_WAS_REMOVING if missing else GetMessageStatus.NO_MATCHED_MESSAGE
            return GetMessageResult(status, next_offset, low, high)
        find: FindPart = log.segments.find
        complete = True
        if chosen[0] < self._written_from or chosen[0] < memory_from:
            copies = Copies()
            copies.take(chosen, count, log.segments.find, may_block)
            if copies.cold is not None:
                return GetMessageResult(GetMessageStatus.FOUND, queue_offset, low, high, cold=copies.cold.fetch)
            find, complete = copies.find, copies.complete
        # A unit read from the disk may point anywhere.
        if chosen[0] < self.check.below or not complete or queue_offset < min(queue.found_offset, self.check.below):
            kept, stop = self._checked(queue, queue_offset, count, find)
            if stop is not None:
                next_offset = stop
            if kept == 0:
                # With ``STOP``, damage ends the pull. The consumer asks for the same offset again until an operator
                # resets the offset or chooses ``SKIP``.
                stays = next_offset == queue_offset
                status = GetMessageStatus.OFFSET_OVERFLOW_ONE if stays else GetMessageStatus.MESSAGE_WAS_REMOVING
                return GetMessageResult(status, next_offset, low, high)
            count = kept
        views, size = self._views(count, find)
        suggest_slave = chosen[2 * count - 2] < memory_from
        messages = queue.messages_in(chosen, count)
        return GetMessageResult(GetMessageStatus.FOUND, next_offset, low, high, views, messages, size, suggest_slave)

    def _checked(self, queue: ReadableQueue, queue_offset: int, count: int, find: FindPart) -> tuple[int, int | None]:
        """Removes the units of damaged messages from the chosen units.

        Returns:
            The number of units left, and the queue offset of the damaged message before which the pull must end; None
            if there is none.
        """
        chosen = self._chosen
        if self._config.damaged_message is DamagedMessage.SKIP:
            return self.check.keep_sound(chosen, count, find, queue), None
        kept = self.check.first_damaged(chosen, count, find, queue)
        if kept == count:
            return count, None
        self.check.report(chosen[2 * kept], queue.topic, queue.queue_id)
        while queue.unit(queue_offset)[0] != chosen[2 * kept]:
            queue_offset += 1
        return kept, queue_offset

    def _views(self, count: int, find: FindPart) -> tuple[list[memoryview], int]:
        """Returns the records of the chosen units, and their total size. Adjacent records form one slice; small
        separate slices are copied.
        """
        chosen, slices = self._chosen, self._slices
        views: list[memoryview] = []
        total, at = 0, 0
        while at < count:
            part = find(chosen[2 * at])
            assert part is not None
            start, view = part.start, part.view
            at, number, size = merge_neighbours(chosen, at, count, part.end, slices)
            total += size
            if number > 1 and size < JOIN_BELOW_BYTES * number:
                views.append(memoryview(join_slices(view, start, slices, number, size)))
                continue
            for index in range(0, 2 * number, 2):
                begin = slices[index] - start
                views.append(view[begin : begin + slices[index + 1]])
        return views, total

    def _codes_of(self, tag_codes: Collection[int]) -> array[int]:
        """Returns the tag codes, sorted for ``select_units``. The result is cached, because a consumer uses the same
        set in each pull.
        """
        if not isinstance(tag_codes, frozenset):
            return array("q", sorted(tag_codes))
        codes = self._codes.get(tag_codes)
        if codes is None:
            self._codes_count += len(tag_codes) + 1
            if self._codes_count > _CODES_MAX:
                self._codes.clear()
                self._codes_count = len(tag_codes) + 1
            codes = self._codes[tag_codes] = array("q", sorted(tag_codes))
        return codes

    def _readable(self, physical_offset: int, cold: ColdRecords | None, length: int = 0) -> bool:
        """Whether the disk can read a record, or ``length`` bytes of it.

        Raises:
            NotInMemoryError: the record must be fetched before this can be answered.
        """
        if cold is None or not self._waits(physical_offset, cold, length):
            return True
        cold.check()
        return False

    def _waits(self, physical_offset: int, cold: ColdRecords | None, length: int = 0) -> bool:
        """Whether a record must not be read now: the disk cannot read it, or it must first be fetched. In the second
        case, notes the record in ``cold``.
        """
        if cold is None or not self._may_be_cold(physical_offset):
            return False
        file = self._log.segments.find(physical_offset)
        return file is not None and cold.waits(file, physical_offset, length)

    def _may_be_cold(self, physical_offset: int) -> bool:
        """Whether a record was written before start-up, or so long ago that its page may no longer be in memory."""
        return physical_offset < max(self._written_from, self._log.max_offset - self._in_memory_bytes)

    def _compare_key(
        self, physical_offset: int, topic: bytes, key: bytes, begin_ms: int, end_ms: int
    ) -> tuple[int, bool]:
        """Returns the size of a record, and whether its topic, one of its keys and its store time match the query.

        The index compares hashes only: ``Aa`` and ``BB`` have the same hash.
        """
        log = self._log
        # The record's own physical offset is not checked, because the index entry states where the record is.
        row = log.row_at(physical_offset, CHECK_BODY_CRC | CHECK_RECORD_CRC)
        if row is None:
            return 0, False
        size = row[RecordColumn.RECORD_SIZE]
        record = log.view(physical_offset, size)
        timely = begin_ms <= row[RecordColumn.STORE_TIMESTAMP] <= end_ms
        if record is None or not timely or log.topic_of(physical_offset, row) != topic:
            return size, False
        start = row[RecordColumn.RECORD_POS]

        def span(position: RecordColumn, length: RecordColumn) -> bytes:
            at = row[position] - start
            return bytes(record[at : at + max(row[length], 0)])

        if key == span(RecordColumn.UNIQ_KEY_POS, RecordColumn.UNIQ_KEY_LEN):
            return size, True
        return size, key in span(RecordColumn.KEYS_POS, RecordColumn.KEYS_LEN).split(b" ")
