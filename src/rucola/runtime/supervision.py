"""Runs periodic work on the event loop. If a run fails, the error is counted and logged, and the work runs again later.

Everything that a server repeats, and that no other task awaits, is a ``PeriodicWork`` with a name.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rucola.errors import RucolaError
from rucola.runtime.logs import event
from rucola.runtime.loop_watch import LoopWatch

logger = logging.getLogger(__name__)

T = TypeVar("T")
Pause = float | None
"""Seconds until the next run; None means the usual pause."""


class Supervisor:
    """Counts and logs failures. A server has one such object. Event loop only.

    Args:
        watch: is told of the times of periodic work; None if nobody watches the loop.

    Attributes:
        failures: number of failures by name of the work. Periodic work has the entry 0 before its first failure.
    """

    def __init__(self, watch: LoopWatch | None = None) -> None:
        self.failures: Counter[str] = Counter()
        self._watch = watch
        self._failing: dict[str, str] = {}
        """The error of each work whose last run failed, by the name of the work."""

    def failed(self, name: str, error: BaseException) -> None:
        """Counts a failed run of ``name``; logs the error unless the previous run failed with the same error."""
        self.failures[name] += 1
        text = repr(error)
        if self._failing.get(name) != text:
            self._failing[name] = text
            trace = None if isinstance(error, RucolaError) else error
            event(logger, logging.ERROR, "work failed and continues", trace, work=name, error=text)

    def succeeded(self, name: str) -> None:
        """Notes that a run of ``name`` succeeded."""
        if self._failing.pop(name, None) is not None:
            event(logger, logging.INFO, "work succeeds again", work=name)

    def run(self, name: str, work: Callable[[], T]) -> T:
        """Returns the result of ``work``; the watch learns how long it took, or that a task begins."""
        return work() if self._watch is None else self._watch.timed(name, work)

    def call(self, name: str, work: Callable[..., object], *arguments: Any) -> None:
        """Calls ``work``; counts and logs an error instead of raising it."""
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - an error must not affect the caller
            self.failed(name, error)
        else:
            self.succeeded(name)

    def every(
        self,
        name: str,
        pause_s: Callable[[], float],
        work: Callable[[], Pause | Coroutine[Any, Any, Pause]],
        loop: asyncio.AbstractEventLoop,
        first_s: Pause = None,
        after_error_s: Pause = None,
        interruptible: bool = True,
    ) -> PeriodicWork:
        """Runs ``work`` periodically until ``PeriodicWork.stop`` is called; see ``PeriodicWork``."""
        return PeriodicWork(self, name, pause_s, work, loop, first_s, after_error_s, interruptible)


class PeriodicWork:
    """One piece of periodic work. It first runs after the first pause.

    Args:
        supervisor: receives failures.
        name: name of the work for log and metrics.
        pause_s: returns the pause in seconds; called before each pause, because options may change.
        work: a plain or asynchronous function; it may return the next pause itself.
        first_s: the first pause in seconds.
        after_error_s: the pause after a failure, in seconds.
        interruptible: whether ``stop`` cancels an asynchronous run; otherwise ``stop`` waits until the run has ended.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        name: str,
        pause_s: Callable[[], float],
        work: Callable[[], Pause | Coroutine[Any, Any, Pause]],
        loop: asyncio.AbstractEventLoop,
        first_s: Pause = None,
        after_error_s: Pause = None,
        interruptible: bool = True,
    ) -> None:
        self._supervisor = supervisor
        self._name = name
        self._pause_s = pause_s
        self._work = work
        self._loop = loop
        self._after_error_s = after_error_s
        self._interruptible = interruptible
        self._stopped = False
        self._busy = False
        self._task: asyncio.Future[Pause] | None = None
        supervisor.failures[name] += 0
        self._call: asyncio.Handle | None
        self._schedule(first_s)

    async def catch_up(self) -> None:
        """Runs the work without pauses until a run fails, or returns anything but a pause of 0 seconds."""
        self._busy = True
        while self._busy and not self._stopped:
            if self._task is None:
                if self._call is not None:
                    self._call.cancel()
                self._turn()
            if self._task is not None:
                await asyncio.wait([self._task])
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Stops the work; returns when the current run has ended."""
        self._stopped = True
        if self._call is not None:
            self._call.cancel()
        if self._task is not None:
            if self._interruptible:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _schedule(self, pause_s: Pause) -> None:
        if self._stopped:
            return
        self._busy = pause_s == 0
        if pause_s is None:
            try:
                pause_s = self._pause_s()
            except Exception as error:  # noqa: BLE001 - see the module
                self._supervisor.failed(self._name, error)
                pause_s = _PAUSE_UNKNOWN_S
        self._call = self._loop.call_later(pause_s, self._turn)

    def _turn(self) -> None:
        self._call = None
        try:
            outcome = self._supervisor.run(self._name, self._work)
        except Exception as error:  # noqa: BLE001 - see the module
            self._failed(error)
            return
        if outcome is None or isinstance(outcome, int | float):
            self._came_through(outcome)
        else:
            self._task = self._loop.create_task(outcome)
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[Pause]) -> None:
        self._task = None
        if task.cancelled():
            self._schedule(None)
            return
        error = task.exception()
        if error is None:
            self._came_through(task.result())
        else:
            self._failed(error)

    def _came_through(self, pause_s: Pause) -> None:
        self._supervisor.succeeded(self._name)
        self._schedule(pause_s)

    def _failed(self, error: BaseException) -> None:
        self._supervisor.failed(self._name, error)
        self._schedule(self._after_error_s)


_PAUSE_UNKNOWN_S = 10.0
