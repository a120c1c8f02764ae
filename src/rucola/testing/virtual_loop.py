"""An event loop in virtual time: while nothing can run, its time jumps to the next timer, so that no test waits.

Servers, clients and the application of a test share one loop. Sockets and threads are real. The loop therefore jumps
only if no socket is ready, no byte is on its way and no thread works for the test: it counts the calls of
``run_in_executor``, the threads of servers, and those that tell ``Working``.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from rucola.runtime.background import Worker
from rucola.runtime.background_imports import BackgroundImports
from rucola.runtime.clock import SystemClock
from rucola.testing.virtual_clock import UnmovedClock

T = TypeVar("T")
logger = logging.getLogger(__name__)

_GRACE_S = 0.002
"""Real seconds without any event before a jump, unless it is sure that no byte is on its way."""
_LATE_S = 0.25
"""Real seconds that a loaded kernel may take for a byte, or a peer outside of the loop for its answer."""
_JUMP_S = 0.5
"""Longest jump. What is on its way for some real milliseconds more thus causes no timeout of seconds."""
_TCP_INFO_BYTES = 216
_NOT_SENT = struct.Struct("=144xI")
_RECEIVED = struct.Struct("=128xQ")
_SENT = struct.Struct("=200xQQ")
"""Fields of Linux's ``struct tcp_info``: bytes not sent yet; bytes received; bytes sent, and sent again."""
_LOOK_S = 0.05
"""Real seconds for which the loop waits for a thread before it looks again."""
_BEGIN_S = 1_000.0
_TICK_S = 1e-7
"""Each reading of the monotonic clock takes this time, so that two readings differ."""


class Working:
    """Counts the threads that work for a test. Time stands still while the number is not zero.

    Attributes:
        count: the number.
        interruptible: makes the context in which a thread waits, for example one that lets a signal through.
    """

    interruptible: Callable[[], AbstractContextManager[object]] = nullcontext

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
            with self.interruptible():
                return type(future).result(future)
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
        transports: the loop's transports.
        at_step: a function and the number of iterations until it is called.
    """

    def __init__(self, working: Working, in_real_time: bool) -> None:
        super().__init__()
        self._in_real_time = in_real_time
        self.now = _BEGIN_S
        self.jumps = 0
        self.at_step: tuple[int, Callable[[], None]] | None = None
        self.transports: Mapping[int, asyncio.Transport] = {}
        self._working = working
        self._given_up: set[object] = set()
        self._streams: WeakKeyDictionary[asyncio.Transport, tuple[Any, object, object]] = WeakKeyDictionary()
        """What ``_stream`` has said of the transports: it is asked for at each jump, and does not change."""

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
        found = self._await_late()
        if found or self._working.count:
            return found
        if timeout is None:
            return super().select(_LOOK_S)
        self.jumps += 1
        self.now += min(timeout, _JUMP_S)
        return []

    def _await_late(self) -> list[tuple[selectors.SelectorKey, int]]:
        """Waits for what may be on its way: once ``_LATE_S`` for the same, and then only the grace before each jump."""
        until = time.monotonic() + _LATE_S
        while (under_way := self._under_way()) and not self._working.count:
            if found := super().select(_GRACE_S):
                return found
            if under_way == self._given_up or time.monotonic() >= until:
                self._given_up = under_way
                break
        return super().select(0)

    def _under_way(self) -> set[object]:
        """What may be on its way from one socket of the loop to another: connections, and positions in their bytes.
        Usually it arrives at once, but a loaded kernel takes its time.
        """
        keys = list(self.get_map().values())
        found: set[object] = {(key.fd, "to be written") for key in keys if key.events & selectors.EVENT_WRITE}
        ends: dict[tuple[object, object], tuple[int, int]] = {}
        for transport in list(self.transports.values()):
            stream = self._streams.get(transport)
            if stream is None:
                stream = self._streams[transport] = _stream(transport)
            connection, here, there = stream
            if connection is None or transport.is_closing():
                continue
            traffic = _traffic(connection)
            if traffic is None:
                found.add((connection.fileno(), "not sent"))
                continue
            ends[here, there] = traffic
        for (here, there), (sent, _) in ends.items():
            if sent != ends.get((there, here), (0, -1))[1]:
                found.add((here, there, sent))
        return found


def _stream(transport: asyncio.Transport) -> tuple[Any, object, object]:
    """The connection of a transport, with both addresses; None for something else than a stream."""
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.type != socket.SOCK_STREAM:
        connection = None
    return connection, transport.get_extra_info("sockname"), transport.get_extra_info("peername")


def _traffic(connection: Any) -> tuple[int, int] | None:
    """Numbers of bytes that a connection has sent and received; None if they are not known, or not all are sent."""
    try:
        facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        sent, again = _SENT.unpack_from(facts)
        [received], [not_sent] = _RECEIVED.unpack_from(facts), _NOT_SENT.unpack_from(facts)
    except (OSError, AttributeError, struct.error):
        return None
    return None if not_sent else (sent - again, received)


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
        self._jumping.transports = self._transports  # type: ignore[attr-defined]

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
            worker._rests = False
            worker._wanted.set()

    def run(self, worker: Worker) -> None:
        """``Worker._run``."""
        while True:
            worker._wanted.wait(None if worker._rests else worker._interval_s)
            with self._lock:
                woken = id(worker) in self._woken
                self._woken.discard(id(worker))
                worker._wanted.clear()
            try:
                if worker._stopping:
                    return
                worker._work()
            except Exception:
                logger.exception("background work failed")
            finally:
                if woken:
                    self._working.end()


@contextmanager
def virtual_time(loop: VirtualEventLoop) -> Iterator[None]:
    """All clocks of the process follow ``loop``, also those of servers and clients that get no clock. The threads of
    servers count as working while somebody may wait for them.
    """
    clocks = SystemClock.wall_ms, SystemClock.monotonic, UnmovedClock.wall_ms
    threads = Worker.wake, Worker._run, BackgroundImports._future
    counted = _CountedWorker(loop.working)

    def wake(worker: Worker) -> None:
        counted.wake(worker)

    def run(worker: Worker) -> None:
        counted.run(worker)

    def imported(imports: BackgroundImports, module: str, first: bool) -> asyncio.Future[None]:
        known = module in imports._waiting
        future = threads[2](imports, module, first)
        if not known:
            loop.working.begin()
            future.add_done_callback(lambda _: loop.working.end())
        return future

    SystemClock.wall_ms = lambda self: loop.wall_ms()  # type: ignore[method-assign]
    SystemClock.monotonic = lambda self: loop.monotonic()  # type: ignore[method-assign]
    UnmovedClock.wall_ms = SystemClock.wall_ms
    Worker.wake, Worker._run = wake, run  # type: ignore[method-assign, assignment]
    BackgroundImports._future = imported  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        SystemClock.wall_ms, SystemClock.monotonic, UnmovedClock.wall_ms = clocks  # type: ignore[method-assign]
        Worker.wake, Worker._run, BackgroundImports._future = threads  # type: ignore[method-assign]
