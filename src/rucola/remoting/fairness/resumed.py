"""Requests that waited for the same event, such as an import, continue one after another."""

from __future__ import annotations

import asyncio
from collections import deque

RESUMED_A_TURN = 1
"""Largest number of requests that continue in one turn after they have waited for the same event, such as an import.
Each of these requests may take 20 ms.
"""


class Resumed:
    """Spreads requests that waited for the same event, such as an import, over several turns: ``RESUMED_A_TURN`` of
    them continue in each turn. Event loop only.
    """

    def __init__(self) -> None:
        self._held: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Waits until the caller may go on. Callers go on in the order of their calls."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._held.append(future)
        if len(self._held) == 1:
            loop.call_soon(self._next, loop)
        await future

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        for _ in range(min(RESUMED_A_TURN, len(self._held))):
            future = self._held.popleft()
            if not future.done():  # cancelled meanwhile
                future.set_result(None)
        if self._held:
            loop.call_soon(self._next, loop)
