"""The shutdown of a client: it runs once, to its end, in a task of its own, whoever asks for it and how often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from rucola.runtime.logs import event

logger = logging.getLogger(__name__)


class Closing:
    """The shutdown of one client.

    Args:
        work: closes the client.
        closed: called when the work has ended, also if it failed.

    Attributes:
        begun: whether the shutdown was asked for; it cannot be undone.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], closed: Callable[[], None]) -> None:
        self._work = work
        self._closed = closed
        self._task: asyncio.Task[None] | None = None
        self.begun = False

    async def close(self, inside: bool) -> None:
        """Closes the client, or waits until the shutdown that has begun is complete. If the caller is cancelled, the
        shutdown goes on.

        Args:
            inside: whether the caller is code for which the shutdown waits, such as the body of a loop; it does not
                wait then.
        """
        self.begun = True
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
            self._task.add_done_callback(lambda done: done.cancelled() or done.exception())  # logged already
        if not inside:
            await asyncio.shield(self._task)

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception as error:
            event(logger, logging.ERROR, "shutdown failed", error)
            raise
        finally:
            self._closed()
