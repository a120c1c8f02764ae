"""Serves requests that were put off in earlier turns (iterations) of the event loop. No connection waits for all of
another's.

Two groups alternate in using the first half of each turn: connections whose last read has had no request served yet,
and those that wait for the rest of a read. The former get one request served each, the latter a short time each. Inside
a group, the connections are served in the order of their arrival. One that is not done goes to the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from rucola.remoting.turn import TURN_S, Turn

SLICE_S = 0.001
"""Time for one connection and turn, if many of them wait for the rest of a read."""
_ENDED_S = -1.0
"""A slice that has ended: one request is served."""


class DeferredReads:
    """The connections that wait. Event loop only.

    Args:
        turn: the turn of the server's event loop; its time limits what is served.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._begun: deque[Callable[[], None]] = deque()
        self._unbegun: deque[Callable[[], None]] = deque()
        self._first, self._second = self._begun, self._unbegun
        self._is_due = False

    def add(self, serve: Callable[[], None], loop: asyncio.AbstractEventLoop, begun: bool) -> None:
        """Calls ``serve`` in a later turn.

        Args:
            serve: serves requests of one connection until ``Turn.is_over``, at least one; may call ``add`` again.
            begun: whether requests of the same read were served before.
        """
        (self._begun if begun else self._unbegun).append(serve)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._serve, loop)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        self._first, self._second = self._second, self._first
        try:
            self._serve_from(self._first, loop, part=0.5)
            self._serve_from(self._second, loop)
            self._serve_from(self._first, loop)
        finally:
            self._turn.end_slice()
            self._is_due = bool(self._first or self._second)
            if self._is_due:
                loop.call_soon(self._serve, loop)

    def _serve_from(self, waiting: deque[Callable[[], None]], loop: asyncio.AbstractEventLoop, part: float = 1) -> None:
        count = len(waiting)
        time_s = max(TURN_S / count, SLICE_S) if count and waiting is self._begun else _ENDED_S
        for _ in range(count):
            self._turn.end_slice()
            if self._turn.is_over(loop, part):
                return
            self._turn.begin_slice(loop, time_s)
            waiting.popleft()()
