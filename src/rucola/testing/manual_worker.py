"""Background work that happens when a test says so, instead of in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

from rucola.testing.interleaver import InterleavedLock, Interleaver, Task


class ManualWorker:
    """Stands for ``runtime.background.Worker``: the same calls, and no thread unless an ``Interleaver`` has them.

    Attributes:
        started: between ``start`` and ``stop``.
        wanted: woken since the last run.
        on_run: called before each run; time passes.
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
        self.started = self.wanted = False
        self.on_run: Callable[[], None] | None = None
        self._work = work
        self._interleaver = interleaver
        self._task: Task | None = None

    def start(self) -> None:
        """The thread would wait from now on."""
        self.started = True

    def wake(self) -> None:
        """The thread would work soon."""
        self.wanted = True

    def stop(self) -> None:
        """No run follows; waits for the one that is under way."""
        self.started = False
        task = self._task
        if task is not None and self._interleaver is not None:
            self._interleaver.wait(lambda: task.done)

    @property
    def ready(self) -> bool:
        """Whether a run would begin now: it was woken or its interval is over, and none is under way."""
        waits = self._task is None or self._task.done
        return self.started and waits and (self.wanted or self.interval_s is not None)

    def run(self) -> None:
        """What the thread would do next; nothing when it would wait. With an interleaver it may take longer."""
        if self._interleaver is not None:
            if self.ready:
                self.begin()
            if self._task is not None:
                self._interleaver.yield_to(self._task)
        elif self.ready:
            self._run()

    def begin(self) -> Task:
        """Begins a run, in a thread of the interleaver."""
        assert self._interleaver is not None
        self._task = self._interleaver.start(self.name, self._run)
        return self._task

    def _run(self) -> None:
        if self.on_run is not None:
            self.on_run()
        self.wanted = False
        self._work()


@contextmanager
def manual_workers(*modules: str, interleaver: Interleaver | None = None) -> Iterator[None]:
    """Within the block, ``Worker`` in each of ``modules`` is a ``ManualWorker``, a lock one of ``interleaver``."""
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch(f"{module}.Worker", partial(ManualWorker, interleaver=interleaver)))
        if interleaver is not None:
            stack.enter_context(patch.object(threading, "Lock", partial(InterleavedLock, interleaver)))
        yield
