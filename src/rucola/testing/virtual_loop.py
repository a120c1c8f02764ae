"""An event loop in virtual time: while nothing can run, its time jumps to the next timer, so that no test waits.

Servers, clients and the application of a test share one loop. Sockets and threads are real. The loop therefore jumps
only if no socket is ready and no thread works for the test: it counts the calls of ``run_in_executor``, and the threads
that ``VirtualLoopThread`` and ``Working`` know. A jump is short, because the kernel may still carry bytes from one
socket to another.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, TypeVar

from rucola.runtime.background import Worker
from rucola.runtime.clock import SystemClock
from rucola.testing.virtual_clock import UnmovedClock

T = TypeVar("T")
_log = logging.getLogger(__name__)

_GRACE_S = 0.00015
"""Real seconds without any event before a jump. A selector would round them up to a millisecond."""
_JUMP_S = 0.5
"""Longest jump. Bytes that are on their way for some real milliseconds thus cause no timeout of seconds."""
_LOOK_S = 0.05
"""Real seconds for which the loop waits for a thread before it looks again."""
_BEGIN_S = 1_000.0
_TICK_S = 1e-7
"""Each reading of the monotonic clock takes this time, so that two readings differ."""


class Working:
    """Counts the threads that work for a test. Time stands still while the number is not zero."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def begin(self) -> None:
        """A thread begins to work."""
        with self._lock:
            self.count += 1

    def end(self) -> None:
        """A thread has ended its work, or begins to wait for something that takes virtual time."""
        with self._lock:
            self.count -= 1

    def wait(self, future: Future[T]) -> T:
        """Waits for ``future`` in a working thread; virtual time passes meanwhile."""
        woken = _Once(self.begin)
        future.add_done_callback(lambda _: woken())
        self.end()
        try:
            return future.result()
        finally:
            woken()


class _Once:
    """Calls a function once, whichever thread asks first."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._left = [function]

    def __call__(self) -> None:
        try:
            function = self._left.pop()
        except IndexError:
            return
        function()


class _JumpingSelector(selectors.DefaultSelector):
    """Moves the loop's time instead of waiting.

    Attributes:
        now: the loop's time in seconds.
        jumps: number of jumps so far.
        at_step: a function and the number of iterations until it is called.
    """

    def __init__(self, working: Working, in_real_time: bool) -> None:
        super().__init__()
        self._in_real_time = in_real_time
        self.now = _BEGIN_S
        self.jumps = 0
        self.at_step: tuple[int, Callable[[], None]] | None = None
        self._working = working

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.at_step is not None:
            left, function = self.at_step
            self.at_step = (left - 1, function) if left > 0 else None
            if not left:
                function()
        if self._in_real_time:
            return super().select(timeout)
        found = super().select(0)
        if found or timeout == 0:
            return found
        if self._working.count:
            return super().select(_LOOK_S)
        time.sleep(_GRACE_S)
        found = super().select(0)
        if found or self._working.count:
            return found
        if timeout is None:
            return super().select(_LOOK_S)
        self.jumps += 1
        self.now += min(timeout, _JUMP_S)
        return []


class VirtualEventLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with real sockets, in virtual time.

    Args:
        in_real_time: whether its time is the system's after all, because servers run in other processes.

    Attributes:
        working: the threads for which the time stands still.
    """

    def __init__(self, in_real_time: bool = False) -> None:
        self.working = Working()
        self._in_real_time = in_real_time
        self._jumping = _JumpingSelector(self.working, in_real_time)
        self._wall_began_ms = time.time_ns() // 1_000_000
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual time in seconds."""
        return super().time() if self._in_real_time else self._jumping.now

    def wall_ms(self) -> int:
        """Virtual wall clock; starts with the system's, since the store compares it with the times of files."""
        return self._wall_began_ms + round((self._jumping.now - _BEGIN_S) * 1000)

    def monotonic(self) -> float:
        """Virtual time in seconds; a little later at each call."""
        self._jumping.now += _TICK_S
        return self._jumping.now

    @property
    def jumps(self) -> int:
        """Number of jumps so far."""
        return self._jumping.jumps

    def call_at_step(self, steps: int, function: Callable[[], None]) -> None:
        """Calls ``function`` after this number of iterations of the loop, so that a test can meet any await."""
        self._jumping.at_step = (steps, function)

    def forget_step(self) -> None:
        """Undoes ``call_at_step``."""
        self._jumping.at_step = None

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Runs ``func`` in a thread; time stands still meanwhile."""
        self.working.begin()
        ended, started = _Once(self.working.end), threading.Event()

        def work() -> T:
            started.set()
            try:
                return func(*args)
            finally:
                ended()

        def done(future: asyncio.Future[T]) -> None:
            if future.cancelled() and not started.is_set():
                ended()  # the thread will not begin

        try:
            future = super().run_in_executor(executor, work)
        except BaseException:
            ended()
            raise
        future.add_done_callback(done)
        return future

    def call_exception_handler(self, context: Mapping[str, Any]) -> None:
        """Also keeps the context for ``unhandled``."""
        self.unhandled.append(f"{context.get('message')}: {context.get('exception')!r}")
        super().call_exception_handler(dict(context))

    @property
    def unhandled(self) -> list[str]:
        """Errors that no code has handled, as asyncio reports them."""
        found: list[str] = self.__dict__.setdefault("_unhandled", [])
        return found


class _CountedWorker:
    """Methods for ``Worker``: a worker counts as working from its wake-up to the end of the work."""

    def __init__(self, working: Working) -> None:
        self._working = working
        self._lock = threading.Lock()
        self._woken: set[int] = set()

    def wake(self, worker: Worker) -> None:
        """``Worker.wake``."""
        with self._lock:
            if id(worker) not in self._woken:
                self._woken.add(id(worker))
                self._working.begin()
            worker._wanted.set()

    def run(self, worker: Worker) -> None:
        """``Worker._run``."""
        while True:
            worker._wanted.wait(worker._interval_s)
            with self._lock:
                woken = id(worker) in self._woken
                self._woken.discard(id(worker))
                worker._wanted.clear()
            try:
                if worker._stopping:
                    return
                worker._work()
            except Exception:  # noqa: BLE001 - the thread outlives a defect in its work
                _log.exception("background work failed")
            finally:
                if woken:
                    self._working.end()


@contextmanager
def virtual_clocks(loop: VirtualEventLoop) -> Iterator[None]:
    """All clocks of the process follow ``loop``, also those of servers and clients that get no clock. Threads of stores
    count as working while somebody may wait for them.
    """
    before = SystemClock.wall_ms, SystemClock.monotonic, UnmovedClock.wall_ms
    wake, run = Worker.wake, Worker._run
    counted = _CountedWorker(loop.working)

    def wake_counted(worker: Worker) -> None:
        counted.wake(worker)

    def run_counted(worker: Worker) -> None:
        counted.run(worker)

    Worker.wake, Worker._run = wake_counted, run_counted  # type: ignore[method-assign, assignment]
    SystemClock.wall_ms = lambda self: loop.wall_ms()  # type: ignore[method-assign]
    SystemClock.monotonic = lambda self: loop.monotonic()  # type: ignore[method-assign]
    UnmovedClock.wall_ms = SystemClock.wall_ms
    try:
        yield
    finally:
        Worker.wake, Worker._run = wake, run  # type: ignore[method-assign]
        SystemClock.wall_ms, SystemClock.monotonic, UnmovedClock.wall_ms = before  # type: ignore[method-assign]
