"""The leases of the batches that a lite consumer holds: acknowledgements, renewals, suspensions, returns.

A broker counts a batch as in flight as long as one of its unacknowledged messages is hidden. So a renewal hides only
the last message of a batch, however many there are. An acknowledgement that fails is repeated until the lease ends.
Then the batch comes again, and a message that was handled is acknowledged again without another call of the
application. A suspension makes the whole batch visible after a time, and costs no attempt.

No lite topic has a task or a timer: ``DueTimes`` has the times at which leases must be looked at. Everything runs on
one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine

from rucola.client.lite_process_queue import LiteProcessQueue, LiteReceipt
from rucola.client.lite_requests import LiteRequests
from rucola.client.pop_service import is_final
from rucola.errors import RucolaError
from rucola.remoting.name_server_api import TIMEOUT_MS
from rucola.runtime.due_times import DueTimes
from rucola.runtime.logs import Recurring, event

logger = logging.getLogger(__name__)

RETURN_MS = 50
"""After this time, the group gets messages again that are returned; brokers refuse no shorter one, but clients do."""
_PAUSE_S, _PAUSE_MAX_S = 1.0, 30.0
"""Pause after the first failed request in seconds, doubled after each further one; longest pause."""


class ClientLiteLeases:
    """The leases of a consumer.

    Args:
        requests: sends the requests.
        invisible_ms: how long a renewal hides a batch, in ms.
        renew_max_ms: for how long a lease is renewed, in ms.
        is_claimed: whether messages that nobody has been given will be given soon.
        forget: called with a queue that holds nothing any more.
    """

    def __init__(
        self,
        requests: LiteRequests,
        invisible_ms: int,
        renew_max_ms: int,
        is_claimed: Callable[[], bool],
        forget: Callable[[LiteProcessQueue], None],
    ) -> None:
        self._requests = requests
        self._invisible_ms = invisible_ms
        self._renew_max_s = renew_max_ms / 1000
        self._is_claimed, self._forget = is_claimed, forget
        self._failures = Recurring()
        self._due: DueTimes[LiteProcessQueue, float] = DueTimes()
        """When leases must be looked at."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    def begin(self, queue: LiteProcessQueue, receipt: LiteReceipt) -> None:
        """Looks after the lease of a batch that was popped just now."""
        now = asyncio.get_running_loop().time()
        queue.renew(receipt, now, self._invisible_ms)
        queue.renew_until = now + self._renew_max_s
        self._push(queue, queue.renew_at)

    def finished(self, queue: LiteProcessQueue, lite_offset: int) -> None:
        """Acknowledges a message that was handled."""
        self._keep(self._ack(queue, lite_offset))

    def acknowledge_again(self, queue: LiteProcessQueue, lite_offset: int) -> None:
        """Acknowledges a message that was popped again, although it was handled."""
        queue.unacked[lite_offset] = True
        self._keep(self._ack(queue, lite_offset))

    def emptied(self, queue: LiteProcessQueue) -> None:
        """Forgets a queue that holds nothing, unless a message of it is still to be acknowledged."""
        if queue.is_idle:
            self._forget(queue)

    def returned(self, queue: LiteProcessQueue, lite_offset: int) -> None:
        """Returns a message, and those behind it, to the group."""
        self._keep(self._return(queue, lite_offset))

    async def suspend(self, queue: LiteProcessQueue, lite_offset: int, milliseconds: int) -> None:
        """Makes the batch come again after a time, without costing an attempt; the queue is dropped before.

        A cancelled call goes on in the background.

        Raises:
            BrokerError, RemotingError, ClientError: the request failed: the batch comes again when its lease ends.
        """
        task = self._keep(self._suspend(queue, lite_offset, milliseconds))
        await asyncio.wait((task,))
        task.result()

    async def stop(self) -> None:
        """Ends the renewals; waits for the requests that run. None of them is repeated any more."""
        self._stopping.set()
        if self._timer is not None:
            self._timer.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._due.clear()

    async def _ack(self, queue: LiteProcessQueue, lite_offset: int) -> None:
        """Acknowledges a message until this succeeds or is of no use any more. A broker answers success and does
        nothing if the batch was popped again meanwhile.
        """
        pause_s = _PAUSE_S
        while True:
            pop_time = queue.receipt.pop_time
            try:
                await self._requests.ack(queue, lite_offset)
            except RucolaError as error:
                left_s = queue.visible_at - asyncio.get_running_loop().time()
                if is_final(error) or left_s <= 0 or self._stopping.is_set():
                    self._not_acked(queue, lite_offset, error)
                    return
                await self._pause(min(pause_s, left_s))
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            else:
                if queue.receipt.pop_time == pop_time:
                    break
        queue.unacked.pop(lite_offset, None)
        self._failures.end(queue.broker_name)
        self.emptied(queue)

    def _not_acked(self, queue: LiteProcessQueue, lite_offset: int, error: RucolaError) -> None:
        if lite_offset in queue.unacked:
            queue.unacked[lite_offset] = False
        count = self._failures.note(queue.broker_name, error)
        if count:
            about = {"lite_topic": queue.lite_topic, "offset": lite_offset, "count": count}
            event(logger, logging.WARNING, "message not acknowledged, it will come again", error=error, **about)
        if queue not in self._due:
            self._push(queue, queue.visible_at)

    async def _return(self, queue: LiteProcessQueue, lite_offset: int) -> None:
        try:
            await self._requests.hide(queue, lite_offset, RETURN_MS, suspend=True)
        except RucolaError as error:
            about = {"lite_topic": queue.lite_topic, "offset": lite_offset}
            event(logger, logging.INFO, "messages not returned, they come again later", error=error, **about)

    async def _suspend(self, queue: LiteProcessQueue, lite_offset: int, milliseconds: int) -> None:
        await self._requests.hide(queue, lite_offset, milliseconds, suspend=True)

    async def _renew(self, queue: LiteProcessQueue, lite_offset: int) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        queue.renewals_failed += 1
        pop_time, invisible_ms = queue.receipt.pop_time, self._invisible_ms
        timeout_ms = max(min(TIMEOUT_MS, int((queue.visible_at - began) * 1000)), 1)
        try:
            receipt = await self._requests.hide(queue, lite_offset, invisible_ms, suspend=False, timeout_ms=timeout_ms)
            if queue.receipt.pop_time == pop_time:
                queue.renew(receipt, began, invisible_ms)
                self._failures.end(queue.broker_name)
        except RucolaError as error:
            count = self._failures.note(queue.broker_name, error)
            if count:
                about = {"lite_topic": queue.lite_topic, "count": count}
                event(logger, logging.WARNING, "invisible time not extended", error=error, **about)
        finally:
            if not queue.dropped and queue not in self._due:
                pause_s: float = min(_PAUSE_S * 2 ** max(queue.renewals_failed - 1, 0), _PAUSE_MAX_S)
                failed_due = min(loop.time() + pause_s, queue.visible_at)
                self._push(queue, failed_due if queue.renewals_failed else queue.renew_at)

    def _push(self, queue: LiteProcessQueue, due: float) -> None:
        self._due.set(queue, due)
        self._set_timer()

    def _set_timer(self) -> None:
        due = self._due.next_due()
        if due is not None and not self._stopping.is_set() and due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = asyncio.get_running_loop().call_at(due, self._attend_due)

    def _attend_due(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = asyncio.get_running_loop().time()
        while (queue := self._due.take(now)) is not None:
            self._attend(queue, now)
        self._set_timer()

    def _attend(self, queue: LiteProcessQueue, now: float) -> None:
        """Renews or ends a lease."""
        last = queue.last_offset
        if queue.dropped:
            return
        if last is None:
            # Until then, a batch whose acknowledgement has failed has come again, or it will not.
            end = queue.visible_at + self._invisible_ms / 1000
            if now < end or any(queue.unacked.values()):
                self._push(queue, max(now + _PAUSE_S, end))
            else:
                queue.unacked.clear()
                self._forget(queue)
        elif now >= queue.visible_at:
            event(logger, logging.INFO, "lease expired", lite_topic=queue.lite_topic, broker=queue.broker_name)
            queue.expire()
        elif now < queue.renew_until and (queue.given is not None or queue.is_paused or self._is_claimed()):
            self._keep(self._renew(queue, last))
        else:
            self._push(queue, queue.visible_at)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _keep(self, request: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Runs a request in the background."""
        task = asyncio.ensure_future(request)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RucolaError):  # the caller of ``suspend`` is told of these
            event(logger, logging.ERROR, "request about a lite topic failed", error)
