"""The offsets up to which each group has popped each queue. Event loop only.

Popped messages count as consumed once their checkpoint is synced. From then on, each of them is either acknowledged or
delivered again through the revive topic, even after a crash. Before the sync, the broker keeps the offset in memory.
After a crash, the newest checkpoints show how far the group had popped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.broker.pop.revive_log import ReviveLog
from rucola.formats.pop import IN_ORDER, PopAck
from rucola.store.message_store import MessageStore


class PoppedQueue(NamedTuple):
    """One queue, as one group sees it."""

    topic: str
    group: str
    queue_id: int


class PopOffsets:
    """Tracks the popped offsets.

    Args:
        offsets: the consumer offsets; they include only pops whose checkpoints are synced.
    """

    def __init__(self, store: MessageStore, offsets: ConsumerOffsetManager) -> None:
        self._store = store
        self._offsets = offsets
        self._popped: dict[PoppedQueue, int] = {}
        self._marks: deque[tuple[int, PoppedQueue, int]] = deque()
        """Offsets that become valid once the log is synced up to a physical offset; each entry begins with that
        physical offset.
        """

    def query(self, queue: PoppedQueue) -> int | None:
        """The queue offset to pop next; None if the group never got anything from the queue."""
        committed = self._offsets.query(queue.group, queue.topic, queue.queue_id)
        popped = self._popped.get(queue)
        if committed is None or popped is None:
            return popped if committed is None else committed
        return max(popped, committed)

    def commit(self, queue: PoppedQueue, queue_offset: int) -> None:
        """Sets the offset at once, without waiting for a sync."""
        self._offsets.commit(queue.group, queue.topic, queue.queue_id, queue_offset)

    def advance(self, queue: PoppedQueue, queue_offset: int, log_end: int) -> None:
        """Notes that the group has popped the messages before ``queue_offset``. The pop's checkpoint ends at
        ``log_end`` in the log.
        """
        self._popped[queue] = queue_offset
        self._marks.append((log_end, queue, queue_offset))

    def forget(self, queue: PoppedQueue) -> None:
        """Forgets the popped offset, because the consumer offset was reset."""
        self._popped.pop(queue, None)
        self._marks = deque(mark for mark in self._marks if mark[1] != queue)

    def forget_all(self, concerned: Callable[[PoppedQueue], bool]) -> None:
        """Forgets the popped offsets of a deleted topic or group: those for which ``concerned`` returns True."""
        self._popped = {queue: queue_offset for queue, queue_offset in self._popped.items() if not concerned(queue)}
        self._marks = deque(mark for mark in self._marks if not concerned(mark[1]))

    def settle(self) -> None:
        """Commits the offsets whose checkpoints are synced."""
        while self._marks and self._marks[0][0] <= self._store.flushed_offset:
            _, queue, queue_offset = self._marks.popleft()
            if queue_offset > (self._offsets.query(queue.group, queue.topic, queue.queue_id) or 0):
                self.commit(queue, queue_offset)
            if self._popped.get(queue) == queue_offset:
                del self._popped[queue]

    def recover(self, log: ReviveLog, since_ms: int) -> None:
        """After a crash, moves offsets past messages whose checkpoints were stored since ``since_ms``, so that these
        messages are not popped twice.

        Args:
            since_ms: time of the last write of consumer offsets, or earlier.
        """
        ends: dict[PoppedQueue, list[tuple[int, int]]] = {}
        in_order: dict[PoppedQueue, int] = {}
        for record in log.newest(since_ms):
            key = record.key
            queue = PoppedQueue(key.topic, key.group, key.queue_id)
            if key.pop_time_ms < self._store.deleted_ms(key.topic.encode()):
                continue  # popped before the topic was deleted
            if isinstance(record, PopAck):
                if key.start_offset == IN_ORDER:
                    in_order[queue] = max(in_order.get(queue, 0), record.queue_offsets[-1] + 1)
            elif record.distances:
                ends.setdefault(queue, []).append((key.start_offset, record.queue_offsets[-1] + 1))
        for queue in ends.keys() | in_order.keys():
            reached = known = self._offsets.query(queue.group, queue.topic, queue.queue_id)
            for start_offset, end in sorted(ends.get(queue, ())):
                # A checkpoint that begins before the committed offset is ignored: the offset may have been reset after
                # the checkpoint was stored.
                if reached is None or (start_offset >= (known or 0) and end > reached):
                    reached = end
            reached = max(reached or 0, in_order.get(queue, 0))
            if reached != known:
                self.commit(queue, reached)
