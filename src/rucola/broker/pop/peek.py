"""Shows what a group would pop next, without popping it (RocketMQ 5.3.3, ``PeekMessageProcessor``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rucola.broker.pop.pop_offsets import PopOffsets, PoppedQueue
from rucola.broker.retry_owner import is_for, records_of
from rucola.common.key_builder import is_retry_topic
from rucola.protocol.headers.pop import PeekMessageRequestHeader
from rucola.store.message_store import MessageStore
from rucola.store.results import GetMessageStatus

_MAX_BYTES = 128 * 1024 * 1024
_MOVED = {GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY}


@dataclass(slots=True)
class Peek:
    """A running peek.

    Attributes:
        begin: the queue to begin with.
        waited_for: queues whose messages an earlier attempt fetched from the disk.
        rest: number of messages that the group has not popped, including the messages found.
        cold: fetches the missing messages of the first queue whose messages were not in memory; any thread may
            call it.
    """

    header: PeekMessageRequestHeader
    begin: int
    waited_for: set[PoppedQueue] = field(default_factory=set)
    views: list[memoryview] = field(default_factory=list)
    count: int = 0
    rest: int = 0
    cold: Callable[[], None] | None = None


class Peeker:
    """Reads messages for peeks. Event loop only."""

    def __init__(self, store: MessageStore, popped: PopOffsets) -> None:
        self._store = store
        self._popped = popped

    def rest(self, queue: PoppedQueue) -> int:
        """Number of messages of a queue that the group has not popped; less than 1 if there are none."""
        return self._store.max_queue_offset(queue.topic.encode(), queue.queue_id) - self._first(queue)

    def look(self, peek: Peek, queue: PoppedQueue, room: int) -> None:
        """Adds messages of a queue to ``peek``, until ``peek`` holds ``room`` messages."""
        peek.rest += max(self.rest(queue), 0)
        if peek.count >= room:
            return
        queue_offset, may_block = self._first(queue), queue in peek.waited_for
        where = queue.topic.encode(), queue.queue_id
        result = self._store.get_message(*where, queue_offset, room - peek.count, _MAX_BYTES, may_block=may_block)
        if result.status in _MOVED:
            queue_offset = result.next_offset
            result = self._store.get_message(*where, queue_offset, room - peek.count, _MAX_BYTES, may_block=may_block)
        if result.cold is not None and peek.cold is None:
            peek.cold = result.cold
            peek.waited_for.add(queue)
        views = result.views
        if is_retry_topic(queue.topic):
            views = [record for view in views for record in records_of(view) if is_for(record, peek.header.topic)]
        peek.views += views
        peek.count += result.message_count if views is result.views else len(views)

    def _first(self, queue: PoppedQueue) -> int:
        known = self._popped.query(queue)
        return self._store.min_queue_offset(queue.topic.encode(), queue.queue_id) if known is None else known
