"""Passes the messages of each queue to the listener in order, one call after another; calls for different queues run
concurrently.

With message model CLUSTERING, only one consumer of the group consumes a queue at a time: the consumer to which the
queue's broker gave a lock. The broker keeps the lock for 60 s; the consumer confirms it every 20 s and relies on it for
30 s. Without a confirmation for 30 s, the consumer stops calling the listener. When the consumer may have lost the
lock, it drops the queue without changing the group's offset; when it gets the lock again, it starts from that offset.

Each queue has one task, which takes messages and calls the listener. A failed batch is passed to the listener again
after a pause, before any later message. After ``maxReconsumeTimes`` repetitions, the messages of the batch become dead
letters, and the task continues. Everything runs on one event loop, except listeners that are plain functions: these run
in threads.

Source: RocketMQ 5.3.3, ``ConsumeMessageOrderlyService``, ``RebalancePushImpl``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from rucola.client.consume_concurrently import log_failure
from rucola.client.consumer_config import PushConsumerConfig
from rucola.client.listener import ConsumeOrderlyContext, ConsumeOrderlyStatus, Listener, ReconsumeLater
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
    """

    def __init__(
        self, listener: Listener, config: PushConsumerConfig, dead_letter: DeadLetter, progress: Progress
    ) -> None:
        self._listener = listener
        self._config = config
        self._dead_letter = dead_letter
        self._progress = progress
        self._locks = config.message_model is MessageModel.CLUSTERING
        self._batch = config.consume_message_batch_max_size if listener.batch else 1
        self.queue_type: type[ProcessQueue] = OrderlyProcessQueue
        self._slots = asyncio.Semaphore(config.consume_thread_max)
        self._lines: dict[OrderlyProcessQueue, _Line] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._stopping = False

    def start(self) -> None:
        """Starts to consume."""
        if not self._listener.on_loop:
            self._threads = ThreadPoolExecutor(self._config.consume_thread_max, "rucola-consume")

    def add(self, queue: ProcessQueue) -> None:
        """Adds a queue."""
        assert isinstance(queue, OrderlyProcessQueue)
        line = self._lines[queue] = _Line()
        line.task = asyncio.ensure_future(self._consume_queue(queue, line))

    def submit(self, queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Adds messages that were pulled into ``queue``."""
        assert isinstance(queue, OrderlyProcessQueue)
        line = self._lines.get(queue)
        if line is not None:
            line.arrived.set()

    def locked(self) -> None:
        """Called when locks were confirmed; the queues' tasks look for this themselves."""

    async def remove(self, queue: ProcessQueue) -> bool:
        """Removes a dropped queue, unless the listener is still processing messages of the queue. If the first call of
        ``remove`` for the queue was at least 20 s ago, removes the queue in any case.

        Returns: Whether the queue was removed.
        """
        assert isinstance(queue, OrderlyProcessQueue)
        line = self._lines.get(queue)
        if line is None or line.task is None:
            return True
        line.arrived.set()
        if line.dropped_at is None:
            line.dropped_at = asyncio.get_running_loop().time()
        done, _ = await asyncio.wait([line.task], timeout=UNLOCK_WAIT_S)
        if not done and asyncio.get_running_loop().time() - line.dropped_at < UNLOCK_ANYWAY_S:
            queue.try_unlock_times += 1
            return False
        self._lines.pop(queue, None)
        return True

    async def stop(self, timeout_s: float) -> None:
        """Stops taking messages, and waits for running listener calls. After ``timeout_s``, cancels the calls that are
        coroutines.
        """
        self._stopping = True
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        for line in self._lines.values():
            line.arrived.set()
            if line.pause is not None:
                line.pause.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lines.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def consume_directly(self, message: MessageExt, context: ConsumeOrderlyContext) -> object:
        """Calls the listener with one message and returns its result, without any effect on offsets."""
        return await self._call([message], context)

    async def _consume_queue(self, queue: OrderlyProcessQueue, line: _Line) -> None:
        loop = asyncio.get_running_loop()
        turn = 0
        while not queue.dropped and not self._stopping:
            if not queue.fetched:
                line.arrived.clear()
                await line.arrived.wait()
                continue
            if self._locks and not queue.is_locked(loop.time()):
                await line.rest(_LOCK_POLL_S)
                continue
            pause_ms = -1
            async with self._slots:
                if not queue.dropped and not self._stopping and (not self._locks or queue.is_locked(loop.time())):
                    pause_ms = await self._consume(queue)
            turn += 1
            if pause_ms >= 0 and not self._stopping:
                await line.rest(pause_ms / 1000)
            elif not turn % _TURN:
                await asyncio.sleep(0)

    async def _consume(self, queue: OrderlyProcessQueue) -> int:
        """Calls the listener with a batch; returns for how many ms the queue must pause, or -1 for no pause."""
        messages = queue.give(self._batch)
        context = ConsumeOrderlyContext(queue.queue)
        status = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        try:
            answer = await self._call(messages, context)
        except ReconsumeLater:
            pass
        except asyncio.CancelledError as error:
            if self._stopping:
                raise
            log_failure(error, queue, messages)
        except Exception as error:  # noqa: BLE001  # the application's
            log_failure(error, queue, messages)
        else:
            if answer is None:
                status = ConsumeOrderlyStatus.SUCCESS
            elif isinstance(answer, ConsumeOrderlyStatus):
                status = answer
            else:
                log_failure(answer, queue, messages)
        if context.auto_commit and status is not ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT:
            status = ConsumeOrderlyStatus.COMMIT
        return await self._settle(queue, messages, context, status)

    async def _settle(
        self,
        queue: OrderlyProcessQueue,
        messages: list[MessageExt],
        context: ConsumeOrderlyContext,
        status: ConsumeOrderlyStatus,
    ) -> int:
        if queue.dropped:
            return -1  # the queue's new consumer gets these messages again
        if status is ConsumeOrderlyStatus.SUCCESS:
            return -1  # only a later COMMIT commits these messages
        if status is ConsumeOrderlyStatus.COMMIT:
            self._commit(queue)
            return -1
        queue.failed += len(messages)
        if status is ConsumeOrderlyStatus.ROLLBACK:
            queue.roll_back()
        elif await self._must_come_again(messages):
            queue.give_back(messages)
        else:
            if context.auto_commit and not queue.dropped:
                self._commit(queue)
            return -1
        wanted_ms = context.suspend_current_queue_time_ms
        if wanted_ms < 0:
            wanted_ms = self._config.suspend_current_queue_time_ms
        return min(max(wanted_ms, SUSPEND_MIN_MS), SUSPEND_MAX_MS)

    def _commit(self, queue: OrderlyProcessQueue) -> None:
        offset = queue.commit()
        if offset is not None:
            self._progress(queue, offset)

    async def _must_come_again(self, messages: list[MessageExt]) -> bool:
        """Counts the failure, or sends the messages as dead letters; returns whether any must be consumed again."""
        times_max = self._config.max_reconsume_times
        again = False
        for message in messages:
            if times_max < 0 or message.reconsume_times < times_max or not await self._dead_letter(message):
                message.reconsume_times += 1
                again = True
        return again

    async def _call(self, messages: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        if self._listener.on_loop:
            return await self._listener.answer(messages, context)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._listener.call, messages, context)


class _Line:
    """The state of the task that consumes one queue."""

    __slots__ = ("arrived", "dropped_at", "pause", "task")

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.pause: asyncio.Future[None] | None = None
        self.dropped_at: float | None = None

    async def rest(self, seconds: float) -> None:
        """Sleeps; ``pause.cancel()`` ends the sleep early."""
        self.pause = asyncio.ensure_future(asyncio.sleep(seconds))
        await asyncio.wait([self.pause])
        self.pause = None
