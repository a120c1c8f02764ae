"""Topics that were deleted on the master and made again, seen in the copy of its log.

The log does not tell of a deletion. But a master gives each queue's messages consecutive queue offsets, and begins at 0
in a queue that has none. So a record with queue offset 0 behind older records of its queue begins another life of its
topic. The copy then does what the master did: it deletes the topic's queues, up to a place in the log between the two
lives. Without that, the new messages would follow the old ones, at other queue offsets than their records state, and
readers would pass over them.

Used on the thread that owns the store, also while it recovers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.common.sysflag import PREPARED_BIT
from rucola.store.queue.consume_queue_store import ConsumeQueueStore

DeleteTopic = Callable[[bytes, int], None]
"""Deletes the queues of a topic. The records that begin at or after the given physical offset belong to the new one."""


class TopicLives:
    """Implements ``dispatch.Lives``.

    Args:
        queues: the queues of the copy.
        delete: deletes a topic.
    """

    def __init__(self, queues: ConsumeQueueStore, delete: DeleteTopic) -> None:
        self._queues = queues
        self._delete = delete
        self._queue_id = -1

    def new_from(self, topic: bytes, table: array[int], first: int, last: int, start: int) -> int:
        """See ``dispatch.Lives``."""
        offsets = table[first * ROW_WIDTH + RecordColumn.QUEUE_OFFSET : last * ROW_WIDTH : ROW_WIDTH]
        if 0 not in offsets or self._queues.factory.is_batch(topic):
            return last
        queue_ids = table[first * ROW_WIDTH + RecordColumn.QUEUE_ID : last * ROW_WIDTH : ROW_WIDTH]
        for number, queue_offset in enumerate(offsets):
            at = (first + number) * ROW_WIDTH
            if queue_offset or table[at + RecordColumn.SYS_FLAG] & PREPARED_BIT:
                continue
            if queue_ids[number] in queue_ids[:number]:
                return first + number  # decided when the records before it are in the queue
            queue = self._queues.find(topic, queue_ids[number])
            # Recovery dispatches records again; their queue's last record is then not an older one.
            if queue is not None and queue.max_offset and queue.place_at(queue.max_offset - 1)[0] < start + table[at]:
                self._queue_id = queue.queue_id
                return first + number
        return last

    def begin(self, topic: bytes) -> int:
        """See ``dispatch.Lives``.

        The new life may have begun in queues that had no messages before. Their records come after all records of the
        old life, so the place between the lives is the first one after the last old record of the queue that shows the
        new life, at which no queue's run of records is cut in two.
        """
        spans = {}
        for name, queue_id in self._queues.names():
            queue = self._queues.find(name, queue_id) if name == topic else None
            if queue is not None and queue.max_offset > queue.min_offset:
                spans[queue_id] = queue.place_at(queue.min_offset)[0], queue.place_at(queue.max_offset - 1)[0]
        cut = spans.get(self._queue_id, (0, -1))[1] + 1  # without a span, all records of the queue have expired
        while longer := [last for first, last in spans.values() if first < cut <= last]:
            cut = max(longer) + 1
        self._delete(topic, cut)
        return min((first for first, _ in spans.values() if first >= cut), default=-1)
