"""Calls the listener with messages of all queues; up to ``consumeThreadMax`` calls run at the same time.

Messages wait in one list in memory. Each worker makes one call at a time and takes messages from the front of the list.
A worker that finds further messages in the list wakes one other worker. So no message waits for a slow call while a
worker is idle, and a fast listener keeps only one worker busy. Each worker is one task; messages have no tasks of their
own. If the listener is a coroutine function, the worker's task awaits it. If the listener is a plain function, a thread
takes messages from the list and calls the listener, until the list is empty or a few milliseconds have passed. The
worker's task waits for the thread and then handles the results.

Nothing that a listener raises ends a worker (``application_call``). A worker whose task somebody else cancels starts
again after a second; its message was not handled, and goes to the listener again.

A call that takes longer than ``consumeTimeout`` holds back the consumer offset, so its message goes back to the broker.
The call itself goes on, and its result is ignored. A plain function that never returns occupies its thread, until it is
cut off at the end of the process (``daemon_threads``).

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
from functools import partial
from typing import cast, final

from rucola.client.application_call import FailedCall, is_failed_call
from rucola.client.client_tasks import ClientTasks
from rucola.client.consumer_config import PushConsumerConfig
from rucola.client.listener import (
    GOOD,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    Listener,
    Meaning,
    ReconsumeLater,
    completed,
    is_pending,
    let_go,
)
from rucola.client.listener_calls import CALL, CallSlot, ListenerCalls
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
_EXPIRY_CHECK_S = 60.0

SendBack = Callable[[MessageExt, int], Awaitable[bool]]
"""Sends a message back to the broker with a delay level; returns False on failure."""
Request = tuple[ProcessQueue, list[MessageExt]]
_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
_Outcome = tuple[Request, object, ConsumeConcurrentlyContext]


class ConsumeConcurrently:
    """Passes the messages of a concurrent push consumer to its listener.

    Args:
        listener: receives the messages.
        config: settings of the consumer.
        send_back: see ``SendBack``.
        clock: measures how long a thread has been taking messages.

    Attributes:
        calls: the calls of the listener.
    """

    def __init__(self, listener: Listener, config: PushConsumerConfig, send_back: SendBack, clock: Clock) -> None:
        self.calls = ListenerCalls(listener, config.consume_thread_max)
        self._listener = listener
        self._config = config
        self._send_back = send_back
        self._clock = clock
        self._batch = config.consume_message_batch_max_size if listener.batch else 1
        self.queue_type: type[ProcessQueue] = ProcessQueue
        self._ready: deque[Request] = deque()
        self._idle: deque[_Worker] = deque()
        self._workers = [_Worker(self.calls) for _ in range(config.consume_thread_max)]
        self._tasks = ClientTasks()
        self._expiry = ClientTasks()
        self._later: set[asyncio.TimerHandle] = set()
        self._turn_ends = 0.0
        self._turn_over = False
        self._called: _Worker | None = None
        """The worker that was woken but has not run yet, if any."""
        self._stopping = False

    def start(self) -> None:
        """Starts to consume."""
        self.calls.start()
        work = self._work if self._listener.on_loop else self._work_in_thread
        for worker in self._workers:
            self._tasks.forever("worker of a listener", partial(work, worker))
        interval_s = min(self._config.consume_timeout_min * 60, _EXPIRY_CHECK_S)
        self._expiry.periodic("expiry of slow listeners", self._expire, interval_s)

    def add(self, process_queue: ProcessQueue) -> None:
        """Adds a queue."""

    def submit(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Adds messages from ``queue`` to the messages that wait for the listener."""
        size = self._batch
        if size == 1:
            self._ready.extend([(process_queue, [message]) for message in messages])
        else:
            self._ready.extend([(process_queue, messages[at : at + size]) for at in range(0, len(messages), size)])
        self._wake()

    def locked(self) -> None:
        """Called when locks were confirmed; concurrent queues have none."""

    async def remove(self, process_queue: ProcessQueue) -> bool:
        """Called after ``queue`` was dropped; returns True. The results of listener calls that still process messages
        of the queue will be ignored.
        """
        return True

    def take_no_more(self) -> None:
        """Begins no further call of the listener; ``stop`` follows."""
        self._stopping = self.calls.stopping = True
        self._ready.clear()
        for handle in self._later:
            handle.cancel()
        self._later.clear()

    async def stop(self, timeout_s: float) -> None:
        """Stops taking messages, and waits for running listener calls. After ``timeout_s``, cancels the calls that are
        coroutines.
        """
        self.take_no_more()
        await self._expiry.stop()
        for worker in self._idle:
            worker.wake()
        await self._tasks.stop(timeout_s)
        self.calls.stop()

    def is_inside_call(self) -> bool:
        """Whether the code that asks runs inside a call of the listener."""
        return self.calls.is_inside()

    async def consume_directly(self, message: MessageExt, context: ConsumeConcurrentlyContext) -> Meaning:
        """Calls the listener with one message, without any effect on offsets; returns the meaning of its result."""
        return await self.calls.call_directly(message, context)

    def _wake(self) -> None:
        """Wakes an idle worker, unless another worker was woken and has not run yet."""
        if self._called is None and self._idle:
            self._called = self._idle.pop()
            self._called.wake()

    async def _sleep(self, worker: _Worker) -> None:
        """Waits until the worker is woken."""
        woken = worker.sleep()
        self._idle.append(worker)
        try:
            await woken
        except asyncio.CancelledError:
            if worker in self._idle:
                self._idle.remove(worker)
            raise
        finally:
            if self._called is worker:
                self._called = None
                if worker.is_cancelled():
                    self._wake()  # instead of this worker

    async def _work(self, worker: _Worker) -> None:
        """Runs a worker whose listener is a coroutine function."""
        loop = asyncio.get_running_loop()
        cancelling = worker.begin().cancelling
        ready, function, batch = self._ready, self._listener.function, self._listener.batch
        while not self._stopping:
            if cancelling():
                raise asyncio.CancelledError  # the listener has swallowed it
            if not ready:
                await self._sleep(worker)
                if not self._turn_over:
                    self._turn_ends = loop.time() + TURN_S
                continue
            now = loop.time()
            if now >= self._turn_ends:
                await self._next_turn()
                continue
            request = process_queue, messages = ready.popleft()
            if process_queue.dropped:
                continue
            if ready and self._called is None and self._idle:
                self._wake()
            context = ConsumeConcurrentlyContext(process_queue.message_queue) if batch else None
            worker.request, worker.since = request, now
            try:
                outcome = await (function(messages.copy(), context) if batch else function(messages[0]))
                if outcome is not None and outcome is not _SUCCESS and is_pending(outcome):
                    outcome = await completed(outcome)
            except BaseException as error:
                if not is_failed_call(error, worker.task, stopping=self._stopping):
                    self._not_handled(worker, request)
                    raise
                outcome = FailedCall(error)
            worker.request = None
            if (outcome is None or outcome is _SUCCESS) and context is None and not process_queue.dropped:
                process_queue.remove(messages)
            else:
                await self._settle(worker, request, outcome, context)

    async def _next_turn(self) -> None:
        """Lets other tasks run, after listeners have occupied the event loop for a turn."""
        if not self._turn_over:
            self._turn_over = True
            asyncio.get_running_loop().call_soon(self._new_turn)
        await asyncio.sleep(0)

    def _new_turn(self) -> None:
        self._turn_over = False
        self._turn_ends = asyncio.get_running_loop().time() + TURN_S

    async def _work_in_thread(self, worker: _Worker) -> None:
        """Runs a worker whose listener is a plain function."""
        loop = asyncio.get_running_loop()
        cancelling = worker.begin().cancelling
        while not self._stopping:
            if cancelling():
                raise asyncio.CancelledError  # an awaitable that the listener returned has swallowed it
            if not self._ready:
                await self._sleep(worker)
                continue
            if len(self._ready) > 1 and self._idle:
                self._wake()
            drained = loop.run_in_executor(self.calls.threads, self._drain, worker, loop.time())
            try:
                outcomes = await asyncio.shield(drained)
            except asyncio.CancelledError:
                # The thread goes on and takes further messages.
                self._tasks.once("results of a listener", self._settle_when_drained(worker, drained))
                raise
            await self._settle_all(worker, outcomes)

    async def _settle_when_drained(self, worker: _Worker, drained: asyncio.Future[list[_Outcome]]) -> None:
        await self._settle_all(worker, await drained)

    def _drain(self, worker: _Worker, now: float) -> list[_Outcome]:
        """Runs in a thread: calls the listener until no message waits or a few milliseconds have passed."""
        outcomes: list[_Outcome] = []
        began = self._clock.monotonic()
        while not self._stopping:
            try:
                request = process_queue, messages = self._ready.popleft()
            except IndexError:
                break
            if process_queue.dropped:
                continue
            context = ConsumeConcurrentlyContext(process_queue.message_queue)
            elapsed = self._clock.monotonic() - began
            worker.request, worker.since = request, now + elapsed
            CALL.set(request)
            try:
                outcome = self._listener.call(messages, context)
                if outcome is not None and outcome is not _SUCCESS and is_pending(outcome):
                    outcomes.append((request, _Pending(outcome), context))
                    break  # the worker waits for it, and must not keep further results waiting
            except BaseException as error:  # noqa: BLE001 - whatever a thread's function raises is a failed call
                outcome = FailedCall(error)
            outcomes.append((request, outcome, context))
            worker.request = None
            if self._clock.monotonic() - began >= _THREAD_TURN_S:
                break
        return outcomes

    async def _settle_all(self, worker: _Worker, outcomes: list[_Outcome]) -> None:
        """Handles the results of a thread; only the last one may be pending."""
        for position, (request, outcome, context) in enumerate(outcomes):
            queue, messages = request
            if (outcome is None or outcome is _SUCCESS) and context.ack_index is None and not queue.dropped:
                queue.remove(messages)
                continue
            try:
                if type(outcome) is _Pending:
                    CALL.set(request)
                    outcome = await self._completed(worker, outcome.work)  # noqa: PLW2901
                await self._settle(worker, request, outcome, context)
            except BaseException:
                for left, unused, _ in outcomes[position:]:
                    if type(unused) is _Pending:
                        let_go(unused.work)
                    self._not_handled(worker, left)
                raise

    async def _completed(self, worker: _Worker, outcome: object) -> object:
        """Waits for the awaitable that a plain function has returned."""
        task = asyncio.current_task()
        try:
            return await completed(outcome)
        except BaseException as error:
            if not is_failed_call(error, task, stopping=self._stopping):
                raise
            return FailedCall(error)
        finally:
            worker.request = None

    def _not_handled(self, worker: _Worker, request: Request) -> None:
        """Returns messages to the listener whose call was left by an exception that is not the listener's."""
        worker.request = None
        if worker.is_cancelled():  # otherwise Python closes the coroutine, or Ctrl-C ends the loop
            self._call_later(*request)

    async def _settle(
        self, worker: _Worker, request: Request, outcome: object, context: ConsumeConcurrentlyContext | None
    ) -> None:
        """Handles the listener's result; a defect in this code must neither lose a message nor end a worker."""
        task = asyncio.current_task()
        try:
            await self._act(request, outcome, context)
        except BaseException as error:
            if not is_failed_call(error, task, stopping=self._stopping):
                self._not_handled(worker, request)
                raise
            process_queue, messages = request
            about = {"queue": process_queue.message_queue, "count": len(messages)}
            event(logger, logging.ERROR, "listener's result not handled", error, **about)
            self._call_later(process_queue, messages)

    async def _act(self, request: Request, outcome: object, context: ConsumeConcurrentlyContext | None) -> None:
        process_queue, messages = request
        if process_queue.dropped:
            event(
                logger,
                logging.INFO,
                "result of consumption ignored, queue was dropped meanwhile",
                queue=process_queue.message_queue,
            )
            return
        meaning = self._listener.meaning(outcome)
        failed = messages
        delay_level = context.delay_level_when_next_consume if context is not None else 0
        if isinstance(meaning, FailedCall):
            if isinstance(meaning.error, ReconsumeLater):
                delay_level = meaning.error.delay_level
            else:
                log_failure(meaning.error, process_queue, messages)
        elif meaning in GOOD:
            ack_index = context.ack_index if context is not None else None
            failed = [] if ack_index is None else messages[ack_index + 1 :]
        process_queue.failed += len(failed)
        kept = await self._give_back(process_queue, failed, delay_level) if failed else []
        if kept is None:
            return
        process_queue.remove([message for message in messages if message not in kept] if kept else messages)
        if kept:
            self._call_later(process_queue, kept)

    async def _give_back(
        self, process_queue: ProcessQueue, failed: list[MessageExt], delay_level: int
    ) -> list[MessageExt] | None:
        """Sends messages back; returns those that could not be sent, or None if the queue was dropped meanwhile."""
        if self._config.message_model is MessageModel.BROADCASTING:
            event(
                logger,
                logging.WARNING,
                "messages failed and are dropped",
                queue=process_queue.message_queue,
                count=len(failed),
            )
            return []
        kept = []
        for message in failed:
            # If a message is no longer in the queue, its listener call took too long, and ``_expire`` has sent it back.
            if message in process_queue and not await self._send_back(message, delay_level):
                message.reconsume_times += 1
                kept.append(message)
            if process_queue.dropped:
                return None  # the queue's new consumer gets the other messages again
        return kept

    def _call_later(self, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
        """Passes messages to the listener again after a pause, unless they were sent back meanwhile."""

        def submit() -> None:
            self._later.discard(handle)
            held = [message for message in messages if message in process_queue]
            if held and not process_queue.dropped:
                self.submit(process_queue, held)

        if not self._stopping:
            handle = asyncio.get_running_loop().call_later(RETRY_HERE_S, submit)
            self._later.add(handle)

    async def _expire(self) -> None:
        """Sends back messages whose listener call takes too long, because they hold back the consumer offset."""
        loop = asyncio.get_running_loop()
        for worker in self._workers:
            request = worker.request
            if request is None or loop.time() - worker.since <= self._config.consume_timeout_min * 60:
                continue
            process_queue, messages = request
            if process_queue.dropped:
                continue
            event(
                logger,
                logging.WARNING,
                "listener takes too long",
                queue=process_queue.message_queue,
                count=len(messages),
            )
            if self._config.message_model is MessageModel.CLUSTERING:
                await self._expire_messages(worker, request)

    async def _expire_messages(self, worker: _Worker, request: Request) -> None:
        queue, messages = request
        for message in messages:
            # While one message is sent back, the call may end, or the queue may be dropped.
            if worker.request is request and not queue.dropped and message in queue:
                sent = await self._send_back(message, EXPIRED_DELAY_LEVEL)
                if sent and not queue.dropped:
                    queue.remove([message])


@final
class _Pending:
    """The result of a plain function that stands for work under way. It is told apart once, where the function was
    called, because the result itself is an object of the application.

    Args:
        work: the result.
    """

    __slots__ = ("work",)

    def __init__(self, work: object) -> None:
        self.work = work


class _Worker(CallSlot):
    """A worker, which runs one listener call at a time.

    Attributes:
        request: the messages of the running call, with their queue.
        since: the event loop's time at which the call began.
        task: the worker's task.
    """

    __slots__ = ("_woken", "since", "task")

    request: Request | None

    def __init__(self, calls: ListenerCalls) -> None:
        super().__init__(calls)
        self.since = 0.0
        self.task: asyncio.Task[None] | None = None
        self._woken: asyncio.Future[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Called by the worker's task when it starts; returns the task."""
        CALL.set(self)  # not per message, which would make an empty listener 20 % slower
        self.task = cast("asyncio.Task[None]", asyncio.current_task())
        return self.task

    def sleep(self) -> asyncio.Future[None]:
        """Returns a future that ``wake`` completes."""
        self._woken = asyncio.get_running_loop().create_future()
        return self._woken

    def wake(self) -> None:
        """Wakes the worker."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def is_cancelled(self) -> bool:
        """Whether the worker's task must end."""
        return self.task is not None and self.task.cancelling() > 0


def log_failure(error: BaseException, process_queue: ProcessQueue, messages: list[MessageExt]) -> None:
    """Logs that a listener's call has failed."""
    count, ids = len(messages), ", ".join(message.msg_id for message in messages[:3])
    first = messages[0]
    about = {"topic": first.topic, "queue": process_queue.message_queue, "attempt": first.reconsume_times + 1}
    event(logger, logging.WARNING, "listener failed", error, **about, count=count, ids=ids)
