"""The calls of the application for which a client's shutdown waits.

The application may call ``shutdown`` inside such a call. The shutdown cannot wait for the code that waits for it, so
this call no longer counts.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, Token

_CURRENT: ContextVar[WorkInProgress | None] = ContextVar("WORK_IN_PROGRESS", default=None)
"""The work to which the running code belongs; threads that it starts with ``asyncio.to_thread`` inherit it."""


class WorkInProgress:
    """One piece of work: ``with WorkInProgress(works):`` around the work.

    Args:
        works: all work of the client.
    """

    __slots__ = ("_token", "_works")

    def __init__(self, works: Works) -> None:
        self._works = works
        self._token: Token[WorkInProgress | None] | None = None

    def __enter__(self) -> None:
        self._works.add(self)
        self._token = _CURRENT.set(self)

    def __exit__(self, *exc_info: object) -> None:
        self._works.remove(self)
        if self._token is not None:
            _CURRENT.reset(self._token)


class Works:
    """The pieces of work of one client that are in progress. May be used on only one event loop."""

    def __init__(self) -> None:
        self._works: set[WorkInProgress] = set()
        self._none_left = asyncio.Event()

    def add(self, work: WorkInProgress) -> None:
        """Counts ``work``."""
        self._works.add(work)

    def remove(self, work: WorkInProgress) -> None:
        """No longer counts ``work``; does nothing if it is not counted."""
        self._works.discard(work)
        if not self._works:
            self._none_left.set()

    def excuse_current(self) -> bool:
        """No longer counts the work to which the calling code belongs; returns whether there is such work."""
        current = _CURRENT.get()
        if current not in self._works:
            return False
        self.remove(current)
        return True

    async def wait(self) -> None:
        """Waits until no work is in progress."""
        while self._works:
            self._none_left.clear()
            await self._none_left.wait()
