"""Background work that runs when a test calls it, instead of in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from unittest.mock import patch

from rucola.testing.interleaver import InterleavedLock, Interleaver, Task


class ManualWorker:
    """Replaces ``runtime.background.Worker``: it has the same methods, but no thread of its own. With an
    ``Interleaver``, it runs in the interleaver's threads.

    Attributes:
        started: whether ``start`` was called, and ``stop`` was not.
        wanted: whether ``wake`` was called since the last run.
        rests: whether ``rest`` was called after the last ``wake``.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        interval_s: float | None = None,
        interleaver: Interleaver | None = None,
    ) -> None:
        self.name = name
        self.interval_s = interval_s
        self.started = self.wanted = self.rests = False
        self._on_run: Callable[[], None] | None = None
        self._work = work
        self._interleaver = interleaver
        self._task: Task | None = None

    def before_runs(self, listener: Callable[[], None]) -> None:
        """Calls ``listener``, which can let time pass, before each run."""
        self._on_run = listener

    def start(self) -> None:
        """Allows runs; from this call on, the real thread would wait for work."""
        self.started = True

    def rest(self) -> None:
        """The real thread would run no more at intervals, until ``wake``."""
        self.rests = True

    def wake(self) -> None:
        """Requests a run; the real thread would run soon."""
        self.rests = False
        self.wanted = True

    def stop(self) -> None:
        """Allows no further run; waits for a run in progress."""
        self.started = False
        task = self._task
        if task is not None and self._interleaver is not None:
            self._interleaver.wait(lambda: task.done)

    @property
    def ready(self) -> bool:
        """Whether a run would begin now: the worker was woken or its interval has passed, and no run is in progress."""
        waits = self._task is None or self._task.done
        return self.started and waits and (self.wanted or self.interval_s is not None)

    def run(self) -> None:
        """Does what the real thread would do next, if anything. With an interleaver the run may outlast this call."""
        if self._interleaver is not None:
            if self.ready:
                self.begin()
            if self._task is not None:
                self._interleaver.yield_to(self._task)
        elif self.ready:
            self._run()

    def begin(self) -> Task:
        """Begins a run in a thread of the interleaver."""
        assert self._interleaver is not None
        self._task = self._interleaver.start(self.name, self._run)
        return self._task

    def _run(self) -> None:
        if self._on_run is not None:
            self._on_run()
        self.wanted = False
        self._work()


@contextmanager
def manual_workers(*modules: str, interleaver: Interleaver | None = None) -> Iterator[None]:
    """Within the ``with`` block, the modules named in ``modules`` use ``ManualWorker`` instead of ``Worker``. With an
    ``interleaver``, ``threading.Lock`` returns an ``InterleavedLock``.
    """
    with ExitStack() as stack:
        for module in map(import_module, modules):
            # Not by ``patch``, which takes a tenth of the time of an exploration with thousands of starts.
            stack.callback(setattr, module, "Worker", module.Worker)
            module.Worker = partial(ManualWorker, interleaver=interleaver)  # type: ignore[attr-defined]
        if interleaver is not None:
            stack.enter_context(patch.object(threading, "Lock", partial(InterleavedLock, interleaver)))
        yield
