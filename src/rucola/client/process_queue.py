"""Holds the messages of one queue between pull and consumption, and computes the queue's consumer offset from them.

The consumer offset is the lowest queue offset not yet consumed, so a slow message is never skipped because of a later
one. It is computed on request, not with each message. All times are in seconds of the event loop's clock, which never
goes back. A ``ProcessQueue`` may be used on only one event loop. Source: RocketMQ 5.3.3, ``ProcessQueue``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue

LOCK_LIVE_S = 30.0
"""How long a consumer relies on a lock without confirmation, in seconds; the broker keeps it for 60 s."""


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Limits for one queue; pulling stops while a limit is exceeded.

    Attributes:
        messages: number of messages.
        size_bytes: total size of their records.
        span: distance from the lowest to the highest queue offset; 0 for no limit.
    """

    messages: int
    size_bytes: int
    span: int


class ProcessQueue:
    """The messages of one queue that were pulled but not consumed yet.

    Args:
        message_queue: the queue whose messages it holds.
        now: the event loop's time.

    Attributes:
        dropped: whether the queue no longer belongs to this consumer, so that results for its messages are ignored.
        last_pull_at: time at which the last pull started.
        size_bytes: total size of the records of the messages in this process queue.
        pulled, consumed, failed: numbers of messages since the queue was added.
        pulled_to: queue offset at which the next pull starts.
        is_start_certain: whether ``pulled_to`` is right before the first pull; otherwise another consumer may have
            stored a later one meanwhile.
        on_room: function that is called when the queue takes less room, or needs none any more.
    """

    def __init__(self, message_queue: MessageQueue, now: float) -> None:
        self.message_queue = message_queue
        self.dropped = False
        self.last_pull_at = now
        self.last_consume_at = now
        self.size_bytes = 0
        self.pulled = self.consumed = self.failed = 0
        self.pulled_to = 0
        self.is_start_certain = True
        self.on_room: Callable[[], None] | None = None
        self._held: dict[int, MessageExt] = {}
        self._offsets: deque[int] = deque()  # ascending; consumed offsets are removed only at the two ends
        self._next = -1

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, message: MessageExt) -> bool:
        return message.queue_offset in self._held

    def put(self, messages: Sequence[MessageExt]) -> None:
        """Adds fetched messages; does not replace messages that are already in this process queue."""
        held, offsets = self._held, self._offsets
        before = len(held)
        highest, unsorted = self._next - 1, False
        for message in messages:
            offset = message.queue_offset
            if offset in held:
                continue
            held[offset] = message
            offsets.append(offset)
            self.size_bytes += message.store_size
            if offset > highest:
                highest = offset
            else:
                unsorted = True
        self.pulled += len(held) - before
        self._next = highest + 1
        if unsorted:  # the broker sent a consumed message again, so the offsets may be out of order
            self._offsets = deque(sorted(held))

    def remove(self, messages: Sequence[MessageExt]) -> None:
        """Removes messages that were consumed or sent back. Ignores messages that are not in this process queue."""
        for message in messages:
            if self._held.pop(message.queue_offset, None) is not None:
                self.size_bytes -= message.store_size
                self.consumed += 1
        if self.on_room is not None:
            self.on_room()

    def when_room(self, listener: Callable[[], None] | None) -> None:
        """Sets ``on_room``; None ends the calls."""
        self.on_room = listener

    def drop(self) -> None:
        """Marks the queue as given up. Its messages are returned: results for them are ignored from now on."""
        self.dropped = True
        if self.on_room is not None:
            self.on_room()

    @property
    def progress(self) -> int | None:
        """The consumer offset: the lowest queue offset not yet consumed; None if nothing was consumed yet."""
        if not self.consumed:
            return None
        low, _ = self.span_ends
        return self._next if low is None else low

    @property
    def span_ends(self) -> tuple[int | None, int | None]:
        """The lowest and the highest queue offset in this process queue; both None if it is empty."""
        held, offsets = self._held, self._offsets
        while offsets and offsets[0] not in held:
            offsets.popleft()
        while offsets and offsets[-1] not in held:
            offsets.pop()
        return (offsets[0], offsets[-1]) if offsets else (None, None)

    def is_full(self, limits: FlowLimits) -> bool:
        """Whether a limit is exceeded."""
        if len(self._held) > limits.messages or self.size_bytes > limits.size_bytes:
            return True
        if not limits.span or len(self._held) < 2:
            return False
        low, high = self.span_ends
        return low is not None and high is not None and high - low > limits.span


class DeliveryQueue(ProcessQueue):
    """A queue whose fetched messages wait here until a loop, a poll or an orderly listener is given them.

    Attributes:
        fetched: the messages that wait, in order; a message that is removed from here is given.
        in_line: whether the queue is among the queues from which messages are given.
        is_paused: whether no messages are given for now.
    """

    in_order = False
    """Whether messages are given only while no earlier message is being handled."""

    def __init__(self, message_queue: MessageQueue, now: float) -> None:
        super().__init__(message_queue, now)
        self.fetched: deque[MessageExt] = deque()
        self.in_line = False
        self.is_paused = False

    @property
    def can_give(self) -> bool:
        """Whether messages wait that may be handled now."""
        return bool(self.fetched)

    def put(self, messages: Sequence[MessageExt]) -> None:
        """See ``ProcessQueue``."""
        held = self._held
        before = len(held)
        super().put(messages)
        if len(held) - before == len(messages):
            self.fetched.extend(messages)
        else:  # the broker sent messages again that are fetched or given
            self.fetched.extend([message for message in messages if held.get(message.queue_offset) is message])

    def give(self, count: int) -> list[MessageExt]:
        """Returns the next fetched messages, at most ``count``; they are now given."""
        fetched = self.fetched
        if len(fetched) > count:
            return [fetched.popleft() for _ in range(count)]
        messages = list(fetched)
        fetched.clear()
        return messages

    def finish_one(self, message: MessageExt) -> None:
        """Marks a given message as done."""
        if self._held.pop(message.queue_offset, None) is not None:
            self.size_bytes -= message.store_size
            self.consumed += 1
            if self.on_room is not None:
                self.on_room()

    def finish(self, messages: Sequence[MessageExt]) -> None:
        """Marks given messages as done."""
        self.remove(messages)

    def give_back(self, messages: Sequence[MessageExt]) -> None:
        """Makes given messages fetched again. They are given before later messages. Ignores messages that were
        consumed meanwhile.
        """
        again = [message for message in messages if message in self]
        if again and self.fetched and again[-1].queue_offset > self.fetched[0].queue_offset:
            again = sorted([*again, *self.fetched], key=attrgetter("queue_offset"))
            self.fetched.clear()
        self.fetched.extendleft(reversed(again))


class OrderlyProcessQueue(DeliveryQueue):
    """A queue whose messages are consumed in order, one batch after another.

    Attributes:
        locked_at: time at which the last successful request for the lock of the queue was sent; None if the lock was
            never granted, was refused since then, or was released.
        consuming: messages that were given and neither committed nor given back.
        on_progress: called with the queue and its new consumer offset when a loop has finished a message.
    """

    in_order = True

    def __init__(self, message_queue: MessageQueue, now: float) -> None:
        super().__init__(message_queue, now)
        self.locked_at: float | None = None
        self.try_unlock_times = 0
        self.consuming: list[MessageExt] = []
        self.on_progress: Callable[[OrderlyProcessQueue, int], None] | None = None

    def report_to(self, listener: Callable[[OrderlyProcessQueue, int], None]) -> None:
        """Sets ``on_progress``."""
        self.on_progress = listener

    def lock(self, asked_at: float) -> None:
        """Notes that the request which was sent at ``asked_at`` was granted."""
        self.locked_at = asked_at

    def unlock(self) -> None:
        """Notes that the lock was refused or released."""
        self.locked_at = None

    def is_locked(self, now: float) -> bool:
        """Whether the broker confirmed the lock recently enough to rely on it."""
        return self.locked_at is not None and now - self.locked_at <= LOCK_LIVE_S

    @property
    def can_give(self) -> bool:
        """See ``DeliveryQueue``."""
        return bool(self.fetched) and not self.consuming

    def give(self, count: int) -> list[MessageExt]:
        """See ``DeliveryQueue``."""
        messages = super().give(count)
        self.consuming += messages
        return messages

    def commit(self) -> int | None:
        """Marks all given messages as consumed; returns the queue offset after them, or None if there were none."""
        consumed, self.consuming = self.consuming, []
        if not consumed:
            return None
        self.remove(consumed)
        return consumed[-1].queue_offset + 1

    def finish_one(self, message: MessageExt) -> None:
        """See ``DeliveryQueue``."""
        self.finish([message])

    def finish(self, messages: Sequence[MessageExt]) -> None:
        """See ``DeliveryQueue``; ``messages`` must be all messages that were given."""
        consumer_offset = self.commit()
        if consumer_offset is not None and self.on_progress is not None:
            self.on_progress(self, consumer_offset)

    def give_back(self, messages: Sequence[MessageExt]) -> None:
        """See ``DeliveryQueue``; ``messages`` must be the last messages given."""
        del self.consuming[len(self.consuming) - len(messages) :]
        super().give_back(messages)

    def roll_back(self) -> None:
        """Gives back all messages that were given but not committed."""
        self.give_back(list(self.consuming))
