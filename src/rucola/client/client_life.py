"""The life of a consumer: it starts once, and is shut down once, to its end, whoever asks for it and how often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from rucola.client.owner import LoopOwner
from rucola.errors import ClientError
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

Work = Callable[[], Coroutine[Any, Any, None]]


class ClientLife:
    """The life of one client. A shutdown runs in a task of its own; it waits for a start that is under way.

    Args:
        what: the kind of client, for errors.
        owner: the event loop that may use the client.
        start: starts the client.
        close: closes a client that was started, perhaps only in part.

    Attributes:
        has_started: whether ``start`` was called.
        is_closing: whether a shutdown was asked for; it cannot be undone.
        closed: set when the shutdown is complete, also if it failed.
    """

    def __init__(self, what: str, owner: LoopOwner, start: Work, close: Work) -> None:
        self._what = what
        self._owner = owner
        self._start = start
        self._close = close
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.has_started = False
        self.is_closing = False
        self.closed = asyncio.Event()

    async def start(self) -> None:
        """Starts the client, unless it has started. A start that fails or is cancelled ends the client.

        Raises:
            ClientError: a shutdown was asked for, or another event loop uses the client. The errors of the client's own
                start apply too.
        """
        self._owner.check()
        begins = False
        try:
            async with self._lock:
                if self.is_closing:
                    raise ClientError(f"a {self._what} that was shut down cannot be started again; create a new one")
                if not self.has_started:
                    begins = self.has_started = True
                    await self._start()
        except BaseException:
            if begins:
                await self.close(inside=False)
            raise

    async def close(self, inside: bool) -> None:
        """Closes the client, or waits until the shutdown that has begun is complete. If the caller is cancelled, the
        shutdown goes on.

        Args:
            inside: whether the caller is code for which the shutdown waits, such as the body of a loop; it does not
                wait then.

        Raises:
            ClientError: another event loop uses the client.
        """
        self._owner.check()
        self.is_closing = True
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
            self._task.add_done_callback(lambda done: done.cancelled() or done.exception())  # logged already
        if not inside:
            await asyncio.shield(self._task)

    def check_loop(self) -> None:
        """Raises ``ClientError`` if another event loop, thread or process has started the client."""
        self._owner.check()

    def check_running(self) -> None:
        """Raises ``ClientError`` unless the client is started, not shut down, and used by its own event loop."""
        self._owner.check()
        if not self.has_started or self.is_closing:
            raise self.not_running()

    def not_running(self) -> ClientError:
        """The error of a call that needs a running client."""
        return ClientError(f"the {self._what} is not started, or is shut down")

    async def _run(self) -> None:
        try:
            async with self._lock:
                if self.has_started:
                    await self._close()
        except Exception as error:
            event(logger, logging.ERROR, "shutdown failed", error)
            raise
        finally:
            self.closed.set()
