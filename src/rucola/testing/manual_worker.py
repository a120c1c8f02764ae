"""Background work that happens when a test says so, instead of in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch


class ManualWorker:
    """Stands for ``runtime.background.Worker``: the same calls, no thread.

    Attributes:
        started: between ``start`` and ``stop``.
        wanted: woken since the last run.
    """

    def __init__(self, name: str, work: Callable[[], None], interval_s: float | None = None) -> None:
        self.name = name
        self.interval_s = interval_s
        self.started = self.wanted = False
        self._work = work

    def start(self) -> None:
        """The thread would wait from now on."""
        self.started = True

    def wake(self) -> None:
        """The thread would work soon."""
        self.wanted = True

    def stop(self) -> None:
        """No run follows."""
        self.started = False

    def run(self) -> None:
        """What the thread would do next, when it has been woken or its interval is over; nothing otherwise."""
        if self.started and (self.wanted or self.interval_s is not None):
            self.wanted = False
            self._work()


@contextmanager
def manual_workers(*modules: str) -> Iterator[None]:
    """Within the block, ``Worker`` in each of ``modules`` is a ``ManualWorker``."""
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch(f"{module}.Worker", ManualWorker))
        yield
