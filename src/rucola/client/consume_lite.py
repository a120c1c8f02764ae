"""Calls the listener of a lite consumer: the messages of one lite topic one after the other, those of different lite
topics at the same time.

The lite topics that have a message to give wait in a line. Up to ``consumeThreadMax`` workers take them from there;
a worker is a task that lives as long as the line is not empty. A message that failed goes to the listener again after
a pause, before later messages of its lite topic; meanwhile, its lease is renewed. After ``maxReconsumeTimes`` retries
it becomes a dead letter. Nothing that a listener raises ends a worker (``application_call``). Everything runs on one
event loop, except listeners that are plain functions: these run in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from rucola.client.application_call import FailedCall
from rucola.client.client_tasks import ClientTasks
from rucola.client.consume_concurrently import TURN_S, log_failure
from rucola.client.consumer_config import LiteConsumerConfig
from rucola.client.listener import GOOD, ConsumeResultSuspend, Listener, ReconsumeLater
from rucola.client.listener_calls import CallSlot, ListenerCalls
from rucola.client.lite_process_queue import LiteProcessQueue
from rucola.common.message import MessageExt

logger = logging.getLogger(__name__)

TIMES_MAX = 16
"""Number of retries if none is configured."""
_PAUSE_MAX_S = 60.0
"""Longest pause before a retry, in seconds."""
_LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""RocketMQ's delay levels, in seconds."""

DeadLetter = Callable[[MessageExt], Awaitable[bool]]
"""Makes a message a dead letter; returns False on failure."""
Suspend = Callable[[LiteProcessQueue, MessageExt, int], Awaitable[None]]
"""Makes the batch of a message come again after some ms."""


class ConsumeLite:
    """Passes messages to the listener.

    Args:
        listener: receives the messages.
        config: settings of the consumer.
        dead_letter: see ``DeadLetter``.
        suspend: see ``Suspend``.
    """

    def __init__(
        self, listener: Listener, config: LiteConsumerConfig, dead_letter: DeadLetter, suspend: Suspend
    ) -> None:
        self._calls = ListenerCalls(listener, config.consume_thread_max)
        self._listener = listener
        self._workers_max = config.consume_thread_max
        self._times_max = config.max_reconsume_times if config.max_reconsume_times >= 0 else TIMES_MAX
        self._pause_s = config.retry_delay_ms / 1000
        self._dead_letter, self._suspend = dead_letter, suspend
        self._line: deque[LiteProcessQueue] = deque()
        self._workers = 0
        self._tasks = ClientTasks()
        self._pauses: set[asyncio.TimerHandle] = set()
        self._stopping = False

    def start(self) -> None:
        """Starts to consume."""
        self._calls.start()

    def offer(self, queue: LiteProcessQueue) -> None:
        """Adds a queue that may have a message to give."""
        if queue.can_give and not queue.in_line and not queue.is_paused and not self._stopping:
            queue.in_line = True
            self._line.append(queue)
            self._begin_work()

    def take_no_more(self) -> None:
        """Begins no further call of the listener; ``stop`` follows."""
        self._stopping = self._calls.stopping = True
        self._line.clear()
        for pause in self._pauses:
            pause.cancel()
        self._pauses.clear()

    async def stop(self, timeout_s: float) -> None:
        """Waits for running listener calls. After ``timeout_s``, cancels the calls that are coroutines."""
        self.take_no_more()
        await self._tasks.stop(timeout_s)
        self._calls.stop()

    def is_inside_call(self) -> bool:
        """Whether the code that asks runs inside a call of the listener."""
        return self._calls.is_inside()

    def _begin_work(self) -> None:
        if self._line and self._workers < self._workers_max:
            self._workers += 1
            self._tasks.once("worker of a listener", self._work())

    async def _work(self) -> None:
        """Takes queues from the line until it is empty."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        slot = CallSlot(self._calls)
        turn_ends = loop.time() + TURN_S
        try:
            while self._line and not self._stopping:
                if task is not None and task.cancelling():
                    raise asyncio.CancelledError  # the listener has swallowed it
                if loop.time() >= turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = loop.time() + TURN_S
                    continue
                queue = self._line.popleft()
                queue.in_line = False
                if queue.can_give:
                    (message,) = queue.give(1)
                    await self._consume(slot, queue, message)
        finally:
            self._workers -= 1
            if not self._stopping:
                self._begin_work()

    async def _consume(self, slot: CallSlot, queue: LiteProcessQueue, message: MessageExt) -> None:
        try:
            await self._settle(queue, message, await self._calls.call(slot, [message], None))
        except BaseException:
            # The task was cancelled, or this code has a defect: the message was not handled.
            self._come_again(queue, message, self._pause_s)
            raise

    async def _settle(self, queue: LiteProcessQueue, message: MessageExt, result: object) -> None:
        delay_level = 0
        if type(result) is ConsumeResultSuspend:
            await self._suspend(queue, message, result.milliseconds)
            return
        meaning = self._listener.meaning(result)
        if isinstance(meaning, FailedCall):
            if isinstance(meaning.error, ReconsumeLater):
                delay_level = meaning.error.delay_level
            else:
                log_failure(meaning.error, queue, [message])
        elif meaning in GOOD:
            self._finish(queue, message)
            return
        queue.failed += 1
        is_last = delay_level < 0 or message.reconsume_times >= self._times_max
        if is_last and not queue.is_left and await self._dead_letter(message):
            self._finish(queue, message)
            return
        if delay_level > 0:
            pause_s: float = _LEVELS_S[min(delay_level, len(_LEVELS_S)) - 1]
        else:
            pause_s = min(self._pause_s * 2 ** min(message.reconsume_times, TIMES_MAX), _PAUSE_MAX_S)
        if not is_last:
            message.reconsume_times += 1
        self._come_again(queue, message, pause_s)

    def _finish(self, queue: LiteProcessQueue, message: MessageExt) -> None:
        queue.finish_one(message)
        self.offer(queue)

    def _come_again(self, queue: LiteProcessQueue, message: MessageExt, pause_s: float) -> None:
        """Passes a message to the listener again after a pause."""
        if queue.given is not message:
            return
        queue.give_back([message])
        if self._stopping or not queue.can_give:
            return

        def resume() -> None:
            self._pauses.discard(handle)
            queue.is_paused = False
            self.offer(queue)

        queue.is_paused = True
        handle = asyncio.get_running_loop().call_later(pause_s, resume)
        self._pauses.add(handle)
