"""The leases of the messages that a simple consumer has given to the application.

A message's lease is the time for which the broker hides it from the group. Each request about a message needs the
message's newest receipt handle, and an acknowledgement or a change of the invisible time makes older handles worthless.
So the requests about one message go out one after the other. A request that failed leaves the lease as it was.

With renewal, a given message has a lease here until it is acknowledged, expires, or gets another invisible time from
the application. A message that the application no longer holds is not renewed. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import weakref
from collections.abc import Coroutine, Sequence
from typing import NamedTuple

from rucola.client.delivery import TRANSITIONS, DeliveryEvent, DeliveryState
from rucola.client.pop_receipt import PopReceipt
from rucola.client.pop_requests import PopRequests
from rucola.common import message_const
from rucola.common.message import MessageExt
from rucola.errors import ClientError, RucolaError
from rucola.remoting.name_server_api import TIMEOUT_MS
from rucola.runtime.due_times import DueTimes
from rucola.runtime.logs import Recurring, event

logger = logging.getLogger(__name__)

_PAUSE_S, _PAUSE_MAX_S = 1.0, 30.0
"""Pause after the first failed renewal in seconds, doubled after each further one; longest pause."""

LeaseKey = tuple[str, str, str, int, int, str]
"""Topic, kind of topic, broker name, queue id, queue offset, time of the first pop: these do not change with the
receipt handle, and a copy of the message has the same ones.
"""


class Lease:
    """The lease of one given message.

    Attributes:
        receipt: the newest receipt handle.
        state: where the message is.
        visible_at: the event loop's time at which the broker makes the message visible.
        invisible_ms: how long each renewal hides the message, in ms.
        renew_until: the event loop's time after which there are no more renewals.
        failures: number of renewals since the last one that succeeded.
    """

    __slots__ = (
        "failures",
        "invisible_ms",
        "key",
        "message",
        "receipt",
        "renew_until",
        "state",
        "visible_at",
    )

    def __init__(
        self,
        key: LeaseKey,
        message: MessageExt,
        receipt: PopReceipt,
        invisible_ms: int,
        visible_at: float,
        renew_until: float,
    ) -> None:
        self.key = key
        self.message = weakref.ref(message)
        self.receipt = receipt
        self.state = DeliveryState.GIVEN
        self.invisible_ms, self.visible_at, self.renew_until = invisible_ms, visible_at, renew_until
        self.failures = 0

    def enter(self, happened: DeliveryEvent) -> None:
        """Moves the message to its next state."""
        self.state = TRANSITIONS[self.state, happened]

    def renewed(self, receipt: PopReceipt, visible_at: float) -> None:
        """Notes that the broker has set a new invisible time."""
        self.receipt, self.visible_at, self.failures = receipt, visible_at, 0
        message = self.message()
        if message is not None:
            message.properties[message_const.POP_CK] = receipt.text


class LeaseChange(NamedTuple):
    """What a request about a message has changed.

    Attributes:
        receipt: the newest receipt handle.
        acked: whether the message is acknowledged.
        failure: the error of an acknowledgement that failed.
    """

    receipt: PopReceipt
    acked: bool = False
    failure: RucolaError | None = None


class Leases:
    """The leases of a consumer.

    Args:
        requests: sends the requests.
        renew_max_ms: for how long leases are renewed, in ms; None if they are not.

    Attributes:
        stopped: whether ``stop`` was called.
    """

    def __init__(self, requests: PopRequests, renew_max_ms: int | None) -> None:
        self._requests = requests
        self._renew_max_s = None if renew_max_ms is None else renew_max_ms / 1000
        self._leases: dict[LeaseKey, Lease] = {}
        self._running: dict[LeaseKey, asyncio.Future[LeaseChange] | None] = {}
        """The requests that run; each with the future for those who wait for its end, if anybody does."""
        self._failures = Recurring()
        """Renewals that failed, by broker."""
        self._due: DueTimes[LeaseKey, float] = DueTimes()
        """The event loop's time when each lease must be renewed or ended."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopped = False

    def __len__(self) -> int:
        return len(self._leases)

    def give(self, messages: Sequence[MessageExt], invisible_ms: int, visible_at: float) -> None:
        """Begins to renew the leases of messages that are given to the application, if leases are renewed.

        Args:
            messages: messages of one pop.
            invisible_ms: their invisible time.
            visible_at: the event loop's time at which it ends.
        """
        if self._renew_max_s is None or self.stopped:
            return
        renew_until = asyncio.get_running_loop().time() + self._renew_max_s
        for message in messages:
            receipt = PopReceipt.of(message)
            key = _key(message, receipt)
            earlier = self._leases.get(key)
            if earlier is not None:
                self._drop(earlier)
            lease = self._leases[key] = Lease(key, message, receipt, invisible_ms, visible_at, renew_until)
            self._due.set(key, _half(lease))
        self._set_timer()

    async def ack(self, message: MessageExt) -> None:
        """Acknowledges ``message``. A call while another one for the same message runs shares its outcome.

        A cancelled call goes on in the background, also if it waits for another request about the message.

        Raises:
            BrokerError, RemotingError, ClientError: the message was not acknowledged; its lease is as before.
        """
        receipt = PopReceipt.of(message)
        await self._finish(self._ack(_key(message, receipt), receipt))

    async def hide(self, message: MessageExt, invisible_ms: int) -> None:
        """Sets the invisible time of ``message``, counted from now. After a success, its lease is no longer renewed.

        A cancelled call goes on in the background, also if it waits for another request about the message.

        Raises:
            BrokerError, RemotingError: the request failed; the lease is as before, and still renewed.
            ClientError: the message was not received by a simple consumer, or was acknowledged meanwhile.
        """
        receipt = PopReceipt.of(message)
        await self._finish(self._hide(message, _key(message, receipt), receipt, invisible_ms))

    async def stop(self) -> None:
        """Ends the renewals; returns when all requests that run, and those that wait for them, have ended."""
        self.stopped = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            while self._running:
                await self._outcome(next(iter(self._running)))
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._leases.clear()
            self._due.clear()

    async def _outcome(self, key: LeaseKey) -> LeaseChange:
        """Waits for the end of the request about a message that runs."""
        ended = self._running[key]
        if ended is None:
            ended = self._running[key] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(ended)

    async def _ack(self, key: LeaseKey, receipt: PopReceipt) -> None:
        while key in self._running:
            outcome = await self._outcome(key)
            if outcome.acked:
                return
            if outcome.failure is not None:
                raise outcome.failure
            receipt = outcome.receipt
        receipt = self._begin(key, receipt)
        outcome = LeaseChange(receipt)
        try:
            await self._requests.ack(key[0], receipt)
            outcome = LeaseChange(receipt, acked=True)
        except RucolaError as error:
            outcome = LeaseChange(receipt, failure=error)
            raise
        finally:
            self._end(key, outcome)

    async def _hide(self, message: MessageExt, key: LeaseKey, receipt: PopReceipt, invisible_ms: int) -> None:
        while key in self._running:
            outcome = await self._outcome(key)
            if outcome.acked:
                raise ClientError(f"message {message.msg_id} was acknowledged meanwhile")
            receipt = outcome.receipt
        receipt = self._begin(key, receipt)
        try:
            receipt = await self._requests.hide(key[0], receipt, invisible_ms)
            message.properties[message_const.POP_CK] = receipt.text
            lease = self._leases.get(key)
            if lease is not None:
                lease.renewed(receipt, lease.visible_at)
                self._drop(lease)  # the application has set the time itself
        finally:
            self._end(key, LeaseChange(receipt))

    def _begin(self, key: LeaseKey, receipt: PopReceipt) -> PopReceipt:
        """Notes that a request about a message runs; returns the receipt handle for it."""
        self._running[key] = None
        lease = self._leases.get(key)
        return receipt if lease is None else lease.receipt

    async def _renew(self, lease: Lease) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        lease.failures += 1
        timeout_ms = max(min(TIMEOUT_MS, int((lease.visible_at - began) * 1000)), 1)
        try:
            receipt = await self._requests.hide(lease.key[0], lease.receipt, lease.invisible_ms, timeout_ms)
            lease.renewed(receipt, began + lease.invisible_ms / 1000)
            self._failures.end(lease.receipt.broker_name)
        except RucolaError as error:
            count = self._failures.note(lease.receipt.broker_name, error)
            if count:
                place = _place(lease)
                event(logger, logging.WARNING, "invisible time not extended", place=place, count=count, error=error)
        finally:
            if self._leases.get(lease.key) is lease:
                self._due.set(lease.key, _next_try(lease, loop.time()) if lease.failures else _half(lease))
                self._set_timer()
            self._end(lease.key, LeaseChange(lease.receipt))

    def _end(self, key: LeaseKey, outcome: LeaseChange) -> None:
        """Notes that the request about a message has ended."""
        lease = self._leases.get(key) if outcome.acked else None
        if lease is not None:
            lease.enter(DeliveryEvent.FINISH)
            self._drop(lease)
        ended = self._running.pop(key)
        if ended is not None:
            ended.set_result(outcome)

    def _drop(self, lease: Lease) -> None:
        """Forgets a lease."""
        if self._leases.get(lease.key) is lease:
            del self._leases[lease.key]
            self._due.drop(lease.key)

    def _set_timer(self) -> None:
        due = self._due.next_due()
        if due is not None and not self.stopped and due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = asyncio.get_running_loop().call_at(due, self._attend_due)

    def _attend_due(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = asyncio.get_running_loop().time()
        while (key := self._due.take(now)) is not None:
            self._attend(self._leases[key], now)
        self._set_timer()

    def _attend(self, lease: Lease, now: float) -> None:
        """Renews or ends a lease, unless a request about its message runs."""
        if lease.key in self._running:
            self._due.set(lease.key, now + _PAUSE_S)
        elif now >= lease.visible_at:
            lease.enter(DeliveryEvent.RETURN)
            self._drop(lease)
            event(logger, logging.INFO, "lease expired", place=_place(lease))
        elif now < lease.renew_until and lease.message() is not None:
            self._running[lease.key] = None
            self._keep(self._renew(lease))
        else:
            self._due.set(lease.key, lease.visible_at)

    async def _finish(self, request: Coroutine[None, None, None]) -> None:
        """Waits for the end of a request, which goes on if the caller is cancelled: the broker may have it already."""
        task = self._keep(request)
        # Unlike a shield, this does not make Python 3.14 report the error of a request whose caller was cancelled.
        await asyncio.wait((task,))
        task.result()

    def _keep(self, request: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Runs a request in the background."""
        task = asyncio.ensure_future(request)
        self._tasks.add(task)
        task.add_done_callback(self._request_ended)
        return task

    def _request_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, RucolaError):
            event(logger, logging.DEBUG, "request about a popped message failed", error=error)
        elif error is not None:
            event(logger, logging.ERROR, "request about a popped message failed", error)


def _half(lease: Lease) -> float:
    """The time at which half of the invisible time has passed."""
    return lease.visible_at - lease.invisible_ms / 2000


def _next_try(lease: Lease, now: float) -> float:
    """The time to renew a lease again after a failure, or to end it."""
    pause_s: float = min(_PAUSE_S * 2 ** (lease.failures - 1), _PAUSE_MAX_S)
    return min(now + pause_s, lease.visible_at)


def _place(lease: Lease) -> str:
    """Where the message lies, for the log."""
    topic, _, broker_name, queue_id, queue_offset, _ = lease.key
    return f"{topic} {broker_name} {queue_id} {queue_offset}"


def _key(message: MessageExt, receipt: PopReceipt) -> LeaseKey:
    first_pop = message.properties.get(message_const.FIRST_POP_TIME, "")
    return message.topic, receipt.topic_kind, receipt.broker_name, receipt.queue_id, receipt.queue_offset, first_pop
