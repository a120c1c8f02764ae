"""Tells who calls a method of a client: a task or, for the blocking clients, a thread.

A method that must know its caller is a plain function that returns a coroutine, so that it sees the caller and not a
task that only carries the call: ``asyncio.wait_for`` before Python 3.12 and ``asyncio.create_task`` run a coroutine in
a task of its own.
"""

from __future__ import annotations

import asyncio
import threading
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
