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
COSTLY_S = 0.002
"""A request that takes longer makes its connection wait for turns that have time left: those of others are few, or many
of its kind come over many connections.
"""
_UNSEEN_S = 0.001
"""Turns that end sooner are not told apart: to be called when one is over costs the loop a round of its own."""


class Turn:
    """The turn of the loop that runs now. Event loop only."""

    def __init__(self) -> None:
        self._began_s = float("-inf")
        self._is_seen = False

    def is_over(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the requests of this turn have had their time; a question begins it."""
        now_s = loop.time()
        if self._is_seen:
            return now_s - self._began_s > TURN_S
        if now_s - self._began_s > _UNSEEN_S:
            self._began_s, self._is_seen = now_s, True
            loop.call_soon(self._end)  # runs before the reads of the next turn
        return False

    def _end(self) -> None:
        self._is_seen = False
