"""An event loop in a background thread, on which the blocking clients of ``rucola.sync`` run.

All clients share one thread, which starts with the first client and ends with the process. Threads do not survive a
fork: in the child, a client created before the fork raises an error, and a new client starts a new thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from rucola.client.calling_thread import CALLING_THREAD
from rucola.errors import ClientError

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own. Other threads may call all methods of this class. Clients get the
    ``LoopThread`` from ``shared_loop``.
    """

    def __init__(self, name: str = "rucola-client") -> None:
        self.pid = os.getpid()
        self._loop = _new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs ``work`` on the loop and waits for its result; if the wait is interrupted, cancels ``work``.

        Raises:
            ClientError: this process is a fork of the process that runs the thread.
        """
        self._check_process(work)
        mark = CALLING_THREAD.set(threading.current_thread())
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        finally:
            CALLING_THREAD.reset(mark)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts ``work`` on the loop; returns a future on which any thread may wait.

        Raises:
            ClientError: this process is a fork of the process that runs the thread.
        """
        self._check_process(work)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Calls a function on the loop, and waits for its result."""

        async def call() -> T:
            return function(*arguments, **options)

        return self.run(call())

    def submit(self, function: Callable[..., asyncio.Future[T]], *arguments: Any, **options: Any) -> Future[T]:
        """Calls ``function``, which returns an asyncio future, on the loop; returns a future on which any thread may
        wait.
        """
        self._check_process()
        handed: Future[T] = Future()

        def begin() -> None:
            if handed.cancelled():
                return
            try:
                inner = function(*arguments, **options)
            except Exception as error:  # noqa: BLE001  # passed on to the waiting thread
                if handed.set_running_or_notify_cancel():
                    handed.set_exception(error)
            else:
                inner.add_done_callback(finish)

        def finish(inner: asyncio.Future[T]) -> None:
            if inner.cancelled():
                handed.cancel()
                return
            error = inner.exception()
            if not handed.set_running_or_notify_cancel():
                return
            if error is None:
                handed.set_result(inner.result())
            else:
                handed.set_exception(error)

        self._loop.call_soon_threadsafe(begin)
        return handed

    def close(self) -> None:
        """Ends the loop and its thread. The loop of ``shared_loop`` must not be closed."""
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def iterate(self, function: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """Iterates over the asynchronous iterator that ``function`` creates on the loop."""
        iterator = self.call(function)

        async def step() -> T:
            return await anext(iterator)

        while True:
            try:
                item = self.run(step())
            except StopAsyncIteration:
                return
            yield item

    def _check_process(self, work: Coroutine[Any, Any, object] | None = None) -> None:
        if os.getpid() != self.pid:
            if work is not None:
                work.close()
            raise ClientError(
                f"this client was created in process {self.pid}, before the fork of process {os.getpid()}; the "
                f"client's connections and thread exist only in process {self.pid}: create the client after the fork"
            )


_shared: list[LoopThread] = []
_sharing = threading.Lock()


def shared_loop() -> LoopThread:
    """The event loop of this process; started at the first call."""
    with _sharing:
        if not _shared or _shared[0].pid != os.getpid():
            _shared[:] = [LoopThread()]
        return _shared[0]


def _forked() -> None:
    """Runs in the child of a fork: replaces the lock, because a thread of the parent may have held it."""
    global _sharing  # noqa: PLW0603
    _sharing = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # uvloop is not available on every platform
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
