"""Makes blocking calls to the operating system (sync, allocation) in threads, while the event loop runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from rucola.runtime.logs import event

logger = logging.getLogger(__name__)


class Worker:
    """A thread that calls one function whenever it is woken, and also at an interval if one is given.

    A wake-up during the work is not lost: the work then runs once more. The work should not raise for expected
    failures. If it raises, the error is logged and the work runs again at the next wake-up, so that the thread survives
    a defect.

    Args:
        name: name of the thread.
        work: called without arguments on the thread.
        interval_s: longest pause in seconds between two calls; with None, the thread calls ``work`` only when woken.
    """

    def __init__(self, name: str, work: Callable[[], None], interval_s: float | None = None) -> None:
        self._work = work
        self._interval_s = interval_s
        self._wanted = threading.Event()
        self._rests = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def rest(self) -> None:
        """Calls the work no more at intervals, until the next ``wake``."""
        self._rests = True

    def wake(self) -> None:
        """Requests one more call of the work; does nothing if one is already requested. Any thread may call it."""
        self._rests = False
        if not self._wanted.is_set():
            self._wanted.set()

    def stop(self) -> None:
        """Waits until the running call of the work has ended; no further call follows."""
        self._stopping = True
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.wait(None if self._rests else self._interval_s)
            self._wanted.clear()
            if self._stopping:
                return
            try:
                self._work()
            except Exception as error:
                event(logger, logging.ERROR, "background work failed", worker=self._thread.name, error=error)
                logger.debug("trace of the failure above", exc_info=True)
