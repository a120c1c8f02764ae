"""The main thread of the process, in which applications with blocking calls run, and which alone gets Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import NoReturn

from rucola.testing.virtual_loop import Working


class MainThread:
    """Gets jobs and interruptions from other threads.

    Args:
        working: the threads for which the virtual time stands still. It also stands still from an interruption until
            the main thread has noticed it: on a busy machine, that takes longer than minutes of virtual time.
    """

    def __init__(self, working: Working) -> None:
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._working = working
        self._sent: SimpleQueue[None] = SimpleQueue()

    def interrupt(self) -> None:
        """Sends Ctrl-C to the main thread."""
        self._working.begin()
        self._sent.put(None)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def settle(self) -> None:
        """Lets the time go on: interruptions have come, or come too late."""
        with suppress(Empty):
            while True:
                self._sent.get_nowait()
                self._working.end()

    def on_interrupt(self, _number: int, _frame: FrameType | None) -> NoReturn:
        """Handles SIGINT."""
        self.settle()
        raise KeyboardInterrupt
