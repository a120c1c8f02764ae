"""Requests that wait for their answer, matched by ``opaque``, on one connection.

Answers may come in any order (protocol.md 1.1). One timer per connection expires whatever is late: it is armed for the
earliest deadline and looks at all waiting requests only when it fires, so a request that is answered in time costs one
dictionary entry and no timer of its own.

All of this runs on the connection's event loop and takes its time from ``loop.time()``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

from rucola.errors import FormatError, RemotingClosedError, RemotingConnectError, RemotingError, RemotingTimeoutError
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameBatch


class Waiter:
    """Who waits for one answer. Exactly one of ``answered`` and ``failed`` is called, once, on the event loop."""

    __slots__ = ("deadline", "timeout_ms")

    def __init__(self) -> None:
        self.deadline = 0.0
        self.timeout_ms = 0

    def wait_for(self, timeout_ms: int, now: float) -> None:
        """Wait at most ``timeout_ms`` from ``now``, the loop's time."""
        self.deadline = now + timeout_ms / 1000
        self.timeout_ms = timeout_ms

    def answered(self, batch: FrameBatch, row: int) -> None:
        """Take the answer in frame ``row`` of ``batch``; the batch is valid during this call only."""
        raise AssertionError("a waiter takes answers")

    def failed(self, error: RemotingError) -> None:
        """No answer will come."""
        raise AssertionError("a waiter takes failures")


class ResponseFuture(Waiter):
    """A waiter that hands the decoded answer to an ``asyncio.Future``."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[RemotingCommand]) -> None:
        super().__init__()
        self.future = future

    def answered(self, batch: FrameBatch, row: int) -> None:
        """Resolve with the whole command, or with what is wrong with its header."""
        if self.future.done():
            return
        try:
            self.future.set_result(batch.command(row))
        except FormatError as error:
            self.future.set_exception(error)

    def failed(self, error: RemotingError) -> None:
        """Resolve with the error."""
        if not self.future.done():
            self.future.set_exception(error)


class ResponseTable:
    """The waiting requests of one connection.

    Args:
        loop: the connection's event loop.
        address: the peer as ``host:port``, for the errors.
        on_expired: called with those that had no answer in time, before they are told.

    Attributes:
        waiting: who waits, by ``opaque``; one dictionary for the whole life. Who enters a waiter there calls
            ``expire_at`` with its deadline when that lies before ``timer_at``.
        timer_at: when late ones are looked for next.
    """

    __slots__ = ("_address", "_loop", "_on_expired", "_timer", "timer_at", "waiting")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: str,
        on_expired: Callable[[list[Waiter]], None] | None = None,
    ) -> None:
        self._loop = loop
        self._address = address
        self._on_expired = on_expired
        self.waiting: dict[int, Waiter] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.timer_at = math.inf

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, opaque: int, waiter: Waiter, timeout_ms: int) -> None:
        """Wait for the answer ``opaque`` for at most ``timeout_ms``."""
        waiter.wait_for(timeout_ms, self._loop.time())
        self.waiting[opaque] = waiter
        if waiter.deadline < self.timer_at:
            self.expire_at(waiter.deadline)

    def take(self, opaque: int) -> Waiter | None:
        """Who waits for the answer ``opaque``, None when nobody does (any more)."""
        return self.waiting.pop(opaque, None)

    def close(self, connect_error: str | None = None) -> None:
        """Fail everything that waits: the connection is gone, or never came to be for the reason given."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.timer_at = None, math.inf
        waiting = list(self.waiting.values())
        self.waiting.clear()
        for waiter in waiting:  # an error of its own for each: whoever gets it may raise it and add notes
            if connect_error is None:
                waiter.failed(RemotingClosedError(self._address))
            else:
                waiter.failed(RemotingConnectError(self._address, connect_error))

    def expire_at(self, deadline: float) -> None:
        """Look for late ones at ``deadline``, the loop's time."""
        if self._timer is not None:
            self._timer.cancel()
        self.timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._sweep)

    def _sweep(self) -> None:
        now = self._loop.time()
        late = [opaque for opaque, waiter in self.waiting.items() if waiter.deadline <= now]
        expired = [self.waiting.pop(opaque) for opaque in late]
        if expired and self._on_expired is not None:
            self._on_expired(expired)
        for waiter in expired:
            waiter.failed(RemotingTimeoutError(self._address, waiter.timeout_ms))
        self._timer, self.timer_at = None, math.inf
        if self.waiting:
            self.expire_at(_earliest(self.waiting.values()))


def _earliest(waiters: Iterable[Waiter]) -> float:
    return min(waiter.deadline for waiter in waiters)
