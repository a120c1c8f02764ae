"""An event loop with real sockets and a clock that tests can advance, so that no test waits for a timeout."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


_BUSY_MAX_S = 0.001
"""How far the time moves at most, in seconds, while the loop waits for data that comes."""


class _IdleTime(selectors.DefaultSelector):
    """Adds to ``seconds`` how long the loop has nothing to do."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Waits for data, at most until ``timeout``, which is when the next timer is due."""
        begun = time.monotonic()
        events = super().select(timeout)
        waited = time.monotonic() - begun
        if events:
            waited = min(waited, _BUSY_MAX_S)
        self.seconds += waited if timeout is None else min(waited, timeout)
        return events


class SteppedEventLoop(asyncio.SelectorEventLoop):
    """asyncio's loop; ``advance`` makes timers due. A test sets timeouts of an hour and then advances the loop by an
    hour.

    Otherwise the time passes while the loop waits for a timer, and as far as this process uses a processor; not while
    it waits for one. So a test on a loaded machine sees no timeout that it would not see on an idle one.
    """

    def __init__(self) -> None:
        self._idle = _IdleTime()
        self._skipped_s = 0.0
        super().__init__(self._idle)

    def time(self) -> float:
        """Time in seconds since an arbitrary start, including the time added by ``advance``."""
        return self._idle.seconds + time.process_time() + self._skipped_s

    def advance(self, seconds: float) -> None:
        """Moves the time forward by ``seconds``."""
        self._skipped_s += seconds


def run_stepped(work: Coroutine[Any, Any, T]) -> T:
    """Runs ``work`` on a ``SteppedEventLoop``."""
    with asyncio.Runner(loop_factory=SteppedEventLoop) as runner:
        return runner.run(work)


def advance(seconds: float) -> None:
    """Moves the running loop's time forward by ``seconds``."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SteppedEventLoop):
        raise TypeError("the running loop is not a SteppedEventLoop: use run_stepped")
    loop.advance(seconds)


async def settle(turns: int = 20) -> None:
    """Runs ``turns`` iterations of the event loop: data on loopback sockets takes several iterations to be handled."""
    for _ in range(turns):
        await asyncio.sleep(0)
