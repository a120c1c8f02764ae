"""An event loop with real sockets whose time can be moved on, so that no test waits for a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SteppedEventLoop(asyncio.SelectorEventLoop):
    """asyncio's loop; ``advance`` makes timers due. Tests use timeouts of an hour and then let the hour pass."""

    def __init__(self) -> None:
        super().__init__()
        self._skipped_s = 0.0

    def time(self) -> float:
        """Seconds from an arbitrary start, with what was skipped."""
        return super().time() + self._skipped_s

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self._skipped_s += seconds


def run_stepped(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on a ``SteppedEventLoop``."""
    with asyncio.Runner(loop_factory=SteppedEventLoop) as runner:
        return runner.run(work)


def advance(seconds: float) -> None:
    """Move the running loop's time, for the body of a test."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SteppedEventLoop):
        raise TypeError("not on a SteppedEventLoop: use run_stepped")
    loop.advance(seconds)


async def settle(turns: int = 20) -> None:
    """Let what is ready happen: sockets on the loopback need a few turns of the loop."""
    for _ in range(turns):
        await asyncio.sleep(0)
