"""Withholds damaged messages from readers. Only the damaged message is withheld; its neighbours are delivered.

By default, messages that this process stored itself are not checked, because their bytes come from the memory to which
they were written. Older messages come from the disk. Their physical offset, checksums, topic and queue id are checked.
One call of a Cython kernel reads all adjacent records. Used by the event loop's thread only.
"""

from __future__ import annotations

import logging
from array import array

from rucola.common.columns import ROW_WIDTH, new_table
from rucola.common.kernel_columns import (
    RECORD_QUEUE_ID,
    RECORD_QUEUE_OFFSET,
    RECORD_SAME_TOPIC,
    RECORD_SIZE,
    RECORD_TOPIC_LEN,
    RECORD_TOPIC_POS,
)
from rucola.common.numbers import INT64_MAX
from rucola.formats.checksum import crc32
from rucola.formats.message import CHECK_ALL, CHECK_BODY_CRC, CHECK_RECORD_CRC, walk_records
from rucola.runtime.logs import event
from rucola.store.config import CheckOnRead
from rucola.store.log.cold_read import FindPart, LogPart
from rucola.store.log.log_reader import Gap, LogReader
from rucola.store.queue.readable_queue import ReadableQueue
from rucola.store.stats import StoreStats

logger = logging.getLogger(__name__)
_ROWS_MAX = 64
_REPORTED_MAX = 1000
_CHECKSUMS = CHECK_BODY_CRC | CHECK_RECORD_CRC
_LMQ_PREFIX = b"%LMQ%"


class ReadCheck:
    """Checks messages before they are delivered.

    Attributes:
        below: records that start below this physical offset are checked.
    """

    def __init__(self, log: LogReader, check: CheckOnRead, stats: StoreStats) -> None:
        self.below = INT64_MAX if check is CheckOnRead.ALL else 0
        self._log = log
        self._check = check
        self._stats = stats
        self._table = new_table(_ROWS_MAX)
        self._reported: set[int] = set()

    def loaded(self, physical_end: int, gaps: list[Gap]) -> None:
        """Called after recovery; determines which records are checked. With ``OLD``, these are the records below the
        current end of the log, which come from the disk. Records up to the end of the last gap are always checked, so
        that no bytes of a gap are delivered as a message.
        """
        if self._check is CheckOnRead.OLD:
            self.below = physical_end
        self.below = max([self.below, *(gap.end for gap in gaps)])

    def first_damaged(self, chosen: array[int], count: int, find: FindPart, queue: ReadableQueue) -> int:
        """Returns the index of the first of ``count`` units whose record is not a sound message of the queue; ``count``
        if there is none.

        Args:
            chosen: pairs of physical offset and size, taken from the units. If a unit has the wrong size, but its
                record is a sound message of the queue, the size in the pair is replaced by the record's size.
            find: returns the bytes of the records.
        """
        topic, queue_id = queue.topic, queue.queue_id
        first = 0
        while first < count:
            part = find(chosen[2 * first])
            if part is None:
                return first
            last, end = first + 1, chosen[2 * first] + chosen[2 * first + 1]
            while last < count and chosen[2 * last] == end and last - first < _ROWS_MAX and end < part.end:
                end += chosen[2 * last + 1]
                last += 1
            sound = self._sound_rows(part, chosen, first, last, topic, queue_id)
            if sound < last - first:
                at = first + sound
                if not self._stands(part, chosen[2 * at], chosen[2 * at + 1], queue):
                    size = self._own_size(part, chosen[2 * at], queue)
                    if size <= 0:
                        return at
                    chosen[2 * at + 1] = size
                last = at + 1
            first = last
        return count

    def keep_sound(self, chosen: array[int], count: int, find: FindPart, queue: ReadableQueue) -> int:
        """Moves the units of sound records to the front of ``chosen``; returns their number."""
        kept = at = 0
        while at < count:
            left = chosen[2 * at : 2 * count]
            sound = self.first_damaged(left, count - at, find, queue)
            chosen[2 * kept : 2 * (kept + sound)] = left[: 2 * sound]
            kept, at = kept + sound, at + sound
            if at < count:
                self.report(chosen[2 * at], queue.topic, queue.queue_id)
                at += 1
        return kept

    def report(self, physical_offset: int, topic: bytes, queue_id: int) -> None:
        """Counts a damaged message that a reader requested, and logs its position when it is requested for the first
        time.
        """
        self._stats.damaged_messages += 1
        if (
            self._log.in_gap(physical_offset)
            or physical_offset in self._reported
            or len(self._reported) >= _REPORTED_MAX
        ):
            return
        self._reported.add(physical_offset)
        file = self._log.segments.find(physical_offset)
        event(
            logger,
            logging.ERROR,
            "damaged message is not delivered",
            path=self._log.segments.path if file is None else file.path,
            position=physical_offset if file is None else physical_offset - file.start,
            topic=topic,
            queue_id=queue_id,
        )

    def _sound_rows(self, part: LogPart, chosen: array[int], first: int, last: int, topic: bytes, queue_id: int) -> int:
        """Returns how many of the units from ``first`` to ``last`` (excluded) precede the first one with a damaged
        record. The records of these units are adjacent in ``part``.
        """
        table, view, start = self._table, part.view, part.start
        position = chosen[2 * first] - start
        limit = max(min(chosen[2 * last - 2] + chosen[2 * last - 1], part.end) - start, position)
        rows, _, _ = walk_records(
            part.buffer, view, position, limit, start, table, last - first, crc32, CHECK_ALL, self._log.stretches
        )
        # Entries of a light queue point to records of other topics and queues.
        foreign = topic.startswith(_LMQ_PREFIX)
        if rows == last - first and not foreign and self._one_queue(rows, view, topic, queue_id):
            end = rows * ROW_WIDTH
            if table[RECORD_SIZE:end:ROW_WIDTH] == chosen[2 * first + 1 : 2 * last : 2]:
                return rows
        for index in range(rows):
            row = index * ROW_WIDTH
            if table[row + RECORD_SIZE] != chosen[2 * (first + index) + 1]:
                return index
            if foreign:
                continue
            if table[row + RECORD_QUEUE_ID] != queue_id:
                return index
            if not table[row + RECORD_SAME_TOPIC] and _topic(view, table, row) != topic:
                return index
        return rows

    def _stands(self, part: LogPart, physical_offset: int, size: int, queue: ReadableQueue) -> bool:
        """Whether the queue is right although a field of the record contradicts the queue. If so, the record counts as
        sound.
        """
        position, table = physical_offset - part.start, self._table
        rows, _, _ = walk_records(
            part.buffer,
            part.view,
            position,
            part.end - part.start,
            part.start,
            table,
            1,
            crc32,
            _CHECKSUMS,
            self._log.stretches,
        )
        return rows == 1 and table[RECORD_SIZE] == size and queue.leads_to(physical_offset, size)

    def _own_size(self, part: LogPart, physical_offset: int, queue: ReadableQueue) -> int:
        """Returns the size of the record at ``physical_offset`` if it is a sound record of the queue, and if the
        queue's unit for this record has the right physical offset but a wrong size; otherwise 0.
        """
        position, table = physical_offset - part.start, self._table
        limit = min(part.end, self._log.max_offset) - part.start
        if queue.topic.startswith(_LMQ_PREFIX) or position > limit:
            return 0
        rows, _, _ = walk_records(
            part.buffer, part.view, position, limit, part.start, table, 1, crc32, CHECK_ALL, self._log.stretches
        )
        if not rows or table[RECORD_QUEUE_ID] != queue.queue_id or _topic(part.view, table, 0) != queue.topic:
            return 0
        named, own_size = table[RECORD_QUEUE_OFFSET], table[RECORD_SIZE]
        if not queue.min_offset <= named < queue.max_offset:
            return 0
        place, unit_size = queue.place_at(named)
        return own_size if place == physical_offset and unit_size != own_size else 0

    def _one_queue(self, rows: int, view: memoryview, topic: bytes, queue_id: int) -> bool:
        """Whether all rows of the table belong to this topic and queue. This is the usual case, in which the rows need
        not be checked one by one.
        """
        table, end = self._table, rows * ROW_WIDTH
        return (
            _topic(view, table, 0) == topic
            and table[RECORD_SAME_TOPIC:end:ROW_WIDTH].count(1) == rows - 1
            and table[RECORD_QUEUE_ID:end:ROW_WIDTH].count(queue_id) == rows
        )


def _topic(view: memoryview, table: array[int], row: int) -> bytes:
    """Returns the topic of the record whose columns begin at index ``row`` of ``table``; positions refer to
    ``view``.
    """
    position = table[row + RECORD_TOPIC_POS]
    return bytes(view[position : position + table[row + RECORD_TOPIC_LEN]])
