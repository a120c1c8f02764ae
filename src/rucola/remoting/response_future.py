"""Requests that wait for their responses on one connection, matched by ``opaque``. Responses may come in any order
(protocol.md 1.1). One timer per connection expires late requests. The timer is set for the earliest deadline, and
examines all waiting requests only when it fires. A request that is answered in time therefore costs one dictionary
entry and no timer.

Everything here runs on the connection's event loop and uses ``loop.time()``.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable

from rucola.common.columns import ROW_WIDTH
from rucola.common.kernel_columns import FRAME_FLAG, FRAME_OPAQUE
from rucola.errors import FormatError, RemotingClosedError, RemotingConnectError, RemotingError, RemotingTimeoutError
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand
from rucola.protocol.frame import FrameBatch


class Waiter:
    """Waits for one response. Either ``answered`` or ``failed`` is called, exactly once, on the event loop."""

    __slots__ = ("deadline", "timeout_ms")

    def __init__(self) -> None:
        self.deadline = 0.0
        self.timeout_ms = 0

    def wait_for(self, timeout_ms: int, now: float) -> None:
        """Sets the deadline to ``timeout_ms`` after ``now``, a time of the loop's clock."""
        self.deadline = now + timeout_ms / 1000
        self.timeout_ms = timeout_ms

    def answered(self, batch: FrameBatch, row: int) -> None:
        """Takes the response in frame ``row`` of ``batch``. The batch is valid only during this call."""
        raise AssertionError("a subclass must define answered")

    def failed(self, error: RemotingError) -> None:
        """Called when the request failed, so that no response will come."""
        raise AssertionError("a subclass must define failed")


class ResponseFuture(Waiter):
    """A waiter that hands the decoded response to an ``asyncio.Future``."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[RemotingCommand]) -> None:
        super().__init__()
        self.future = future

    def answered(self, batch: FrameBatch, row: int) -> None:
        """Resolves the future with the decoded command, or with a ``FormatError`` if its header is invalid."""
        if self.future.done():
            return
        try:
            self.future.set_result(batch.command(row))
        except FormatError as error:
            self.future.set_exception(error)

    def failed(self, error: RemotingError) -> None:
        """Resolves the future with the error."""
        if not self.future.done():
            self.future.set_exception(error)


class ResponseTable:
    """The waiting requests of one connection.

    Args:
        loop: the connection's event loop.
        address: the peer as ``host:port``, for the errors.
        on_expired: called with requests that got no response in time, before their waiters are called.

    Attributes:
        waiting: the waiters by ``opaque``; the dictionary is never replaced. Code that adds a waiter to this dictionary
            must call ``expire_at`` if the waiter's deadline lies before ``timer_at``.
        timer_at: time of the next search for late requests.
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
        """Waits for the response ``opaque`` for at most ``timeout_ms``."""
        waiter.wait_for(timeout_ms, self._loop.time())
        self.waiting[opaque] = waiter
        if waiter.deadline < self.timer_at:
            self.expire_at(waiter.deadline)

    def take(self, opaque: int) -> Waiter | None:
        """The waiter for the response ``opaque``; None if there is none (any more)."""
        return self.waiting.pop(opaque, None)

    def take_from(self, batch: FrameBatch) -> None:
        """Gives the responses among the frames of ``batch`` to their waiters."""
        table = batch.table
        for row in range(batch.count):
            if table[row * ROW_WIDTH + FRAME_FLAG] & FLAG_RESPONSE:
                waiter = self.take(table[row * ROW_WIDTH + FRAME_OPAQUE])
                if waiter is not None:
                    waiter.answered(batch, row)

    def close(self, connect_error: str | None = None) -> None:
        """Fails all waiting requests: the connection is closed, or could not be opened for the given reason."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self.timer_at = None, math.inf
        waiting = list(self.waiting.values())
        self.waiting.clear()
        for waiter in waiting:  # each waiter gets its own error, because it may raise the error and add notes
            if connect_error is None:
                waiter.failed(RemotingClosedError(self._address))
            else:
                waiter.failed(RemotingConnectError(self._address, connect_error))

    def expire_at(self, deadline: float) -> None:
        """Schedules the next search for late requests at ``deadline``, a time of the loop's clock."""
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
