"""How much of one turn of the event loop the requests of a server may take.

Sends are kernels over whole reads and need no bound. Other requests are looked at one by one, and one read can bring
thousands of them: when their time is up, or a connection's answers are many bytes, the rest waits for the next turn.
"""

from __future__ import annotations

import asyncio

TURN_S = 0.01
"""Of all connections together; what was begun is finished."""
ANSWER_BYTES = 1024 * 1024
"""Of one connection."""


class Turn:
    """The turn of the loop that runs now. Event loop only."""

    def __init__(self) -> None:
        self._began_s: float | None = None

    def is_over(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the requests of this turn have had their time; the first question begins it."""
        if self._began_s is None:
            self._began_s = loop.time()
            loop.call_soon(self._end)  # runs before the reads of the next turn
            return False
        return loop.time() - self._began_s > TURN_S

    def _end(self) -> None:
        self._began_s = None
