"""Passes the messages of each queue to the listener in order, one call after another; calls for different queues run
concurrently.

With message model CLUSTERING, only one consumer of the group consumes a queue at a time: the consumer to which the
queue's broker gave a lock. The broker keeps the lock for 60 s; the consumer confirms it every 20 s and relies on it for
30 s. Without a confirmation for 30 s, the consumer stops calling the listener. When the consumer may have lost the
lock, it drops the queue without changing the group's offset; when it gets the lock again, it starts from that offset.

Each queue has one task, which takes messages and calls the listener. A failed batch is passed to the listener again
after a pause, before any later message. After ``maxReconsumeTimes`` repetitions, the messages of the batch become dead
letters, and the task continues. Nothing that a listener raises ends the task (``application_call``); if somebody else
cancels it, it starts again after a second, and its messages come again. Everything runs on one event loop, except
listeners that are plain functions: these run in threads.

Source: RocketMQ 5.3.3, ``ConsumeMessageOrderlyService``, ``RebalancePushImpl``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from rucola.client.application_call import FailedCall
from rucola.client.client_tasks import ClientTasks
from rucola.client.consume_concurrently import log_failure
from rucola.client.consumer_config import PushConsumerConfig
from rucola.client.listener import (
    GOOD,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    Listener,
    Meaning,
    ReconsumeLater,
)
from rucola.client.listener_calls import CallSlot, ListenerCalls
from rucola.client.process_queue import OrderlyProcessQueue, ProcessQueue
from rucola.common.message import MessageExt
from rucola.protocol.bodies.heartbeat import MessageModel

logger = logging.getLogger(__name__)

UNLOCK_WAIT_S = 0.5
"""How long one call of ``ConsumeOrderly.remove`` waits for a running listener, in seconds."""
UNLOCK_ANYWAY_S = 20.0
"""Largest number of seconds by which a running listener may delay the unlocking of its queue."""
SUSPEND_MIN_MS, SUSPEND_MAX_MS = 10, 30_000
_LOCK_POLL_S = 0.1
_TURN = 64

DeadLetter = Callable[[MessageExt], Awaitable[bool]]
"""Sends a message to the dead-letter queue; returns False on failure."""
Progress = Callable[[ProcessQueue, int], None]
"""Records the consumer offset of a queue."""


class ConsumeOrderly:
    """Consumption by an orderly push consumer.

    Args:
        listener: receives the messages.
        config: settings of the consumer.
        dead_letter: see ``DeadLetter``.
        progress: see ``Progress``.

    Attributes:
        calls: the calls of the listener.
    """

    def __init__(
        self, listener: Listener, config: PushConsumerConfig, dead_letter: DeadLetter, progress: Progress
    ) -> None:
        self.calls = ListenerCalls(listener, config.consume_thread_max)
        self._listener = listener
        self._config = config
        self._dead_letter = dead_letter
        self._progress = progress
        self._locks = config.message_model is MessageModel.CLUSTERING
        self._batch = config.consume_message_batch_max_size if listener.batch else 1
        self.queue_type: type[ProcessQueue] = OrderlyProcessQueue
        self._slots = asyncio.Semaphore(config.consume_thread_max)
        self._lines: dict[OrderlyProcessQueue, _Line] = {}
        self._tasks = ClientTasks()
        self._stopping = False

    def start(self) -> None:
        """Starts to consume."""
        self.calls.start()

    def add(self, process_queue: ProcessQueue) -> None:
        """Adds a queue."""
        assert isinstance(process_queue, OrderlyProcessQueue)
        line = self._lines[process_queue] = _Line(self.calls)
        self._tasks.forever("queue of an orderly consumer", partial(self._consume_queue, process_queue, line))

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Adds messages that were pulled into ``queue``."""
        assert isinstance(process_queue, OrderlyProcessQueue)
        line = self._lines.get(process_queue)
        if line is not None:
            line.arrived.set()

    def locked(self) -> None:
        """Called when locks were confirmed; the queues' tasks look for this themselves."""

    async def remove(self, process_queue: ProcessQueue) -> bool:
        """Removes a dropped queue, unless the listener is still processing messages of the queue. If the first call of
        ``remove`` for the queue was at least 20 s ago, removes the queue in any case.

        Returns: Whether the queue was removed.
        """
        assert isinstance(process_queue, OrderlyProcessQueue)
        line = self._lines.get(process_queue)
        if line is None:
            return True
        loop = asyncio.get_running_loop()
        dropped_at = line.drop(loop.time())
        if not await line.has_ended(UNLOCK_WAIT_S) and loop.time() - dropped_at < UNLOCK_ANYWAY_S:
            process_queue.try_unlock_times += 1
            return False
        self._lines.pop(process_queue, None)
        return True

    def take_no_more(self) -> None:
        """Begins no further call of the listener; ``stop`` follows."""
        self._stopping = self.calls.stopping = True

    async def stop(self, timeout_s: float) -> None:
        """Stops taking messages, and waits for running listener calls. After ``timeout_s``, cancels the calls that are
        coroutines.
        """
        self.take_no_more()
        for line in self._lines.values():
            line.arrived.set()
            if line.pause is not None:
                line.pause.cancel()
        await self._tasks.stop(timeout_s)
        self._lines.clear()
        self.calls.stop()

    def is_inside_call(self) -> bool:
        """Whether the code that asks runs inside a call of the listener."""
        return self.calls.is_inside()

    async def consume_directly(self, message: MessageExt, context: ConsumeOrderlyContext) -> Meaning:
        """Calls the listener with one message, without any effect on offsets; returns the meaning of its result."""
        return await self.calls.call_directly(message, context)

    async def _consume_queue(self, process_queue: OrderlyProcessQueue, line: _Line) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        turn = 0
        while not process_queue.dropped and not self._stopping:
            if task is not None and task.cancelling():
                raise asyncio.CancelledError  # the listener has swallowed it
            if not process_queue.fetched:
                line.arrived.clear()
                await line.arrived.wait()
                continue
            if self._locks and not process_queue.is_locked(loop.time()):
                await line.rest(_LOCK_POLL_S)
                continue
            pause_ms = -1
            async with self._slots:
                if (
                    not process_queue.dropped
                    and not self._stopping
                    and (not self._locks or process_queue.is_locked(loop.time()))
                ):
                    pause_ms = await self._consume(process_queue, line)
            turn += 1
            if pause_ms >= 0 and not self._stopping:
                await line.rest(pause_ms / 1000)
            elif not turn % _TURN:
                await asyncio.sleep(0)
        line.ended.set()

    async def _consume(self, process_queue: OrderlyProcessQueue, line: _Line) -> int:
        """Calls the listener with a batch; returns for how many ms the queue must pause, or -1 for no pause."""
        messages = process_queue.give(self._batch)
        context = ConsumeOrderlyContext(process_queue.message_queue)
        try:
            meaning = self._listener.meaning(await self.calls.call(line, messages, context))
            status = self._status(process_queue, messages, meaning)
            if context.auto_commit and status is not ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT:
                status = ConsumeOrderlyStatus.COMMIT
            return await self._settle(process_queue, messages, context, status)
        except BaseException:
            # The task was cancelled, or this code has a defect: the messages were not handled, and must stay in order.
            if not process_queue.dropped and process_queue.consuming[-len(messages) :] == messages:
                process_queue.give_back(messages)
            raise

    def _status(
        self, process_queue: OrderlyProcessQueue, messages: list[MessageExt], meaning: Meaning
    ) -> ConsumeOrderlyStatus:
        if isinstance(meaning, ConsumeOrderlyStatus):
            return meaning
        if isinstance(meaning, FailedCall):
            if not isinstance(meaning.error, ReconsumeLater):
                log_failure(meaning.error, process_queue, messages)
        elif meaning in GOOD:
            return ConsumeOrderlyStatus.SUCCESS
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    async def _settle(
        self,
        process_queue: OrderlyProcessQueue,
        messages: list[MessageExt],
        context: ConsumeOrderlyContext,
        status: ConsumeOrderlyStatus,
    ) -> int:
        if process_queue.dropped:
            return -1  # the queue's new consumer gets these messages again
        if status is ConsumeOrderlyStatus.SUCCESS:
            return -1  # only a later COMMIT commits these messages
        if status is ConsumeOrderlyStatus.COMMIT:
            self._commit(process_queue)
            return -1
        process_queue.failed += len(messages)
        if status is ConsumeOrderlyStatus.ROLLBACK:
            process_queue.roll_back()
        elif await self._must_come_again(messages):
            process_queue.give_back(messages)
        else:
            if context.auto_commit and not process_queue.dropped:
                self._commit(process_queue)
            return -1
        wanted_ms = context.suspend_current_queue_time_ms
        if wanted_ms < 0:
            wanted_ms = self._config.suspend_current_queue_time_ms
        return min(max(wanted_ms, SUSPEND_MIN_MS), SUSPEND_MAX_MS)

    def _commit(self, process_queue: OrderlyProcessQueue) -> None:
        offset = process_queue.commit()
        if offset is not None:
            self._progress(process_queue, offset)

    async def _must_come_again(self, messages: list[MessageExt]) -> bool:
        """Counts the failure, or sends the messages as dead letters; returns whether any must be consumed again."""
        times_max = self._config.max_reconsume_times
        again = False
        for message in messages:
            if times_max < 0 or message.reconsume_times < times_max or not await self._dead_letter(message):
                message.reconsume_times += 1
                again = True
        return again


class _Line(CallSlot):
    """The state of the task that consumes one queue.

    Attributes:
        arrived: set when messages were pulled, or when the queue was dropped.
        ended: set when the task is done with the dropped queue.
        pause: the pause that runs.
    """

    __slots__ = ("_dropped_at", "arrived", "ended", "pause")

    def __init__(self, calls: ListenerCalls) -> None:
        super().__init__(calls)
        self.arrived = asyncio.Event()
        self.ended = asyncio.Event()
        self.pause: asyncio.Future[None] | None = None
        self._dropped_at: float | None = None

    def drop(self, now: float) -> float:
        """Tells the task that the queue was dropped; returns when this was first called."""
        self.arrived.set()
        if self._dropped_at is None:
            self._dropped_at = now
        return self._dropped_at

    async def has_ended(self, timeout_s: float) -> bool:
        """Waits until the task is done with the queue; returns False after ``timeout_s`` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.ended.wait()
        except TimeoutError:
            return False
        return True

    async def rest(self, seconds: float) -> None:
        """Sleeps; ``pause.cancel()`` ends the sleep early."""
        self.pause = asyncio.ensure_future(asyncio.sleep(seconds))
        await asyncio.wait([self.pause])
        self.pause = None
