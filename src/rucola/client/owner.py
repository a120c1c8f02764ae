"""The event loop on which a client was started. Only this loop may use the client.

A call from another loop or thread would not fail by itself: it would touch data of a running loop, or wait for ever on
a loop that has ended. A call in the child of a fork would use the parent's connections.
"""

from __future__ import annotations

import asyncio
import os
import threading
from weakref import WeakSet

from rucola.errors import ClientError


class LoopOwner:
    """Remembers the event loop of one client.

    Attributes:
        thread: id of the thread in which the loop ran at ``start``; 0 before ``start`` and in the child of a fork.
    """

    __slots__ = ("__weakref__", "_loop", "_pid", "thread")

    def __init__(self) -> None:
        self.thread = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def start(self) -> asyncio.AbstractEventLoop:
        """The running loop becomes the client's loop.

        Raises:
            ClientError: the client was started on another loop.
        """
        self.check()
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self.thread = threading.get_ident()
        _owners.add(self)
        return self._loop

    def check(self) -> None:
        """Does nothing before ``start``.

        Raises:
            ClientError: the running loop is not the one on which the client was started, or no loop is running.
        """
        if self._loop is None:
            return
        if self._pid != os.getpid():
            raise ClientError(
                f"this client was started in process {self._pid}, before the fork of process {os.getpid()}; its "
                f"connections belong to process {self._pid}: create the client after the fork"
            )
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            what = "another event loop" if running is not None else "a thread without an event loop"
            raise ClientError(
                f"this client was started on one event loop and is called from {what}: create a client for each event "
                "loop (every asyncio.run makes a new one); from threads, use the class of rucola.sync"
            )


_owners: WeakSet[LoopOwner] = WeakSet()


def _forked() -> None:
    """Runs in the child of a fork."""
    for owner in _owners:
        owner.thread = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
