"""Passes messages to ``async for`` loops, without a listener and workers; each iteration of a loop gets one message.

A message counts as consumed when its loop requests the next one; see ``message_iterator`` for how a loop may be left.
Several loops over one consumer share the messages. An orderly queue yields its next message only after the previous one
is consumed. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rucola.client.consume_orderly import UNLOCK_ANYWAY_S, UNLOCK_WAIT_S, Progress
from rucola.client.consumer_config import PushConsumerConfig
from rucola.client.deliveries import Deliveries
from rucola.client.process_queue import DeliveryQueue, OrderlyProcessQueue, ProcessQueue
from rucola.common.message import MessageExt
from rucola.protocol.bodies.heartbeat import MessageModel


class ConsumeByIteration:
    """Consumption by a push consumer without a listener.

    Args:
        config: settings of the consumer.
        progress: records the consumer offset of an orderly queue.
        given: called with the messages that are passed to a loop, to trace them.

    Attributes:
        deliveries: gives the messages to the loops.
    """

    def __init__(
        self,
        config: PushConsumerConfig,
        progress: Progress,
        given: Callable[[Sequence[MessageExt]], None] | None = None,
    ) -> None:
        self.queue_type: type[ProcessQueue] = OrderlyProcessQueue if config.consume_orderly else DeliveryQueue
        locks = config.consume_orderly and config.message_model is MessageModel.CLUSTERING
        self._progress = progress
        self._dropped_at: dict[ProcessQueue, float] = {}
        self.deliveries = Deliveries(self._is_locked if locks else None, given)

    def start(self) -> None:
        """Starts to consume."""

    def add(self, process_queue: ProcessQueue) -> None:
        """Adds a queue."""
        if isinstance(process_queue, OrderlyProcessQueue):
            process_queue.report_to(self._progress)

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Adds messages that were pulled into ``queue``."""
        assert isinstance(process_queue, DeliveryQueue)
        self.deliveries.offer(process_queue, len(messages))

    def locked(self) -> None:
        """Called when locks were confirmed: messages that waited for this may be given."""
        self.deliveries.wake_all()

    async def remove(self, process_queue: ProcessQueue) -> bool:
        """Removes a dropped queue. An orderly queue is kept while a loop handles a message of it, at most for 20 s
        after the first call, because another consumer must not get the queue's lock before.

        Returns: Whether the queue was removed.
        """
        if isinstance(process_queue, OrderlyProcessQueue) and self.deliveries.has_given(process_queue):
            now = asyncio.get_running_loop().time()
            since = self._dropped_at.setdefault(process_queue, now)
            await self.deliveries.settled(UNLOCK_WAIT_S)
            if self.deliveries.has_given(process_queue) and now - since < UNLOCK_ANYWAY_S:
                process_queue.try_unlock_times += 1
                return False
        self._dropped_at.pop(process_queue, None)
        return True

    async def stop(self, timeout_s: float) -> None:
        """Waits for the bodies of the loops, at most ``timeout_s`` seconds; the message of a body that has not ended by
        then does not count as consumed.
        """
        self.deliveries.end()
        await self.deliveries.bodies(timeout_s)

    def take_no_more(self) -> None:
        """Called before ``stop``; the deliveries have been ended already."""

    def is_inside_call(self) -> bool:
        """Whether the code that asks runs inside a call of the listener; there is none."""
        return False

    def _is_locked(self, process_queue: ProcessQueue) -> bool:
        return not isinstance(process_queue, OrderlyProcessQueue) or process_queue.is_locked(
            asyncio.get_running_loop().time()
        )
