"""What clients leave behind: tasks, timers and threads."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Collection
from typing import Any

from rucola.testing.virtual_loop import VirtualEventLoop

_CLIENT = ("rucola.client", "rucola.remoting.client", "rucola.remoting.response_future", "rucola.sync")
_ENDS_S = 5.0
_OF_PROCESS = ("asyncio_", "MainThread", "rucola-client", "second loop")
"""Threads that live as long as the process or its loop."""


def left(loop: VirtualEventLoop, before: Collection[threading.Thread]) -> list[str]:
    """What is still there of clients, and was not ``before``; called on the loop when all have ended."""
    gc.collect()
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task()}
    found = [f"task left: {_name(task)}" for task in tasks if _is_clients(_module(task))]
    for handle in loop._scheduled:  # type: ignore[attr-defined]
        owner = getattr(handle._callback, "__self__", handle._callback)
        if not handle.cancelled() and _is_clients(getattr(owner, "__module__", None) or ""):
            found.append(f"timer left: {handle._callback!r}")
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith(_OF_PROCESS)]
    return found + [f"thread left: {thread.name}" for thread in threads if thread not in before and _lives(thread)]


def _lives(thread: threading.Thread) -> bool:
    """Whether a thread does not end. A busy machine may need real time for this, and virtual time passes at once."""
    thread.join(_ENDS_S)
    return thread.is_alive()


def _is_clients(module: str) -> bool:
    return module.startswith(_CLIENT)


def _module(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
    return str(frame.f_globals.get("__name__", "")) if frame is not None else ""


def _name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", repr(task))
