"""Reads that return only the messages that match an SQL92 expression.

The store returns records as they lie in the log. One Cython kernel finds the properties of the records, and another one
evaluates the expression on these properties. Matching records are returned as slices of the log. As in RocketMQ, one
read examines a limited number of queue units.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from rucola.common.columns import ROW_WIDTH, RecordColumn, new_table
from rucola.filter import sql
from rucola.formats.checksum import crc32
from rucola.formats.consume_queue import UNIT_BYTES
from rucola.formats.message import walk_records
from rucola.store.message_store import MessageStore
from rucola.store.results import GetMessageResult, GetMessageStatus

FILTER_S = 0.01
"""Seconds that one request may take. When its time is up, the request returns the messages found so far and the offset
at which to continue.
"""
READ_BYTES_MAX = 128 * 1024 * 1024
"""The number of bytes that pulls and pops ask the store for. The store has limits of its own."""
_ROWS_MAX = 256
_POSITION = int(RecordColumn.RECORD_POS)
_SIZE = int(RecordColumn.RECORD_SIZE)
_QUEUE_OFFSET = int(RecordColumn.QUEUE_OFFSET)
_PROPERTIES_POS = int(RecordColumn.PROPERTIES_POS)
_PROPERTIES_LEN = int(RecordColumn.PROPERTIES_LEN)


class FilteredRead:
    """Reads queues for one request, which wants only the messages that match its expression.

    The time that the request may take is checked only between two reads of the store; no read is cut short.

    Args:
        monotonic: returns monotonic seconds; the time of the request begins now.
    """

    def __init__(self, store: MessageStore, expression: sql.SqlExpression, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._expression = expression
        self._monotonic = monotonic
        self._ends_s = monotonic() + FILTER_S

    def is_time_up(self) -> bool:
        """Whether the request should be answered with the messages found so far."""
        return self._monotonic() >= self._ends_s

    def get_message(
        self, topic: bytes, queue_id: int, queue_offset: int, max_messages: int, may_block: bool
    ) -> GetMessageResult:
        """``MessageStore.get_message`` for messages that match. If no message matches, the result tells up to which
        offset the queue was examined.

        A message that is not in memory ends the read, as a limit does. If the first message is not in memory, the read
        waits for the disk with ``may_block``; without ``may_block``, the result reports the message in ``cold``.
        """
        store = self._store
        found = _Found(self._expression, max_messages, store.config.max_transfer_bytes_on_message_in_memory)
        units_max = max(store.config.max_filter_message_size // UNIT_BYTES, max_messages)
        end = queue_offset + units_max
        first = queue_offset
        result = store.get_message(topic, queue_id, queue_offset, max_messages, READ_BYTES_MAX, may_block=may_block)
        while result.status is GetMessageStatus.FOUND and result.cold is None:
            queue_offset = result.next_offset
            for view in result.views:
                stopped_at = found.take(view)
                if stopped_at is not None:
                    queue_offset = stopped_at
                    break
            if found.full or queue_offset >= min(end, result.max_offset) or self.is_time_up():
                break
            result = store.get_message(topic, queue_id, queue_offset, max_messages, READ_BYTES_MAX, may_block=False)
        low, high = result.min_offset, result.max_offset
        if found.views:
            status, slave = GetMessageStatus.FOUND, result.suggest_slave
            return GetMessageResult(status, queue_offset, low, high, found.views, found.count, found.size, slave)
        if result.status is not GetMessageStatus.FOUND or (result.cold is not None and queue_offset == first):
            return result
        return GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, queue_offset, low, high)


class _Found:
    """The result with the messages that matched so far."""

    def __init__(self, expression: sql.SqlExpression, count_max: int, bytes_max: int) -> None:
        self._expression = expression
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._table = new_table(_ROWS_MAX)
        self._places = array("q", bytes(16 * _ROWS_MAX))
        self._outcomes = bytearray(_ROWS_MAX)
        self.views: list[memoryview] = []
        self.count = 0
        self.size = 0

    @property
    def full(self) -> bool:
        """Whether the result has reached its limits."""
        return self.count >= self._count_max or self.size >= self._bytes_max

    def take(self, view: memoryview) -> int | None:
        """Evaluates the expression for the records in ``view``.

        Returns:
            The queue offset after the last examined message if the result is full, else None.
        """
        table, position, passes = self._table, 0, sql.TruthValue.TRUE
        while position < len(view):
            rows, following, _ = walk_records(view, view, position, len(view), 0, table, _ROWS_MAX, crc32, 0)
            if rows == 0:
                break
            self._places[0 : 2 * rows : 2] = table[_PROPERTIES_POS : rows * ROW_WIDTH : ROW_WIDTH]
            self._places[1 : 2 * rows : 2] = table[_PROPERTIES_LEN : rows * ROW_WIDTH : ROW_WIDTH]
            if self._expression.match(view, self._places, rows, self._outcomes):
                for row in range(rows):
                    if self._outcomes[row] == passes:
                        base = row * ROW_WIDTH
                        begin, size = table[base + _POSITION], table[base + _SIZE]
                        self.views.append(view[begin : begin + size])
                        self.count += 1
                        self.size += size
                        if self.full:
                            return table[base + _QUEUE_OFFSET] + 1
            position = following
        return None
