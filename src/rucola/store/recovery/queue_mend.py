"""Rewrites single queue entries that were synced but no longer point to their records.

After a crash, RocketMQ dispatches the records again, beginning with the newest segment that is known to be synced. This
also restores entries whose physical offset or size has become invalid. Rucola's recovery does not dispatch records
again if their entries were synced. Instead, it compares these records with their entries, beginning with the same
segment as RocketMQ. An entry is rewritten only if it does not point to a matching record, and only from a record that
passes all checks (``ConsumeQueue.mend``). A damaged record therefore changes no entry of another record.

The number of compared records is limited. Recovery leaves damaged entries beyond the limit as they are; ``verify``
reports them, and ``repair`` corrects them.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Container, Sequence
from typing import NamedTuple

from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.common.key_builder import LMQ_PREFIX
from rucola.common.sysflag import PREPARED_BIT
from rucola.formats.consume_queue import UNIT_BYTES, gather_units
from rucola.formats.message import CHECK_ALL, ROWS_MAX
from rucola.runtime.logs import event
from rucola.store.dispatch import SCHEDULE_TOPIC, due_time
from rucola.store.log.checked_walk import CheckedWalk
from rucola.store.log.mapped_file import MappedFile
from rucola.store.parts import StoreParts
from rucola.store.queue.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)
_RECORDS_MAX = 4_000_000
"""Largest number of records that are examined. Examining this many takes about 0.4 s of CPU time."""
_RUNS_MAX = 100_000
"""Largest number of comparisons. This many take about 0.5 s of CPU time. One comparison covers the records of one queue
in a run of consecutive records of the same topic.
"""
_FOUND_MAX = 10_000
_LIGHT = LMQ_PREFIX.encode()


class _Entry(NamedTuple):
    """The values that an entry should have according to its record."""

    physical_offset: int
    size: int
    tags_code: int


class QueueMend:
    """Compares a part of the log with its queue entries. Each object is used once. The queues must be opened again
    afterwards.

    Args:
        levels_ms: the delay of each level of the schedule topic.
        known: topic and queue id of the queues that exist.
    """

    def __init__(self, parts: StoreParts, levels_ms: Sequence[int], known: Container[tuple[bytes, int]]) -> None:
        self._log = parts.log
        self._queues = parts.queues
        self._deleted = parts.deleted
        self._levels_ms = levels_ms
        self._known = known
        self._table = new_table(ROWS_MAX)
        self._units = bytearray(ROWS_MAX * UNIT_BYTES)
        self._runs = 0
        # If two records state the same queue and queue offset, the newer record counts, because the topic may have been
        # deleted and created again.
        self._found: dict[tuple[ConsumeQueue, int], _Entry] = {}

    def run(self, start: int, end: int) -> int:
        """Compares the records from ``start`` to ``end`` with their entries, rewrites wrong entries, and syncs the
        changed queues. Returns the number of entries written.

        Args:
            start: physical offset at which a record begins.
            end: physical offset at which the comparison ends.

        Raises:
            DiskError: a changed queue could not be synced.
        """
        self._search(start, end)
        mended: dict[ConsumeQueue, None] = {}
        count = 0
        for (queue, queue_offset), entry in sorted(self._found.items(), key=lambda one: one[0][1]):
            sound = self._log.row_at(entry.physical_offset, CHECK_ALL) is not None
            if sound and queue.mend(queue_offset, *entry):
                mended[queue] = None
                count += 1
                event(
                    logger,
                    logging.WARNING,
                    "entry written again",
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    queue_offset=queue_offset,
                    physical_offset=entry.physical_offset,
                )
        for queue in mended:
            queue.sync()
        return count

    def _search(self, start: int, end: int) -> None:
        walk, records, offset = CheckedWalk(self._table), 0, start
        while offset < end and (file := self._log.segments.find(offset)) is not None:
            rows, position, stop = walk.walk(file, offset - file.start, 0)
            first = 0
            while first < rows:
                first = self._compare_topic(file, first, rows)
            records += rows
            if records > _RECORDS_MAX or self._runs > _RUNS_MAX or len(self._found) > _FOUND_MAX:
                event(
                    logger,
                    logging.INFO,
                    "queue entries are compared with only a part of the log",
                    compared_to=file.start + position,
                    end=end,
                )
                return
            # If a record cannot be read, the rest of its segment is skipped. Dispatch and readers report such a record.
            offset = file.start + position if stop in (WalkStop.TABLE_FULL, WalkStop.LIMIT) else file.end

    def _compare_topic(self, file: MappedFile, first: int, rows: int) -> int:
        """Compares consecutive records of the same topic with their entries; returns the row after the last of these
        records.
        """
        table, view = self._table, file.map.view
        same_topic = table[first * ROW_WIDTH + RecordColumn.SAME_TOPIC : rows * ROW_WIDTH : ROW_WIDTH]
        last = first + 1
        while last < rows and same_topic[last - first]:
            last += 1
        position = table[first * ROW_WIDTH + RecordColumn.TOPIC_POS]
        topic = bytes(view[position : position + table[first * ROW_WIDTH + RecordColumn.TOPIC_LEN]])
        deleted_to = self._deleted.get(topic, 0) - file.start
        for queue_id in set(table[first * ROW_WIDTH + RecordColumn.QUEUE_ID : last * ROW_WIDTH : ROW_WIDTH]):
            self._runs += 1
            if (topic, queue_id) not in self._known or topic.startswith(_LIGHT):
                continue
            queue = self._queues.get(topic, queue_id)
            # Entries of other kinds of queues contain values that the record does not state.
            if type(queue) is ConsumeQueue and not self._agree(queue, file, first, last):
                self._compare(queue, file, first, last, deleted_to)
        return last

    def _agree(self, queue: ConsumeQueue, file: MappedFile, first: int, last: int) -> bool:
        """Whether the entries are those of the records, byte for byte. This is nearly always the case."""
        table = self._table
        queue_ids = table[first * ROW_WIDTH + RecordColumn.QUEUE_ID : last * ROW_WIDTH : ROW_WIDTH]
        first += queue_ids.index(queue.queue_id)
        queue_offset = table[first * ROW_WIDTH + RecordColumn.QUEUE_OFFSET]
        count, _, _ = gather_units(table, first, last, queue.queue_id, queue_offset, file.start, self._units)
        return count >= 0 and queue.read_units(queue_offset, count) == self._units[: count * UNIT_BYTES]

    def _compare(self, queue: ConsumeQueue, file: MappedFile, first: int, last: int, deleted_to: int) -> None:
        table = self._table
        for row in range(first * ROW_WIDTH, last * ROW_WIDTH, ROW_WIDTH):
            of_queue = table[row + RecordColumn.QUEUE_ID] == queue.queue_id
            if not of_queue or table[row + RecordColumn.SYS_FLAG] & PREPARED_BIT or table[row] < deleted_to:
                continue
            queue_offset = table[row + RecordColumn.QUEUE_OFFSET]
            place = file.start + table[row], table[row + RecordColumn.RECORD_SIZE]
            if queue.place_at(queue_offset) != place:
                self._found[queue, queue_offset] = _Entry(*place, self._tags_code(queue.topic, file, table, row))

    def _tags_code(self, topic: bytes, file: MappedFile, table: array[int], row: int) -> int:
        if topic == SCHEDULE_TOPIC:
            return due_time(file.map.view, table, row, self._levels_ms)
        return table[row + RecordColumn.TAGS_CODE]
