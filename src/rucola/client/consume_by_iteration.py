"""Passes messages to ``async for`` loops, without a listener and workers; each iteration of a loop gets one message.

A message counts as consumed when its loop requests the next one. Several loops over one consumer share the messages. An
orderly queue yields its next message only after the previous one is consumed. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from rucola.client.calling_thread import CALLING_THREAD
from rucola.client.consume_orderly import Progress
from rucola.client.consumer_config import PushConsumerConfig
from rucola.client.process_queue import OrderlyProcessQueue, ProcessQueue
from rucola.common.message import MessageExt
from rucola.errors import ClientError
from rucola.protocol.bodies.heartbeat import MessageModel


class ConsumeByIteration:
    """Consumption by a push consumer without a listener.

    Args:
        config: settings of the consumer.
        progress: records the consumer offset of an orderly queue.
        given: called with the messages that are passed to a loop, to trace them.
    """

    def __init__(
        self,
        config: PushConsumerConfig,
        progress: Progress,
        given: Callable[[Sequence[MessageExt]], None] | None = None,
    ) -> None:
        self._given = given
        self._locks = config.message_model is MessageModel.CLUSTERING
        self._progress = progress
        self._ready: deque[tuple[ProcessQueue, MessageExt]] = deque()
        self._lines: deque[OrderlyProcessQueue] = deque()  # orderly queues from which no loop has a message
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._hands: set[MessageIterator] = set()
        self._stopped = False

    def start(self) -> None:
        """Starts to consume."""

    def add(self, queue: ProcessQueue) -> None:
        """Adds a queue."""

    def submit(self, queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Adds messages that were pulled into ``queue``."""
        if isinstance(queue, OrderlyProcessQueue):
            if queue not in self._lines and not queue.consuming:
                self._lines.append(queue)
        else:
            self._ready.extend([(queue, message) for message in messages])
        self._wake(len(messages))

    async def remove(self, queue: ProcessQueue) -> bool:
        """Called after ``queue`` was dropped; returns True. If a loop still processes a message of the queue, this
        message will not be marked as consumed.
        """
        return True

    async def stop(self, timeout_s: float) -> None:
        """Ends each loop when it requests its next message. The current messages do not count as consumed."""
        self._stopped = True
        self._ready.clear()
        self._lines.clear()
        self._wake(len(self._waiting))

    def settle_own(self) -> None:
        """Marks the current messages of the caller's loops as consumed.

        The caller is the current task or, in a blocking call, the thread that waits for the current task.
        """
        task, thread = asyncio.current_task(), CALLING_THREAD.get()
        for hand in list(self._hands):
            if hand.task is task or (thread is not None and hand.thread is thread):
                hand.settle()

    async def take(self, hand: MessageIterator) -> MessageExt:
        """Waits for the next message for ``hand``, the iterator of one loop.

        Raises:
            StopAsyncIteration: the consumer was shut down.
        """
        while not self._stopped:
            if self._take(hand):
                assert hand.message is not None
                self._hands.add(hand)
                if self._given is not None:
                    self._given([hand.message])
                if self._waiting and (self._ready or self._lines):
                    self._wake(1)
                return hand.message
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                if waiting.done() and not waiting.cancelled():
                    self._wake(1)  # this task was woken, but is cancelled: wake another task instead
                raise
        raise StopAsyncIteration

    def consumed(self, hand: MessageIterator) -> None:
        """Marks the current message of ``hand``, the iterator of one loop, as consumed."""
        self._hands.discard(hand)
        queue, message = hand.queue, hand.message
        if queue is None or message is None or queue.dropped:
            return
        if isinstance(queue, OrderlyProcessQueue):
            offset = queue.commit()
            if offset is not None:
                self._progress(queue, offset)
            if queue.has_waiting:
                self._lines.append(queue)
                self._wake(1)
        else:
            queue.remove([message])

    def _take(self, hand: MessageIterator) -> bool:
        while self._ready:
            hand.queue, hand.message = self._ready.popleft()
            if not hand.queue.dropped:
                return True
        now = asyncio.get_running_loop().time()
        for _ in range(len(self._lines)):
            queue = self._lines.popleft()
            if queue.dropped or not queue.has_waiting:
                continue
            if self._locks and not queue.is_locked(now):
                self._lines.append(queue)  # wait until the lock is confirmed or the queue is removed
                continue
            hand.queue, hand.message = queue, queue.take(1)[0]
            return True
        return False

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1


class MessageIterator:
    """One ``async for`` loop over a push consumer.

    Attributes:
        queue: the queue of ``message``.
        message: the current message of the loop.
        task: the task that requested ``message``.
        thread: the thread of a blocking loop; None for an asynchronous one.
    """

    def __init__(self, consumption: ConsumeByIteration | None) -> None:
        self._consumption = consumption
        self.queue: ProcessQueue | None = None
        self.message: MessageExt | None = None
        self.task: asyncio.Task[object] | None = None
        self.thread = CALLING_THREAD.get()

    def __aiter__(self) -> MessageIterator:
        return self

    async def __anext__(self) -> MessageExt:
        """Returns the next message; the previous one then counts as consumed.

        Raises:
            ClientError: the consumer has a listener, or is not started.
        """
        if self._consumption is None:
            raise ClientError("only a started push consumer without a listener can be iterated over")
        self.settle()
        self.task = asyncio.current_task()
        return await self._consumption.take(self)

    def settle(self) -> None:
        """Marks the current message as consumed."""
        if self._consumption is not None and self.message is not None:
            self._consumption.consumed(self)
            self.queue = self.message = None
