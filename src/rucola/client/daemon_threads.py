"""A pool of daemon threads for listeners that are plain functions.

The interpreter waits at its end for the threads of a ``ThreadPoolExecutor``, so one listener that never returns would
keep the process alive for ever. It does not wait for daemon threads: a listener that runs at the end of the process is
cut off, as if the process had been killed, and its messages are delivered again. ``shutdown`` of a consumer waits for
its listeners before that.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from rucola.client.application_call import for_future

T = TypeVar("T")

_Job = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(Executor):
    """Runs functions in at most ``count`` threads, which start when they are needed.

    Args:
        count: largest number of threads.
        name: beginning of the threads' names.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False
        self._end = weakref.finalize(self, _end_threads, self._jobs, self._threads)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Runs ``fn`` in a thread; the future gets its result, or whatever it raises."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool of threads is closed")
            self._jobs.put((future, lambda: fn(*args, **kwargs)))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
                thread = threading.Thread(
                    target=_run, args=(self._jobs, self._idle), name=f"{self._name}_{len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends each thread after the function that it runs.

        Args:
            wait: whether to wait for the threads.
            cancel_futures: whether functions that have not begun are cancelled; otherwise they run first.
        """
        with self._lock:
            self._closed = True
            if cancel_futures:
                _cancel_all(self._jobs)
            self._end()
        if wait:
            for thread in self._threads:
                thread.join()


def _run(jobs: SimpleQueue[_Job | None], idle: threading.Semaphore) -> None:
    while (job := jobs.get()) is not None:
        _do(*job)
        del job  # the future and the messages must not live until the next job
        idle.release()


def _do(future: Future[Any], function: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - the waiter gets it; a thread never ends by it
        future.set_exception(for_future(error))
    else:
        future.set_result(result)


def _cancel_all(jobs: SimpleQueue[_Job | None]) -> None:
    while True:
        try:
            job = jobs.get_nowait()
        except Empty:
            return
        if job is not None:
            job[0].cancel()


def _end_threads(jobs: SimpleQueue[_Job | None], threads: list[threading.Thread]) -> None:
    for _ in threads:
        jobs.put(None)
