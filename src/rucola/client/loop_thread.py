"""An event loop in a background thread, on which the blocking clients of ``rucola.sync`` run.

All clients share one thread, which starts with the first client and ends with the process. Threads do not survive a
fork: in the child, a client created before the fork raises an error, and a new client starts a new thread.

Some of the application's code runs on this thread: callbacks of the futures of ``submit``, queue selectors, and
listeners that are coroutine functions. Such code may raise anything; the thread goes on. It must not make blocking
calls: they would wait for the thread on which they are made, and with it all clients of the process. Such calls raise
``ClientError``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

from rucola.client.application_call import FailedCall, called, is_failed_call
from rucola.errors import ClientError
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own. Other threads may call all methods of this class; the loop's own thread
    may call ``start`` and ``submit``, which do not block. Clients get the ``LoopThread`` from ``shared_loop``.
    """

    def __init__(self, name: str = "rucola-client") -> None:
        self.pid = os.getpid()
        self._loop = _new_event_loop()
        self._waiting: set[Future[Any]] = set()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], missed: Callable[[T], object] | None = None) -> T:
        """Runs ``work`` on the loop and waits for its result; if the wait is interrupted, cancels ``work``.

        Args:
            work: the work.
            missed: called on the loop with the result if there is one although the wait was interrupted; a coroutine
                that it returns is run.

        Raises:
            ClientError: this is the loop's own thread, or this process is a fork of the process that runs the thread.
        """
        if self.is_own_thread():
            work.close()
            raise _blocks_itself("a blocking call of rucola.sync")
        handover = None if missed is None else _Handover(missed)
        future: Future[T] | None = None
        try:
            future = self.start(work if handover is None else handover.watch(work))
            return future.result()
        except BaseException:
            if handover is not None and os.getpid() == self.pid:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(handover.refuse)
            if future is not None:
                future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts ``work`` on the loop; returns a future on which any other thread may wait.

        Raises:
            ClientError: this process is a fork of the process that runs the thread, or the thread has ended.
        """
        try:
            self._check_process()
            self._check_alive()
        except ClientError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(_contained(work), self._loop)
        self._expect(future)
        return future

    def call(self, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """Calls a function on the loop, and waits for its result."""

        async def call() -> T:
            return function(*arguments, **options)

        return self.run(call())

    def submit(self, function: Callable[..., asyncio.Future[T]], *arguments: Any, **options: Any) -> Future[T]:
        """Calls ``function``, which returns an asyncio future, on the loop; returns a future on which any other thread
        may wait. The future's callbacks run on the loop; what they raise is logged.
        """
        self._check_process()
        self._check_alive()
        handed: Future[T] = LoopFuture(self)

        def begin() -> None:
            if handed.cancelled():
                return
            outcome = called(function, *arguments, **options)
            if not isinstance(outcome, FailedCall):
                outcome.add_done_callback(finish)
            elif handed.set_running_or_notify_cancel():
                handed.set_exception(_contained_error(outcome.error))

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

        self._expect(handed)
        self._loop.call_soon_threadsafe(begin)
        return handed

    def close(self) -> None:
        """Ends the loop and its thread. The loop of ``shared_loop`` must not be closed."""
        self.run(self._loop.shutdown_default_executor())
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def is_own_thread(self) -> bool:
        """Whether the calling code runs on the loop."""
        return threading.get_ident() == self._thread.ident and os.getpid() == self.pid

    def _serve(self) -> None:
        """Runs the loop until ``close``, whatever the code on it raises or calls. If the thread ends nevertheless,
        nobody waits for ever.
        """
        try:
            while not self._closing and not self._loop.is_closed():
                try:
                    self._loop.run_forever()
                except BaseException as error:  # noqa: BLE001 - for example SystemExit, raised in a callback of asyncio
                    event(logger, logging.ERROR, "event loop was interrupted, goes on", error)
        finally:
            self._closing = True
            for future in list(self._waiting):
                self._fail(future)

    def _fail(self, future: Future[Any]) -> None:
        if not future.done() and (future.running() or future.set_running_or_notify_cancel()):
            future.set_exception(_has_ended())

    def _expect(self, future: Future[Any]) -> None:
        """Makes sure that ``future`` fails if the thread ends."""
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        if self._closing:
            self._fail(future)

    def _check_alive(self) -> None:
        if self._closing and not self.is_own_thread():
            raise _has_ended()

    def _check_process(self) -> None:
        if os.getpid() != self.pid:
            raise ClientError(
                f"this client was created in process {self.pid}, before the fork of process {os.getpid()}; the "
                f"client's connections and thread exist only in process {self.pid}: create the client after the fork"
            )


class LoopFuture(Future[T]):
    """A future of ``submit``. Its callbacks run on the loop; whatever they raise is logged, and the others are called.

    Args:
        loop: sets the result.
    """

    def __init__(self, loop: LoopThread) -> None:
        super().__init__()
        self._owner = loop

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """Calls ``fn`` with this future on the loop when it is done; at once, if it is done already."""

        def guarded(future: Future[T]) -> None:
            outcome = called(fn, future)
            if type(outcome) is FailedCall:
                event(logger, logging.ERROR, "callback of a future failed", outcome.error)

        super().add_done_callback(guarded)

    def result(self, timeout: float | None = None) -> T:
        """Waits for the result and returns it.

        Raises:
            ClientError: this is the loop's own thread, and there is no result yet.
        """
        self._check_thread()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the result; returns the error, or None if there is none.

        Raises:
            ClientError: this is the loop's own thread, and there is no result yet.
        """
        self._check_thread()
        return super().exception(timeout)

    def _check_thread(self) -> None:
        if not self.done() and self._owner.is_own_thread():
            raise _blocks_itself("waiting for a future of submit")


def _blocks_itself(what: str) -> ClientError:
    return ClientError(
        f"{what} on the thread of its own event loop would wait for itself, and block every client of this process. "
        "Callbacks of submit, queue selectors and listeners that are coroutine functions run on this thread. Move the "
        "call to another thread: await asyncio.to_thread(...) in a coroutine, an executor of your own in a callback; "
        "or call submit, which does not block"
    )


def _has_ended() -> ClientError:
    return ClientError("the thread of rucola.sync has ended, so no client of this process works any more")


class _Handover(Generic[T]):
    """A result on its way from the loop to a waiting thread. All methods run on the loop.

    Args:
        missed: called with the result if the thread has stopped waiting.
    """

    def __init__(self, missed: Callable[[T], object]) -> None:
        self._missed = missed
        self._refused = False
        self._results: list[T] = []
        self._task: asyncio.Task[object] | None = None

    async def watch(self, work: Coroutine[Any, Any, T]) -> T:
        result = await work
        if self._refused:
            self._take_back(result)
        else:
            self._results.append(result)
        return result

    def refuse(self) -> None:
        self._refused = True
        for result in self._results:
            self._take_back(result)

    def _take_back(self, result: T) -> None:
        outcome = self._missed(result)
        if asyncio.iscoroutine(outcome):
            self._task = asyncio.ensure_future(outcome)


async def _contained(work: Coroutine[Any, Any, T]) -> T:
    """Awaits ``work``; what would end the loop becomes an error of the caller."""
    task = asyncio.current_task()
    try:
        return await work
    except Exception:
        raise
    except BaseException as error:
        if not is_failed_call(error, task):
            raise
        raise _contained_error(error) from error


def _contained_error(error: BaseException) -> Exception:
    """Returns ``error`` as the caller may raise it in its own thread: SystemExit would end that thread."""
    if isinstance(error, Exception):
        return error
    failure = ClientError(f"the application's code on the event loop of rucola.sync raised {error!r}")
    failure.__cause__ = error
    return failure


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
