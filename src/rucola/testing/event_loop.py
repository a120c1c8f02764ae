"""An event loop with real sockets and a clock that tests can advance, so that no test waits for a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SteppedEventLoop(asyncio.SelectorEventLoop):
    """asyncio's loop; ``advance`` makes timers due. A test sets timeouts of an hour and then advances the loop by an
    hour.
    """

    def __init__(self) -> None:
        super().__init__()
        self._skipped_s = 0.0

    def time(self) -> float:
        """Time in seconds since an arbitrary start, including the time added by ``advance``."""
        return super().time() + self._skipped_s

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
