"""An event loop without sockets or tasks: a test runs the scheduled calls that are due by the test's clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any

from rucola.testing.clock import ManualClock


class ManualLoop:
    """The methods of ``asyncio.AbstractEventLoop`` that plain callbacks need. Tasks do not run: the test itself does
    the work of periodic tasks.

    Attributes:
        ran: number of calls so far.
    """

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._calls: list[_Call] = []
        self._count = 0
        self.ran = 0

    def time(self) -> float:
        """The clock's time in seconds."""
        return self._clock.monotonic()

    def get_debug(self) -> bool:
        """Futures ask."""
        return False

    def call_soon(self, callback: Callable[..., object], *arguments: object, context: Context | None = None) -> _Call:
        """Schedules a call for the next ``run``."""
        return self.call_later(0, callback, *arguments)

    call_soon_threadsafe = call_soon

    def call_later(self, delay_s: float, callback: Callable[..., object], *arguments: object) -> _Call:
        """Schedules a call for the first ``run`` after ``delay_s``."""
        self._count += 1
        call = _Call((self.time() + max(delay_s, 0), self._count), callback, arguments)
        heapq.heappush(self._calls, call)
        return call

    def create_task(self, work: Coroutine[Any, Any, Any]) -> _NoTask:
        """Discards ``work``."""
        work.close()
        return _NoTask()

    def run(self) -> None:
        """Runs all calls that are due, including due calls that these calls add."""
        while self.is_due():
            self.run_one()

    def is_due(self) -> bool:
        """Whether a call is due."""
        return bool(self._calls) and self._calls[0].place[0] <= self.time()

    def run_one(self) -> None:
        """Runs the first call that is due."""
        call = heapq.heappop(self._calls)
        if not call.cancelled:
            self.ran += 1
            call.callback(*call.arguments)


class _Call:
    """Equivalent of ``asyncio.TimerHandle``."""

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
    """A cancelled task."""

    def cancelled(self) -> bool:
        """Always true."""
        return True

    def done(self) -> bool:
        """Always true."""
        return True

    def cancel(self) -> None:
        """Does nothing: the task is cancelled already."""

    def add_done_callback(self, callback: Callable[[_NoTask], object]) -> None:
        """Calls ``callback`` at once: the task is cancelled already."""
        callback(self)

    def __await__(self) -> Generator[None, None, None]:
        return
        yield
