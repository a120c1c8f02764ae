"""What a test may not leave behind: threads, tasks, child processes and open stores of the product.

A store that a test leaves open goes on to sync and to write, also into what later tests replace.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rucola
from rucola.runtime import files

_OF_THE_PROCESS = ("rucola-client", "rucola-imports")
"""Threads that end with the process, or by themselves: the shared loop of ``rucola.sync``, and imports."""

_BEGUN_LATE = ("rucola-tables", "rucola-json", "rucola-cold-read")
"""Threads that a server begins when it first needs them; a server of the whole module may begin them in any test."""

_OF_THE_SESSION: set[tuple[str, str, object]] = set()
_SOURCE = str(Path(rucola.__file__).parent)
_GRACE_S = 5.0
_PAUSE_S = 0.02


@contextmanager
def nothing_left(tasks: bool = True) -> Iterator[None]:
    """Fails if what runs inside leaves something behind that does not end by itself within seconds.

    Args:
        tasks: False if the product's tasks may end with the event loop of ``asyncio.run``.
    """
    before = _present()
    ignored = _BEGUN_LATE if any(kind == "open store" for kind, _, _ in before) else ()
    cut: list[str] = []
    with _tasks_noted(cut):
        yield
    until = time.monotonic() + _GRACE_S
    while (left := _left(before, ignored)) and time.monotonic() < until:
        time.sleep(_PAUSE_S)
    names = [*left, *(cut if tasks else ())]
    assert not names, f"left behind: {', '.join(names)}"


@contextmanager
def for_the_session() -> Iterator[None]:
    """What begins inside belongs to a fixture of the whole session: the test that is the first to need it leaves it."""
    before = _present()
    yield
    _OF_THE_SESSION.update(_present() - before)


def _left(before: set[tuple[str, str, object]], ignored: tuple[str, ...]) -> list[str]:
    left = _present() - before
    return sorted(f"{kind} {name}" for kind, name, _ in left if not name.startswith(ignored or ("-",)))


def _present() -> set[tuple[str, str, object]]:
    """Returns kind, name and identity of everything that runs or is open."""
    stores = (("open store", str(path), path) for path in files._locked_here)
    return {*_threads(), *_processes(), *_tasks(), *stores} - _OF_THE_SESSION


def _threads() -> Iterator[tuple[str, str, object]]:
    for thread in threading.enumerate():
        if thread.name.startswith("rucola") and thread.name not in _OF_THE_PROCESS:
            yield "thread", thread.name, thread.ident


def _processes() -> Iterator[tuple[str, str, object]]:
    """Yields the children of this process that run the product; there are none where the system has no /proc.

    Each test asks twice. A child belongs to the thread that has started it, or to another if that has ended; the many
    threads of Arrow and others, which do not run Python, start none.
    """
    for thread in threading.enumerate():
        for child in _read(f"/proc/self/task/{thread.native_id}/children").split():
            command = _read(f"/proc/{child}/cmdline").replace("\0", " ")
            if "rucola" in command:
                yield "process", command[:200], child


def _read(path: str) -> str:
    """The text of a file of /proc; empty if the thread or process has ended."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        parts = list(iter(lambda: os.read(file, 65536), b""))
    except OSError:
        return ""
    finally:
        os.close(file)
    return b"".join(parts).decode(errors="replace")


def _tasks() -> Iterator[tuple[str, str, object]]:
    known: Any = getattr(asyncio.tasks, "_scheduled_tasks", None) or getattr(asyncio.tasks, "_all_tasks", set())
    for task in list(known):  # the second name is that of Python 3.11
        if task.done():
            known.discard(task)  # hundreds are kept by what is frozen, and each test would look at all
        elif not task.get_loop().is_closed() and _ours(task):
            yield "task", _name(task), id(task)


@contextmanager
def _tasks_noted(cut: list[str]) -> Iterator[None]:
    """Adds to ``cut`` the product's tasks that ``asyncio.run`` has to cancel at its end."""
    cancel_all = asyncio.runners._cancel_all_tasks

    def noting(loop: asyncio.AbstractEventLoop) -> None:
        cut.extend(f"task {_name(task)}" for task in asyncio.all_tasks(loop) if _ours(task))
        cancel_all(loop)

    asyncio.runners._cancel_all_tasks = noting
    try:
        yield
    finally:
        asyncio.runners._cancel_all_tasks = cancel_all


def _ours(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith(_SOURCE)


def _name(task: asyncio.Task[Any]) -> str:
    return f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')})"
