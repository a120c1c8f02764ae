"""An event loop without sockets and tasks: calls come when the clock of the test has reached them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from rucola.testing.clock import ManualClock


class ManualLoop:
    """The calls of ``asyncio.AbstractEventLoop`` that plain callbacks need.

    Tasks are not run: whoever tests does what they would do at their intervals.
    """

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._calls: list[_Call] = []
        self._count = 0

    def time(self) -> float:
        """Seconds of the clock."""
        return self._clock.monotonic()

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> _Call:
        """With the next ``run``."""
        return self.call_later(0, callback, *arguments)

    call_soon_threadsafe = call_soon

    def call_later(self, delay_s: float, callback: Callable[..., object], *arguments: object) -> _Call:
        """With the first ``run`` after the clock has moved on so far."""
        self._count += 1
        call = _Call((self.time() + max(delay_s, 0), self._count), callback, arguments)
        heapq.heappush(self._calls, call)
        return call

    def create_task(self, work: Coroutine[Any, Any, Any]) -> _NoTask:
        """Drops ``work``."""
        work.close()
        return _NoTask()

    def run(self) -> None:
        """Makes the calls that are due, also those that they add."""
        while self.is_due():
            self.run_one()

    def is_due(self) -> bool:
        """Whether there is a call to make now."""
        return bool(self._calls) and self._calls[0].place[0] <= self.time()

    def run_one(self) -> None:
        """Makes the first call that is due."""
        call = heapq.heappop(self._calls)
        if not call.cancelled:
            call.callback(*call.arguments)


class _Call:
    """As ``asyncio.TimerHandle``."""

    def __init__(
        self, place: tuple[float, int], callback: Callable[..., object], arguments: tuple[object, ...]
    ) -> None:
        self.place = place
        self.callback = callback
        self.arguments = arguments
        self.cancelled = False

    def __lt__(self, other: _Call) -> bool:
        return self.place < other.place

    def cancel(self) -> None:
        self.cancelled = True


class _NoTask:
    """A task that was cancelled."""

    def cancelled(self) -> bool:
        """It was."""
        return True

    def done(self) -> bool:
        """It has ended."""
        return True

    def cancel(self) -> None:
        """There is nothing to cancel."""

    def add_done_callback(self, callback: Callable[[_NoTask], object]) -> None:
        """It has ended."""
        callback(self)

    def __await__(self) -> Generator[None, None, None]:
        return
        yield
