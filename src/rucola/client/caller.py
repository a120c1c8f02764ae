"""Tells who calls a method of a client: a task or, for the blocking clients, a thread.

A method that must know its caller is a plain function that returns a coroutine, so that it sees the caller and not a
task that only carries the call: ``asyncio.wait_for`` before Python 3.12 and ``asyncio.create_task`` run a coroutine in
a task of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

Caller = asyncio.Task[Any] | threading.Thread


def caller() -> Caller:
    """The current task, or the current thread if it runs no event loop."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:  # no running event loop
        return threading.current_thread()


def has_ended(one: Caller) -> bool:
    """Whether a caller can make no further calls."""
    return one.done() if isinstance(one, asyncio.Task) else not one.is_alive()


def has_succeeded(one: Caller) -> bool:
    """Whether a caller is a task that ended without an error. How a thread ended is not known."""
    return isinstance(one, asyncio.Task) and one.done() and not one.cancelled() and one.exception() is None


def has_failed(one: Caller) -> bool:
    """Whether a caller has ended otherwise than with success, so that nobody handles the messages that it has. After a
    success, somebody may: the task may only have carried a call, and have returned its messages.
    """
    return has_ended(one) and not has_succeeded(one)


LOOK_S = 1.0
"""Interval in seconds at which ``Callers`` looks whether threads have ended."""


class Callers:
    """Notices that a task or thread that has messages ends. Used on one event loop.

    Args:
        on_end: called after one or several of them have ended.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._tasks: set[asyncio.Task[Any]] = set()
        self._threads: set[threading.Thread] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def add(self, one: Caller) -> None:
        """From now on, notices the end of ``one``. Does nothing after ``close``."""
        if self._is_closed:
            return
        if isinstance(one, asyncio.Task):
            if one not in self._tasks:
                self._tasks.add(one)
                one.add_done_callback(self._ended)
        elif one is not threading.main_thread():  # which lives as long as the process
            self._threads.add(one)
            self._look_later()

    def close(self) -> None:
        """Notices nothing more."""
        self._is_closed = True
        for task in self._tasks:
            task.remove_done_callback(self._ended)
        self._tasks.clear()
        self._threads.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._on_end()

    def _look_later(self) -> None:
        if self._timer is None and self._threads:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        ended = {thread for thread in self._threads if not thread.is_alive()}
        self._threads -= ended
        if ended:
            self._on_end()
        self._look_later()
