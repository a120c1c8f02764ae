"""Writes a server's tables on a thread, many changes in one write, so that the event loop never waits for the disk.

Each change gets a future, which completes when the write that includes the change ends. The first change is written
immediately; changes during a write share the next write. A thread encodes and syncs the file; the event loop only takes
the snapshot. After a write, the next write of the table waits for twice the duration of that write, but at most for
``REST_MAX_S``. So a table of 100,000 topics does not occupy a processor all the time, and a small table is written
nearly as often as the disk allows.

If a write fails, the futures of its changes fail with the error. A later write that succeeds does not change this.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from rucola.runtime.background import Worker
from rucola.runtime.supervision import Supervisor

Pieces = Iterable[bytes]
"""The content of a file, encoded piece by piece during the write."""
Snapshot = Callable[[], Pieces]
"""Takes a snapshot of the table; a thread encodes the pieces of the snapshot later."""

Ended = Callable[[Exception | None], None]
Keep = Callable[[Snapshot, Ended], "KeptTable"]
"""Creates the writer for the file of one table."""
REST_MAX_S = 0.5
_REST_SHARE = 2.0
_Value = TypeVar("_Value")


class TableWriter:
    """Owns the thread that writes all tables of a server. Event loop only.

    Call ``table`` for each table, then ``start``. At the end, call ``stop``, then ``write`` for the remaining changes.

    Args:
        supervisor: receives failures.
        monotonic: returns a time in seconds that never goes back.
    """

    def __init__(self, supervisor: Supervisor, monotonic: Callable[[], float]) -> None:
        self.supervisor = supervisor
        self.monotonic = monotonic
        self.loop: asyncio.AbstractEventLoop
        self.works = False
        self._tables: list[KeptTable] = []
        self._jobs: deque[_Write] = deque()
        """The loop fills this queue, and the thread empties it."""
        self._worker = Worker("rucola-tables", self._work)
        self._started = False

    def table(self, name: str, replace: Callable[[Pieces], None], snapshot: Snapshot, ended: Ended) -> KeptTable:
        """Creates a table.

        Args:
            name: name of the file.
            replace: writes the file, in the writer's thread or in ``write``; raises ``DiskError``.
            snapshot: called on the loop when a write begins.
            ended: called on the loop after a write, before the futures complete; its argument is the error, or None.
        """
        table = KeptTable(self, name, replace, snapshot, ended)
        self._tables.append(table)
        return table

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts to write changes."""
        self.loop = loop
        self.works = True

    def stop(self) -> None:
        """Begins no further writes; returns when the running writes have ended."""
        self.works = False
        self._worker.stop()

    def submit(self, job: _Write) -> None:
        """Hands a write to the thread."""
        if not self._started:
            self._started = True
            self._worker.start()
        self._jobs.append(job)
        self._worker.wake()

    def write_failed_again(self) -> None:
        """Repeats the failed writes of all tables; the futures of these writes have already failed."""
        for table in self._tables:
            table.write_failed_again()

    def write(self) -> None:
        """Writes the remaining changes in the calling thread; failures go to the supervisor."""
        for table in self._tables:
            table.write()

    def _work(self) -> None:
        while self._jobs:
            job = self._jobs.popleft()
            job.run()
            self.loop.call_soon_threadsafe(job.table.written, job)


class KeptTable:
    """One table and its file; created by ``TableWriter.table``. Event loop only."""

    def __init__(
        self, writer: TableWriter, name: str, replace: Callable[[Pieces], None], snapshot: Snapshot, ended: Ended
    ) -> None:
        self._writer = writer
        self._work = f"writing of {name}"
        self._replace = replace
        self._snapshot = snapshot
        self._ended = ended
        self._open: asyncio.Future[None] | None = None
        """The future of all changes that are not yet part of a write."""
        self._job: _Write | None = None
        self._planned = False
        self._failed = False
        self._rests_until_s = float("-inf")

    def changed(self) -> asyncio.Future[None]:
        """Registers a change; the future completes when the change is synced, or fails with the error of the write."""
        if self._open is None:
            self._open = self.new_future()
            self._plan()
        return self._open

    def new_future(self) -> asyncio.Future[None]:
        """Returns a future that the caller completes when a write has ended; nobody has to retrieve its error."""
        future: asyncio.Future[None] = asyncio.Future(loop=self._writer.loop)
        future.add_done_callback(_retrieve)
        return future

    def write_failed_again(self) -> None:
        """Begins a new write if the last write failed."""
        if self._failed:
            self.changed()

    def write(self) -> None:
        """Writes the changes now, in the calling thread. Call it only while no other thread writes, such as after
        ``TableWriter.stop``.
        """
        if self._open is None and self._job is None and not self._failed:
            return
        waiting = [] if self._job is None else self._job.waiting
        job = self._new_job(waiting)
        job.run()
        self.written(job)

    def written(self, job: _Write) -> None:
        """Completes the futures of a finished write, and plans the next write."""
        if job is not self._job:
            return  # ``write`` has been called directly and has handled this job
        self._job = None
        self._failed = job.error is not None
        self._rests_until_s = self._writer.monotonic() + min(_REST_SHARE * job.took_s, REST_MAX_S)
        if job.error is None:
            self._writer.supervisor.succeeded(self._work)
        else:
            self._writer.supervisor.failed(self._work, job.error)
        self._ended(job.error)
        for future in job.waiting:
            if future.done():
                continue
            if job.error is None:
                future.set_result(None)
            else:
                future.set_exception(job.error)
        if self._open is not None:
            self._plan()

    def _plan(self) -> None:
        if self._planned or self._job is not None or not self._writer.works:
            return
        self._planned = True
        self._writer.loop.call_later(max(self._rests_until_s - self._writer.monotonic(), 0), self._begin)

    def _begin(self) -> None:
        self._planned = False
        if self._open is not None and self._job is None and self._writer.works:
            self._writer.submit(self._new_job([]))

    def _new_job(self, waiting: list[asyncio.Future[None]]) -> _Write:
        if self._open is not None:
            waiting = [*waiting, self._open]
            self._open = None
        self._job = _Write(self, self._snapshot(), self._replace, waiting, self._writer.monotonic)
        return self._job


class _Write:
    """One write of a table.

    Attributes:
        error: the error of a failed write.
        took_s: duration of the write in seconds.
    """

    def __init__(
        self,
        table: KeptTable,
        content: Pieces,
        replace: Callable[[Pieces], None],
        waiting: list[asyncio.Future[None]],
        monotonic: Callable[[], float],
    ) -> None:
        self.table = table
        self.waiting = waiting
        self.error: Exception | None = None
        self.took_s = 0.0
        self._content = content
        self._replace = replace
        self._monotonic = monotonic

    def run(self) -> None:
        """Runs the write. Called once, on any thread."""
        began_s = self._monotonic()
        try:
            self._replace(self._content)
        except Exception as error:  # noqa: BLE001 - the futures of the changes receive the error
            self.error = error
        self.took_s = self._monotonic() - began_s


class Undo(Generic[_Value]):
    """Former values of entries whose changes are not yet synced. Event loop only."""

    def __init__(self) -> None:
        self._open: dict[str, _Value | None] = {}
        self._writing: dict[str, _Value | None] = {}

    def note(self, name: str, before: _Value | None) -> None:
        """Notes that entry ``name`` is about to change; ``before`` is its present value, None for a new entry."""
        self._open.setdefault(name, before)

    def forget(self, name: str) -> None:
        """Forgets an entry's former value: the entry keeps its new value even if the write fails."""
        self._open.pop(name, None)
        self._writing.pop(name, None)

    def begin(self) -> None:
        """Notes that a write begins."""
        self._writing = self._open | self._writing
        self._open = {}

    def end(self, table: dict[str, _Value], failed: bool) -> bool:
        """Handles the end of a write; if the write failed, the entries in ``table`` get their former values back.
        Returns whether this call changed ``table``.
        """
        writing, self._writing = self._writing, {}
        if not failed:
            return False
        undone = False
        for name, before in writing.items():
            # the entry has changed again since the write began, and the next write includes that change
            if name in self._open:
                self._open[name] = before
                continue
            undone = True
            if before is None:
                table.pop(name, None)
            else:
                table[name] = before
        return undone


def _retrieve(future: asyncio.Future[None]) -> None:
    """Retrieves the error of a future, so that asyncio does not log it again; the supervisor has reported the error."""
    if not future.cancelled():
        future.exception()
