"""One queue of the revive topic: its pending checkpoints, and which of their messages were acknowledged."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass

from rucola.formats.pop import IN_ORDER, PopAck, PopCheckpoint, PopKey


@dataclass(slots=True)
class WaitingCheckpoint:
    """A checkpoint, its place in the revive topic, and the queue offsets of its unacknowledged messages."""

    checkpoint: PopCheckpoint
    revive_queue: int
    queue_offset: int
    open_offsets: set[int]


@dataclass(slots=True)
class _EarlyAck:
    """Acknowledgements without a checkpoint: either the timer is behind and the checkpoint will follow, or the
    checkpoint was completed earlier.
    """

    queue_offset: int
    came_ms: int
    offsets: set[int]


class ReviveQueue:
    """Reads one queue of the revive topic.

    Attributes:
        next_offset: queue offset to read next.
        finished: keys of checkpoints that were completed before start-up and may appear a second time.
        noted: the last recorded progress in the queue.
    """

    def __init__(self, queue_id: int, next_offset: int) -> None:
        self.queue_id = queue_id
        self.next_offset = next_offset
        self.finished: set[PopKey] = set()
        self.noted = next_offset - 1
        self._waiting: OrderedDict[PopKey, WaitingCheckpoint] = OrderedDict()
        self._early: dict[PopKey, _EarlyAck] = {}

    def take(self, queue_offset: int, record: PopCheckpoint | PopAck | None, came_ms: int) -> None:
        """Takes the next record, which was stored at ``came_ms``. ``record`` is None if the message at ``queue_offset``
        holds no record.
        """
        self.next_offset = queue_offset + 1
        if isinstance(record, PopAck):
            self._acknowledge(queue_offset, record, came_ms)
        elif record is not None and record.key not in self._waiting and record.key not in self.finished:
            waiting = WaitingCheckpoint(record, self.queue_id, queue_offset, set(record.queue_offsets))
            early = self._early.pop(record.key, None)
            if early is not None:
                waiting.open_offsets -= early.offsets
            self._waiting[record.key] = waiting

    def first(self) -> WaitingCheckpoint | None:
        """The oldest pending checkpoint. None if there is none, or if the queue has an older acknowledgement whose
        checkpoint has not been read yet.
        """
        first = next(iter(self._waiting.values()), None)
        early = next(iter(self._early.values()), None)  # the first entry is the oldest
        return None if first is None or (early is not None and early.queue_offset < first.queue_offset) else first

    def finish_first(self) -> None:
        """Completes the oldest checkpoint."""
        self._waiting.popitem(last=False)

    def drop_acks_before(self, complete_ms: int) -> None:
        """Forgets acknowledgements that came before ``complete_ms`` and have no checkpoint. All checkpoints due before
        that time have been read, so the checkpoints of these acknowledgements will not come any more.
        """
        for key in [key for key, early in self._early.items() if early.came_ms < complete_ms]:
            del self._early[key]

    def worked_off(self) -> int:
        """The largest queue offset up to which no record is needed any more."""
        needed = [early.queue_offset for early in itertools.islice(self._early.values(), 1)]
        needed += [waiting.queue_offset for waiting in itertools.islice(self._waiting.values(), 1)]
        return min(needed, default=self.next_offset) - 1

    def _acknowledge(self, queue_offset: int, ack: PopAck, came_ms: int) -> None:
        waiting = self._waiting.get(ack.key)
        if waiting is not None:
            waiting.open_offsets.difference_update(ack.queue_offsets)
            return
        if ack.key in self.finished or ack.key.start_offset == IN_ORDER:
            return
        early = self._early.setdefault(ack.key, _EarlyAck(queue_offset, came_ms, set()))
        early.offsets.update(ack.queue_offsets)
        early.came_ms = came_ms
