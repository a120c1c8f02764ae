"""Calls the listener with messages of all queues; up to ``consumeThreadMax`` calls run at the same time.

Messages wait in one list in memory. Each worker makes one call at a time and takes messages from the front of the list.
A worker that finds further messages in the list wakes one other worker. So no message waits for a slow call while a
worker is idle, and a fast listener keeps only one worker busy. Each worker is one task; messages have no tasks of their
own. If the listener is a coroutine function, the worker's task awaits it. If the listener is a plain function, a thread
takes messages from the list and calls the listener, until the list is empty or a few milliseconds have passed. The
worker's task waits for the thread and then handles the results.

Failed messages go back to the broker, which delivers them again later through the group's retry topic. Messages that
cannot be sent back stay in memory and go to the listener again. Everything runs on one event loop, except ``_drain``
and listeners that are plain functions: these run in threads.

Source: RocketMQ 5.3.3, ``ConsumeMessageConcurrentlyService``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from rucola.client.consumer_config import PushConsumerConfig
from rucola.client.listener import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, Listener, ReconsumeLater
from rucola.client.process_queue import ProcessQueue
from rucola.common.message import MessageExt
from rucola.protocol.bodies.heartbeat import MessageModel
from rucola.runtime.clock import Clock
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

RETRY_HERE_S = 5.0
"""If a message cannot be sent back to the broker, the listener gets it again after this number of seconds."""
EXPIRED_DELAY_LEVEL = 3
TURN_S = 0.005
"""How long listeners that never await may occupy the event loop, in seconds."""
_THREAD_TURN_S = 0.005
"""After this number of seconds, a thread takes no further messages and reports its results."""

SendBack = Callable[[MessageExt, int], Awaitable[bool]]
"""Sends a message back to the broker with a delay level; returns False on failure."""
Request = tuple[ProcessQueue, list[MessageExt]]


class ConsumeConcurrently:
    """Passes the messages of a concurrent push consumer to its listener.

    Args:
        listener: receives the messages.
        config: settings of the consumer.
        send_back: see ``SendBack``.
        clock: measures how long a thread has been taking messages.
    """

    def __init__(self, listener: Listener, config: PushConsumerConfig, send_back: SendBack, clock: Clock) -> None:
        self._listener = listener
        self._config = config
        self._send_back = send_back
        self._clock = clock
        self._batch = config.consume_message_batch_max_size if listener.batch else 1
        self.queue_type: type[ProcessQueue] = ProcessQueue
        self._ready: deque[Request] = deque()
        self._idle: deque[_Worker] = deque()
        self._workers: list[_Worker] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._later: set[asyncio.TimerHandle] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._turn_ends = 0.0
        self._turn_over = False
        self._called: _Worker | None = None
        """The worker that was woken but has not run yet, if any."""
        self._stopping = False

    def start(self) -> None:
        """Starts to consume."""
        count = self._config.consume_thread_max
        if not self._listener.on_loop:
            self._threads = ThreadPoolExecutor(count, "rucola-consume")
        self._workers = [_Worker() for _ in range(count)]
        work = self._work if self._listener.on_loop else self._work_in_thread
        self._tasks = [asyncio.ensure_future(work(worker)) for worker in self._workers]
        self._tasks.append(asyncio.ensure_future(self._expire()))

    def add(self, queue: ProcessQueue) -> None:
        """Adds a queue."""

    def submit(self, queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Adds messages from ``queue`` to the messages that wait for the listener."""
        size = self._batch
        if size == 1:
            self._ready.extend([(queue, [message]) for message in messages])
        else:
            self._ready.extend([(queue, messages[at : at + size]) for at in range(0, len(messages), size)])
        self._wake()

    def locked(self) -> None:
        """Called when locks were confirmed; concurrent queues have none."""

    async def remove(self, queue: ProcessQueue) -> bool:
        """Called after ``queue`` was dropped; returns True. The results of listener calls that still process messages
        of the queue will be ignored.
        """
        return True

    async def stop(self, timeout_s: float) -> None:
        """Stops taking messages, and waits for running listener calls. After ``timeout_s``, cancels the calls that are
        coroutines.
        """
        self._stopping = True
        self._ready.clear()
        for handle in self._later:
            handle.cancel()
        tasks, self._tasks = self._tasks, []
        if tasks:
            tasks.pop().cancel()
            idle = [task for task, worker in zip(tasks, self._workers, strict=True) if worker in self._idle]
            for task in idle:
                task.cancel()
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def consume_directly(self, message: MessageExt, context: ConsumeConcurrentlyContext) -> object:
        """Calls the listener with one message and returns its result, without any effect on offsets."""
        if self._listener.on_loop:
            return await self._listener.answer([message], context)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._listener.call, [message], context)

    def _wake(self) -> None:
        """Wakes an idle worker, unless another worker was woken and has not run yet."""
        if self._called is None and self._idle:
            worker = self._called = self._idle.pop()
            assert worker.wakeup is not None
            worker.wakeup.set_result(None)

    async def _sleep(self, worker: _Worker) -> None:
        worker.wakeup = asyncio.get_running_loop().create_future()
        self._idle.append(worker)
        await worker.wakeup
        self._called = None

    async def _work(self, worker: _Worker) -> None:
        """Runs a worker whose listener is a coroutine function."""
        loop = asyncio.get_running_loop()
        ready, function, batch = self._ready, self._listener.function, self._listener.batch
        while not self._stopping:
            if not ready:
                await self._sleep(worker)
                if not self._turn_over:
                    self._turn_ends = loop.time() + TURN_S
                continue
            now = loop.time()
            if now >= self._turn_ends:
                if not self._turn_over:
                    self._turn_over = True
                    loop.call_soon(self._new_turn)
                await asyncio.sleep(0)
                continue
            request = queue, messages = ready.popleft()
            if queue.dropped:
                continue
            if ready and self._called is None and self._idle:
                self._wake()
            context = ConsumeConcurrentlyContext(queue.queue) if batch else None
            worker.request, worker.since = request, now
            try:
                outcome = await (function(messages, context) if batch else function(messages[0]))
            except asyncio.CancelledError as error:
                if self._stopping:
                    raise
                outcome = error  # something that the listener awaited was cancelled
            except Exception as error:  # noqa: BLE001  # the application's; _settle logs it
                outcome = error
            worker.request = None
            if outcome is None and context is None and not queue.dropped:
                queue.remove(messages)
            else:
                await self._settle(request, outcome, context)

    def _new_turn(self) -> None:
        self._turn_over = False
        self._turn_ends = asyncio.get_running_loop().time() + TURN_S

    async def _work_in_thread(self, worker: _Worker) -> None:
        """Runs a worker whose listener is a plain function."""
        loop = asyncio.get_running_loop()
        while not self._stopping:
            if not self._ready:
                await self._sleep(worker)
                continue
            if len(self._ready) > 1 and self._idle:
                self._wake()
            for request, outcome, context in await loop.run_in_executor(
                self._threads, self._drain, worker, loop.time()
            ):
                await self._settle(request, outcome, context)

    def _drain(self, worker: _Worker, now: float) -> list[tuple[Request, object, ConsumeConcurrentlyContext]]:
        """Runs in a thread: calls the listener until no message waits or a few milliseconds have passed."""
        outcomes: list[tuple[Request, object, ConsumeConcurrentlyContext]] = []
        began = self._clock.monotonic()
        while not self._stopping:
            try:
                request = queue, messages = self._ready.popleft()
            except IndexError:
                break
            if queue.dropped:
                continue
            context = ConsumeConcurrentlyContext(queue.queue)
            elapsed = self._clock.monotonic() - began
            worker.request, worker.since = request, now + elapsed
            try:
                outcome = self._listener.call(messages, context)
            except Exception as error:  # noqa: BLE001  # the application's; _settle logs it
                outcome = error
            worker.request = None
            outcomes.append((request, outcome, context))
            if self._clock.monotonic() - began >= _THREAD_TURN_S:
                break
        return outcomes

    async def _settle(self, request: Request, outcome: object, context: ConsumeConcurrentlyContext | None) -> None:
        """Handles the listener's result; a defect in this code must neither lose a message nor end a worker."""
        try:
            await self._act(request, outcome, context)
        except Exception as error:  # noqa: BLE001 - see above
            queue, messages = request
            about = {"queue": queue.queue, "count": len(messages)}
            event(logger, logging.ERROR, "listener's result not handled", error, **about)
            self._call_later(queue, [message for message in messages if message in queue])

    async def _act(self, request: Request, outcome: object, context: ConsumeConcurrentlyContext | None) -> None:
        queue, messages = request
        if queue.dropped:
            event(logger, logging.INFO, "result of consumption ignored, queue was dropped meanwhile", queue=queue.queue)
            return
        failed = messages
        delay_level = context.delay_level_when_next_consume if context is not None else 0
        if outcome is None or outcome is ConsumeConcurrentlyStatus.CONSUME_SUCCESS:
            ack_index = context.ack_index if context is not None else None
            failed = [] if ack_index is None else messages[max(ack_index + 1, 0) :]
        elif isinstance(outcome, ReconsumeLater):
            delay_level = outcome.delay_level
        elif outcome is not ConsumeConcurrentlyStatus.RECONSUME_LATER:
            log_failure(outcome, queue, messages)
        queue.failed += len(failed)
        kept = await self._give_back(queue, failed, delay_level) if failed else []
        queue.remove([message for message in messages if message not in kept] if kept else messages)
        if kept:
            self._call_later(queue, kept)

    async def _give_back(self, queue: ProcessQueue, failed: list[MessageExt], delay_level: int) -> list[MessageExt]:
        """Sends messages back; returns those that could not be sent."""
        if self._config.message_model is MessageModel.BROADCASTING:
            event(logger, logging.WARNING, "messages failed and are dropped", queue=queue.queue, count=len(failed))
            return []
        kept = []
        for message in failed:
            # If a message is no longer in the queue, its listener call took too long, and ``_expire`` has sent it back.
            if message in queue and not await self._send_back(message, delay_level):
                message.reconsume_times += 1
                kept.append(message)
        return kept

    def _call_later(self, queue: ProcessQueue, messages: list[MessageExt]) -> None:
        def submit() -> None:
            self._later.discard(handle)
            self.submit(queue, messages)

        handle = asyncio.get_running_loop().call_later(RETRY_HERE_S, submit)
        self._later.add(handle)

    async def _expire(self) -> None:
        """Sends back messages whose listener call takes too long, because they hold back the consumer offset."""
        loop = asyncio.get_running_loop()
        timeout_s = self._config.consume_timeout_min * 60
        while True:
            await asyncio.sleep(min(timeout_s, 60))
            for worker in self._workers:
                request = worker.request
                if request is None or loop.time() - worker.since <= timeout_s:
                    continue
                queue, messages = request
                event(logger, logging.WARNING, "listener takes too long", queue=queue.queue, count=len(messages))
                held = [message for message in messages if message in queue]
                if self._config.message_model is MessageModel.CLUSTERING and not queue.dropped:
                    queue.remove([message for message in held if await self._send_back(message, EXPIRED_DELAY_LEVEL)])


class _Worker:
    """A worker, which runs one listener call at a time."""

    __slots__ = ("request", "since", "wakeup")

    def __init__(self) -> None:
        self.request: Request | None = None
        self.since = 0.0
        self.wakeup: asyncio.Future[None] | None = None


def log_failure(outcome: object, queue: ProcessQueue, messages: list[MessageExt]) -> None:
    """Logs that a listener raised an exception, or returned something that is not a status."""
    count, ids = len(messages), ", ".join(message.msg_id for message in messages[:3])
    if isinstance(outcome, BaseException):
        event(logger, logging.WARNING, "listener failed", outcome, queue=queue.queue, count=count, ids=ids)
    else:
        fields = {"queue": queue.queue, "count": count, "ids": ids, "result": repr(outcome)}
        event(logger, logging.ERROR, "listener's result is not a status", **fields)
