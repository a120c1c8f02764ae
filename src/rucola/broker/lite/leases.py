"""Pops, acknowledgements and leases of lite topics (RocketMQ 5.5.0, ``PopLiteMessageProcessor``,
``AckMessageProcessor``, ``ChangeInvisibleTimeProcessor``): the rules, without requests. Event loop only; times are
monotonic ms, except pop times.

The offset that a group has committed is the first one that it has not acknowledged. What it has acknowledged behind
that comes again with it, when the lease ends. After a restart there are no blocks: then an acknowledgement counts only
if it is that of the first message not acknowledged. RocketMQ commits any, and skips the messages before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from rucola.broker.lite.event_dispatcher import LiteEventDispatcher
from rucola.broker.lite.order_block import OrderBlock
from rucola.broker.lite.reading_group import ReadingGroup


class ReadProgress(Protocol):
    """What leases ask; see ``LiteProgress``."""

    def max_offset(self, name: bytes) -> int:
        """Returns the offset after the newest message."""

    def min_offset(self, name: bytes) -> int:
        """Returns the offset of the oldest message."""

    def offset_since(self, name: bytes, time_ms: int) -> int:
        """Returns the offset of the first message stored in the second of ``time_ms`` or later."""

    def committed(self, group: str, name: bytes) -> int:
        """Returns the offset of a group; -1 if it has none."""

    def commit(self, group: str, name: bytes, consumer_offset: int) -> None:
        """Sets the offset of a group."""

    def has_unread(self, group: str, name: bytes) -> bool:
        """Whether a lite topic has messages that the group has not consumed."""


class Acknowledged(Enum):
    """What became of an acknowledgement."""

    DONE = "done"
    """It counts, or nothing is left to do."""
    BEYOND = "beyond"
    """There is no such message."""
    NOT_IN_BATCH = "not in batch"
    """The message is not of the last pop."""


class LiteLeases:
    """The rules."""

    def __init__(self, dispatcher: LiteEventDispatcher, progress: ReadProgress) -> None:
        self._dispatcher = dispatcher
        self._progress = progress

    def start_offset(self, group: ReadingGroup, name: bytes) -> int:
        """Returns the offset at which the group continues; one without an offset begins with the oldest message."""
        committed = self._progress.committed(group.name, name)
        if committed >= 0:
            return committed
        start = self._progress.min_offset(name)
        self._progress.commit(group.name, name, start)
        return start

    def correct(self, group: ReadingGroup, name: bytes, queue_offset: int) -> None:
        """Commits an offset at which there are messages, because there were none at the committed one."""
        self._progress.commit(group.name, name, queue_offset)

    def popped(
        self,
        group: ReadingGroup,
        name: bytes,
        offsets: Sequence[int],
        attempt_id: str | None,
        times_ms: tuple[int, int],
    ) -> OrderBlock:
        """Notes that messages at ``offsets`` were popped; ``times_ms`` has the pop time, and the monotonic time at
        which they are visible again.
        """
        block = OrderBlock(attempt_id, *times_ms, offsets, group.blocks.get(name))
        self._dispatcher.block(group, name, block)
        group.moved.discard(name)
        return block

    def acknowledge(
        self, group: ReadingGroup, name: bytes, queue_offset: int, pop_time_ms: int, now_ms: int
    ) -> Acknowledged:
        """Acknowledges a message of the pop at ``pop_time_ms``."""
        progress, block = self._progress, group.blocks.get(name)
        if queue_offset > progress.max_offset(name):
            return Acknowledged.BEYOND
        committed = progress.committed(group.name, name)
        if queue_offset < committed:
            return Acknowledged.DONE
        if block is None:
            if queue_offset == committed < progress.max_offset(name) and name not in group.moved:
                progress.commit(group.name, name, queue_offset + 1)
            return Acknowledged.DONE
        if block.pop_time_ms != pop_time_ms:
            return Acknowledged.DONE
        if queue_offset not in block.offsets:
            return Acknowledged.NOT_IN_BATCH
        block.acknowledge(queue_offset)
        following = block.next_offset()
        if following > committed:
            progress.commit(group.name, name, following)
        self._dispatcher.block_changed(group, name, now_ms)
        return Acknowledged.DONE

    def hide(
        self, group: ReadingGroup, name: bytes, queue_offset: int, pop_time_ms: int, now_ms: int, visible_ms: int
    ) -> None:
        """Sets when a message of the pop at ``pop_time_ms`` is visible again; without such a pop, does nothing."""
        block = group.blocks.get(name)
        if block is not None and block.pop_time_ms == pop_time_ms and queue_offset in block.offsets:
            block.hide(queue_offset, visible_ms)
            self._dispatcher.block_changed(group, name, now_ms)

    def suspend(
        self, group: ReadingGroup, name: bytes, queue_offset: int, pop_time_ms: int, now_ms: int, visible_ms: int
    ) -> None:
        """Sets when the whole batch of the pop at ``pop_time_ms``, of which the message is, is visible again. Its next
        delivery does not count. RocketMQ lowers the counts by 1, but not below 0, so that there the first suspension
        costs an attempt.
        """
        block = group.blocks.get(name)
        if block is not None and block.pop_time_ms == pop_time_ms and queue_offset in block.offsets:
            block.suspend(visible_ms)
            self._dispatcher.block_changed(group, name, now_ms)

    def move_to(self, group: ReadingGroup, name: bytes, queue_offset: int, now_ms: int) -> None:
        """Lets a group continue at ``queue_offset``, or at the nearest message; ends its last pop. Acknowledgements of
        former pops do not count until the next one. RocketMQ notes the offset in memory, and commits it with the next
        pop; here, it outlives a restart.
        """
        progress = self._progress
        target = min(max(queue_offset, progress.min_offset(name)), progress.max_offset(name))
        if target == progress.committed(group.name, name):
            return
        progress.commit(group.name, name, target)
        self.moved(group, name, now_ms)

    def moved(self, group: ReadingGroup, name: bytes, now_ms: int) -> None:
        """The offset of a group was set: its last pop ends, and the acknowledgements of former pops do not count."""
        group.moved.add(name)
        self._dispatcher.unblock(group, name)
        self._dispatcher.ready_if_unread(group, name, now_ms)
