"""Writes the entries of records into light queues (``formats.light_queue``).

RocketMQ 5.3.3, ``ConsumeQueue#multiDispatchLmqQueue``. In RocketMQ, an invalid light queue name stops dispatch
permanently. Rucola counts such a name and skips it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.common.kernel_columns import (
    RECORD_LITE_LEN,
    RECORD_LITE_OFFSET,
    RECORD_LITE_POS,
    RECORD_PROPERTIES_LEN,
    RECORD_PROPERTIES_POS,
    RECORD_SIZE,
    RECORD_STORE_TIMESTAMP,
    RECORD_SYS_FLAG,
    RECORD_TAGS_CODE,
    RECORD_TOPIC_LEN,
    RECORD_TOPIC_POS,
)
from rucola.common.key_builder import LITE_PREFIX
from rucola.common.sysflag import PREPARED_BIT
from rucola.formats._lite_rows_cy import find_alone, next_light
from rucola.formats.light_queue import allows_light_queues, is_lite, light_queue_offsets, lite_parent
from rucola.formats.lite import QUEUE_OFFSET_MAX
from rucola.formats.message import RECORD_BYTES_MIN
from rucola.store.log.mapped_file import MappedFile
from rucola.store.queue.consume_queue import ConsumeQueue
from rucola.store.queue.consume_queue_store import ConsumeQueueStore
from rucola.store.stats import StoreStats


class LightEntry(NamedTuple):
    """The entry that a light queue has for a record."""

    name: bytes
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    store_time_ms: int = 0


def light_entries(
    file: MappedFile, table: array[int], rows: int, deleted: Mapping[bytes, int]
) -> Iterator[LightEntry | None]:
    """Yields the entries in light queues for the first ``rows`` records of ``table``; yields None for an invalid name
    or offset in a record's property.

    Args:
        deleted: for each deleted light queue, the physical offset below which records get no entries in it.
    """
    segment, view, number = file.map.buffer, file.map.view, -1
    has_columns = False
    while (number := next_light(segment, table, number + 1, rows)) < rows:
        row = number * ROW_WIDTH
        if table[row + RECORD_SYS_FLAG] & PREPARED_BIT:
            continue
        if not has_columns:
            find_alone(segment, table, number, rows, QUEUE_OFFSET_MAX)
            has_columns = True
        if table[row + RECORD_LITE_LEN] > 0:
            entry = _only_entry(file, view, table, row)
            if not deleted or entry.physical_offset >= deleted.get(entry.name, 0):
                yield entry
            continue
        start = table[row + RECORD_PROPERTIES_POS]
        properties = bytes(view[start : start + table[row + RECORD_PROPERTIES_LEN]])
        start = table[row + RECORD_TOPIC_POS]
        if not allows_light_queues(bytes(view[start : start + table[row + RECORD_TOPIC_LEN]])):
            continue
        physical_offset, size = file.start + table[row], table[row + RecordColumn.RECORD_SIZE]
        tags_code, store_time_ms = table[row + RecordColumn.TAGS_CODE], table[row + RecordColumn.STORE_TIMESTAMP]
        for item in light_queue_offsets(properties):
            if item is None:
                yield None
            elif physical_offset >= deleted.get(item[0], 0):
                yield LightEntry(*item, physical_offset, size, tags_code, store_time_ms)


def _only_entry(file: MappedFile, view: memoryview, table: array[int], row: int) -> LightEntry:
    """The entry of a record whose only light queue is that of a lite topic, which ``find_alone`` has found."""
    lite = table[row + RECORD_LITE_POS]
    start = lite - len("$") - table[row + RECORD_TOPIC_LEN] - len(LITE_PREFIX)
    return LightEntry(
        bytes(view[start : lite + table[row + RECORD_LITE_LEN]]),
        table[row + RECORD_LITE_OFFSET],
        file.start + table[row],
        table[row + RECORD_SIZE],
        table[row + RECORD_TAGS_CODE],
        table[row + RECORD_STORE_TIMESTAMP],
    )


def is_possible(entry: LightEntry) -> bool:
    """Whether the queue offset is plausible: it is at most the number of records of the smallest size that fit into the
    log before the entry's record.
    """
    return entry.queue_offset * RECORD_BYTES_MIN <= entry.physical_offset


def put_light_entry(queue: ConsumeQueue, entry: LightEntry) -> bool:
    """Writes an entry into its queue; returns False if the queue already has the entry of an older record at this queue
    offset.

    Raises:
        DiskFullError: no space; the call can be repeated.
    """
    queue_offset, physical_offset = entry.queue_offset, entry.physical_offset
    if queue.min_offset <= queue_offset < queue.max_offset and queue.unit(queue_offset)[0] < physical_offset:
        return False
    queue.put(queue_offset, physical_offset, entry.size, entry.tags_code)
    return True


class MultiDispatch:
    """With ``enableMultiDispatch``, writes the entries into light queues after the dispatch of each batch. Lite topics
    have queues of their own kind (``store.lite``).
    """

    def __init__(self, queues: ConsumeQueueStore, stats: StoreStats) -> None:
        self._queues = queues
        self._stats = stats

    def put(
        self,
        file: MappedFile,
        table: array[int],
        rows: int,
        deleted: Mapping[bytes, int],
        lite_only: bool = False,
    ) -> Iterator[tuple[ConsumeQueue, int]]:
        """Writes the entries for the first ``rows`` records of ``table``; yields the queue and the tags code of each
        entry that is in a ``ConsumeQueue``.

        Args:
            deleted: see ``light_entries``.
            lite_only: whether recovery knows that all other light queues have the entries.

        Raises:
            DiskFullError: no space; the call can be repeated.
        """
        lite = self._queues.lite
        for entry in light_entries(file, table, rows, deleted):
            if lite is not None and entry is not None and is_lite(entry.name):
                # No check of the offset: counters outlive records, and a unit takes the same place at any offset.
                place = entry.queue_offset, entry.physical_offset, entry.size
                if not lite.put(entry.name, place, entry.tags_code, entry.store_time_ms):
                    self._stats.multi_dispatch_skipped += 1
                if deleted and entry.physical_offset < deleted.get(lite_parent(entry.name), 0):
                    lite.delete_newest(entry.name, entry.physical_offset)
                continue
            if lite_only:
                continue
            queue = None if entry is None or not is_possible(entry) else self._queues.get(entry.name, 0)
            if entry is None or queue is None or not put_light_entry(queue, entry):
                self._stats.multi_dispatch_skipped += 1
            else:
                yield queue, entry.tags_code
