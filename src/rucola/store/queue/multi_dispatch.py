"""Puts the entries of light queues (``formats.light_queue``).

RocketMQ 5.3.3, ``ConsumeQueue#multiDispatchLmqQueue``. There, a name that is not a light queue's stops dispatch for
good. Here, such a name is counted and left out.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.common.message_const import INNER_MULTI_DISPATCH
from rucola.formats.light_queue import allows_light_queues, light_queue_offsets
from rucola.store.log.mapped_file import MappedFile
from rucola.store.queue.consume_queue import ConsumeQueue
from rucola.store.queue.consume_queue_store import ConsumeQueueStore
from rucola.store.stats import StoreStats

_RECORD_BYTES_MIN = 91
_PREPARED_BIT = 4
_PROPERTY = f"{INNER_MULTI_DISPATCH}\x01".encode()
_SYS_FLAG = int(RecordColumn.SYS_FLAG)
_TOPIC_POS = int(RecordColumn.TOPIC_POS)
_TOPIC_LEN = int(RecordColumn.TOPIC_LEN)
_PROPERTIES_POS = int(RecordColumn.PROPERTIES_POS)
_PROPERTIES_LEN = int(RecordColumn.PROPERTIES_LEN)


class MultiDispatch:
    """Puts the entries of light queues, after the dispatch of each batch, with ``enableMultiDispatch``."""

    def __init__(self, queues: ConsumeQueueStore, stats: StoreStats) -> None:
        self._queues = queues
        self._stats = stats

    def put(
        self, file: MappedFile, table: array[int], rows: int, deleted: Mapping[bytes, int]
    ) -> Iterator[tuple[ConsumeQueue, int]]:
        """Puts the entries of the first ``rows`` records of ``table``; yields each queue with the entry's tags code.

        Args:
            deleted: for each deleted queue, the physical offset below which it gets no entries.

        Raises:
            DiskFullError: no space; the entries may be put again.
        """
        view = file.segment.view
        for row in range(0, rows * ROW_WIDTH, ROW_WIDTH):
            length = table[row + _PROPERTIES_LEN]
            if length < len(_PROPERTY) or table[row + _SYS_FLAG] & _PREPARED_BIT:
                continue
            start = table[row + _PROPERTIES_POS]
            properties = bytes(view[start : start + length])
            if _PROPERTY not in properties:
                continue
            start = table[row + _TOPIC_POS]
            if not allows_light_queues(bytes(view[start : start + table[row + _TOPIC_LEN]])):
                continue
            physical_offset, size = file.start + table[row], table[row + RecordColumn.RECORD_SIZE]
            tags_code = table[row + RecordColumn.TAGS_CODE]
            for item in light_queue_offsets(properties):
                if item is not None and physical_offset < deleted.get(item[0], 0):
                    continue
                queue = None if item is None else self._put(*item, physical_offset, size, tags_code)
                if queue is None:
                    self._stats.multi_dispatch_skipped += 1
                else:
                    yield queue, tags_code

    def _put(
        self, name: bytes, queue_offset: int, physical_offset: int, size: int, tags_code: int
    ) -> ConsumeQueue | None:
        """The queue; None if the store cannot have assigned this offset."""
        if queue_offset * _RECORD_BYTES_MIN > physical_offset:
            return None  # Fewer records than that lie before this one.
        queue = self._queues.get(name, 0)
        if queue.min_offset <= queue_offset < queue.max_offset and queue.unit(queue_offset)[0] < physical_offset:
            return None  # This is the entry of an older record.
        queue.put(queue_offset, physical_offset, size, tags_code)
        return queue
