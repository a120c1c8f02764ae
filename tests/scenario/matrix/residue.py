"""What a client leaves behind: tasks, timers, threads and connections."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

from rucola.testing.virtual_loop import VirtualEventLoop

_CLIENT = ("rucola.client", "rucola.remoting.client", "rucola.remoting.response_future", "rucola.sync")
_SHARED_THREADS = ("asyncio_", "MainThread")
_OWN_THREADS = "rucola-consume"


@dataclass(frozen=True)
class Residue:
    """What is there at one moment.

    Attributes:
        tasks: tasks that run a client's code.
        timers: owners of timers that call a client's code.
        threads: names and identities of threads.
        connections: number of connections to the broker.
    """

    tasks: frozenset[asyncio.Task[Any]]
    timers: tuple[Any, ...]
    threads: frozenset[threading.Thread]
    connections: int

    def more_than(self, before: Residue) -> list[str]:
        """What is here and was not there before."""
        found = [f"task left: {_name(task)}" for task in self.tasks - before.tasks]
        old = {id(owner) for owner in before.timers}
        found += [f"timer left: {owner!r}" for owner in self.timers if id(owner) not in old]
        found += [f"thread left: {thread.name}" for thread in self.threads - before.threads]
        if self.connections > before.connections:
            found.append(f"connections to the broker: {self.connections}, {before.connections} before")
        return found


def look(loop: VirtualEventLoop, connections: int) -> Residue:
    """What is there now; called on the loop."""
    tasks = frozenset(task for task in asyncio.all_tasks(loop) if _is_clients(_module(task)) and not task.done())
    timers = tuple(
        owner
        for handle in loop._scheduled  # type: ignore[attr-defined]
        if not handle.cancelled()
        for owner in [getattr(handle._callback, "__self__", handle._callback)]
        if _is_clients(getattr(type(owner) if not hasattr(owner, "__module__") else owner, "__module__", "") or "")
    )
    threads = frozenset(
        thread
        for thread in threading.enumerate()
        if thread.name.startswith(_OWN_THREADS) or not thread.name.startswith((*_SHARED_THREADS, "rucola-"))
    )
    return Residue(tasks, timers, threads, connections)


def _is_clients(module: str) -> bool:
    return module.startswith(_CLIENT)


def _module(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
    return str(frame.f_globals.get("__name__", "")) if frame is not None else ""


def _name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", repr(task))
