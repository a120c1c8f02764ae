"""The stores of ``--store``: questions that a page waits for, and long jobs with progress."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from rucola.console.store.child import Child, ChildError

MODULE: Final = "rucola.store.explorer"
JOBS: Final = ("verify", "shares")
QUESTION_S: Final = 20.0
JOB_S: Final = 3600.0


@dataclass(slots=True)
class StoreJob:
    """A long job over a store, the newest of its kind.

    Attributes:
        state: ``running``, ``done``, ``failed`` or ``cancelled``.
        done: work done, of ``total``; bytes for a check, segments for shares. ``total`` is 0 until it is known.
        result: the answer, once it is done.
        error: why it failed.
    """

    state: str = "running"
    done: int = 0
    total: int = 0
    result: Any = None
    error: str = ""
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class StoreExplorer:
    """Reads the given directories, and nothing else. Event loop only.

    Args:
        directories: absolute paths of stores; visitors name them by their number.
    """

    def __init__(self, directories: tuple[str, ...]) -> None:
        self.directories = directories
        self._children = [Child(MODULE) for _ in directories]
        self._jobs: dict[tuple[int, str], StoreJob] = {}

    async def ask(self, store: int, question: dict[str, Any]) -> Any:
        """Asks about store number ``store``; see ``rucola.store.explorer``.

        Raises:
            ChildError: the store does not have it, or cannot be read.
        """
        return await self._children[store].ask({**question, "store": self.directories[store]}, QUESTION_S)

    def job(self, store: int, kind: str) -> StoreJob | None:
        """The newest job of a kind; None if there was none."""
        return self._jobs.get((store, kind))

    def start(self, store: int, kind: str) -> StoreJob:
        """Starts a job, unless one of its kind is running."""
        job = self._jobs.get((store, kind))
        if job is None or job.state != "running":
            job = self._jobs[store, kind] = StoreJob()
            job.task = asyncio.create_task(self._run(store, kind, job))
        return job

    def cancel(self, store: int, kind: str) -> StoreJob | None:
        """Ends a job that is running; returns the newest job of its kind."""
        job = self._jobs.get((store, kind))
        if job is not None and job.state == "running" and job.task is not None:
            job.state = "cancelled"
            job.task.cancel()
        return job

    async def close(self) -> None:
        """Ends all processes."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for child in self._children:
            await child.close()

    async def _run(self, store: int, kind: str, job: StoreJob) -> None:
        def progress(done: int, total: int) -> None:
            job.done, job.total = done, total

        child = Child(MODULE)
        try:
            job.result = await child.ask({"ask": kind, "store": self.directories[store]}, JOB_S, progress)
            job.state = "done"
        except ChildError as error:
            job.state, job.error = "failed", str(error)
        finally:
            await child.close()
