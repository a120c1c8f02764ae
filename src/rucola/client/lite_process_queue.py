"""The messages of one lite topic that a lite consumer holds: those that were popped and not acknowledged.

A broker gives a group one batch of a lite topic at a time, and nothing behind it before each message of the batch is
acknowledged or its lease has ended. The application gets the batch one message at a time. A batch that is popped again,
because its lease has ended, replaces the lease of what is held; a message that was handled meanwhile is only
acknowledged again. Used on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from rucola.client.process_queue import DeliveryQueue
from rucola.common.lite_topics import lite_queue_topic
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue


class LiteReceipt(NamedTuple):
    """What requests about a batch must repeat. Times in ms.

    Attributes:
        revive_qid: always 999.
    """

    pop_time: int
    invisible_time: int
    revive_qid: int

    def text(self, broker_name: str, lite_offset: int) -> str:
        """The receipt handle of one message of the batch (``pop_receipt``)."""
        return f"0 {self.pop_time} {self.invisible_time} {self.revive_qid} 0 {broker_name} 0 {lite_offset}"


class LiteRoom:
    """The room that messages of all lite topics take in the consumer's memory.

    Args:
        messages_max: pops pause while there are as many messages as this, or more.
        bytes_max: pops pause while they take as many bytes as this, or more.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max, self._bytes_max = messages_max, bytes_max
        self._messages = self._bytes = 0
        self._freed = asyncio.Event()

    @property
    def left(self) -> int:
        """How many further messages may be popped."""
        return 0 if self._bytes >= self._bytes_max else max(self._messages_max - self._messages, 0)

    def take(self, messages: int, size_bytes: int) -> None:
        """Notes that messages were popped; negative numbers if they are held no more."""
        self._messages += messages
        self._bytes += size_bytes
        if messages < 0:
            self._freed.set()

    async def wait(self) -> None:
        """Waits until there is room."""
        while not self.left:
            self._freed.clear()
            await self._freed.wait()


class LiteSettlement(Protocol):
    """What a queue reports, so that its messages are acknowledged or returned."""

    def finished(self, queue: LiteProcessQueue, lite_offset: int) -> None:
        """The application has handled a message."""

    def returned(self, queue: LiteProcessQueue, lite_offset: int) -> None:
        """The queue is left: the message, and those behind it, go back to the group."""

    def emptied(self, queue: LiteProcessQueue) -> None:
        """The queue holds nothing any more, because its lease has ended."""


class LiteProcessQueue(DeliveryQueue):
    """The held messages of one lite topic at one broker.

    Args:
        parent: the parent topic.
        lite_topic: the lite topic.
        broker_name: the broker.
        receipt: the lease of the first batch.
        room: the room that the messages take.
        settlement: acknowledges and returns messages.

    Attributes:
        given: the message that the application has.
        unacked: offsets of handled messages whose acknowledgement runs (True) or has failed (False).
        is_left: whether the lite topic was unsubscribed, taken over, or the consumer ends: nothing more is given.
        is_expired: whether the lease has ended: nothing is given before the batch comes again.
        visible_at: the event loop's time at which the lease ends.
        renew_at: the event loop's time at which the lease is to be renewed.
        renew_until: the event loop's time after which the lease is not renewed.
        renewals_failed: number of renewals since the last one that succeeded.
    """

    in_order = True

    def __init__(
        self,
        parent: str,
        lite_topic: str,
        broker_name: str,
        receipt: LiteReceipt,
        room: LiteRoom,
        settlement: LiteSettlement,
    ) -> None:
        super().__init__(MessageQueue(lite_queue_topic(parent, lite_topic), broker_name, 0), 0.0)
        self.lite_topic, self.broker_name = lite_topic, broker_name
        self.receipt = receipt
        self.given: MessageExt | None = None
        self.unacked: dict[int, bool] = {}
        self.is_left = self.is_expired = False
        self.visible_at = self.renew_at = self.renew_until = 0.0
        self.renewals_failed = 0
        self._room = room
        self._settlement = settlement

    def __contains__(self, message: MessageExt) -> bool:
        return self._held.get(self.offset_of(message)) is message

    def offset_of(self, message: MessageExt) -> int:
        """The offset of a held message in the lite topic."""
        return message.lite_offset or 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held, and nothing is to be acknowledged."""
        return not self._held and not self.unacked

    @property
    def last_offset(self) -> int | None:
        """The highest offset that is held; None if nothing is."""
        return max(self._held, default=None)

    def renew(self, receipt: LiteReceipt, now: float, invisible_ms: int) -> None:
        """Notes a lease that began at the event loop's time ``now``."""
        self.receipt, self.renewals_failed, self.is_expired = receipt, 0, False
        self.visible_at = now + invisible_ms / 1000
        self.renew_at = now + invisible_ms / 2000

    def expire(self) -> None:
        """Notes that the lease has ended. What the application has may still be acknowledged."""
        self.is_expired = True
        self.clear()
        self._return_rest()

    def put(self, messages: Sequence[MessageExt]) -> None:
        """Adds a batch that was popped. What is held and not in the batch, because the group has moved on without it,
        is forgotten, unless the application has it.
        """
        batch = {self.offset_of(message): message for message in messages}
        for offset in [one for one, held in self._held.items() if one not in batch and held is not self.given]:
            self._forget(offset)
        for offset, message in batch.items():
            held = self._held.get(offset)
            if held is not None:
                held.reconsume_times = max(held.reconsume_times, message.reconsume_times)
            elif offset not in self.unacked:
                self._held[offset] = message
                self._room.take(1, message.store_size)
        self.fetched.clear()
        self.fetched.extend(self._held[offset] for offset in sorted(self._held) if self._held[offset] is not self.given)

    def handled(self, messages: Iterable[MessageExt]) -> list[int]:
        """The offsets of messages that the application has handled already, and whose acknowledgement has failed."""
        return [offset for offset in map(self.offset_of, messages) if self.unacked.get(offset) is False]

    @property
    def can_give(self) -> bool:
        """See ``DeliveryQueue``."""
        return bool(self.fetched) and self.given is None and not self.is_left

    def give(self, count: int) -> list[MessageExt]:
        """See ``DeliveryQueue``; gives one message."""
        self.given = self.fetched.popleft()
        return [self.given]

    def finish_one(self, message: MessageExt) -> None:
        """See ``DeliveryQueue``; the message is acknowledged."""
        if self.given is not message:
            return
        self.given = None
        offset = self.offset_of(message)
        self._forget(offset)
        self.consumed += 1
        self.unacked[offset] = True
        self._settlement.finished(self, offset)
        self._return_rest()

    def finish(self, messages: Sequence[MessageExt]) -> None:
        """See ``DeliveryQueue``."""
        for message in messages:
            self.finish_one(message)

    def give_back(self, messages: Sequence[MessageExt]) -> None:
        """See ``DeliveryQueue``; if the queue is left or its lease has ended, the message goes back to the group."""
        (message,) = messages
        if self.given is message:
            self.given = None
            self.fetched.appendleft(message)
            self._return_rest()

    def rejoin(self) -> None:
        """Gives messages again, after the lite topic was left and subscribed anew."""
        self.is_left = False

    def leave(self) -> None:
        """Gives nothing more. What the application does not have goes back to the group, at once or, because the
        broker takes a batch back as a whole, after the message that the application has.
        """
        self.is_left = True
        self._return_rest()

    def drop(self) -> None:
        """Forgets all messages; results for them are ignored."""
        super().drop()
        self.given, self.is_left = None, True
        self.clear()

    def clear(self) -> None:
        """Forgets all messages that the application does not have."""
        self.fetched.clear()
        for offset in [one for one, held in self._held.items() if held is not self.given]:
            self._forget(offset)

    def _return_rest(self) -> None:
        if self.given is not None or not (self.is_left or self.is_expired):
            return
        first = min(self._held, default=None)
        self.clear()
        if first is not None and not self.is_expired:
            self._settlement.returned(self, first)
        self._settlement.emptied(self)

    def _forget(self, offset: int) -> None:
        message = self._held.pop(offset, None)
        if message is not None:
            self._room.take(-1, -message.store_size)
