"""Runs cells in processes of their own, so that one that hangs, or takes its process along, is a failed cell only."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.scenario.matrix.cell import Report, run_cell
from tests.scenario.matrix.real import RealWorld
from tests.scenario.matrix.table import column_named, promise, row_named

LIMIT_S, SWEEP_S, REAL_S = 30.0, 300.0, 600.0
"""Real seconds after which a cell counts as hanging: in virtual time, in the column ``shutdown``, whose cells are many
lives, and with servers in processes of their own.
"""
_END_S = 30.0
_STACK_S = 2.0
_LOOK_S = 1.0


@dataclass(frozen=True)
class Job:
    """A cell to run, by names.

    Attributes:
        row, column, variant: which cell.
        broker: kind of the servers in processes of their own; empty for servers on the cell's loop.
        number: makes names of topics and groups unique.
    """

    row: str
    column: str
    variant: str = ""
    broker: str = ""
    number: int = 0

    @property
    def limit_s(self) -> float:
        """Real seconds after which the cell counts as hanging."""
        if self.broker:
            return REAL_S
        return SWEEP_S if self.column == "shutdown" else LIMIT_S

    def failed(self, finding: str) -> Report:
        """The report of a cell that could not report itself."""
        promised = str(promise(row_named(self.row), column_named(self.column)))
        return Report(self.row, self.column, self.variant, promised, [finding])


def run_job(job: Job, world: RealWorld | None = None) -> Report:
    """Runs a cell in this process."""
    began = time.monotonic()
    if world is not None:
        world.renew(job.number)
    try:
        report = run_cell(row_named(job.row), column_named(job.column), job.variant, world)
    except BaseException as error:  # noqa: BLE001 - one failed cell, whatever it raised
        report = job.failed(f"the cell ended with {error!r}: {traceback.format_exc(limit=-4)}")
    report.facts |= {"seconds": round(time.monotonic() - began, 2), "broker": job.broker}
    return report


class _Worker:
    """A process that runs one cell after the other."""

    def __init__(self) -> None:
        self.stack = Path(tempfile.mkstemp(prefix="rucola-matrix-stack-")[1])
        self.pipe, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_serve, args=(other, str(self.stack), os.getpid()), daemon=True)
        self.process.start()
        other.close()
        self.job: Job | None = None
        self.until = 0.0

    def begin(self, job: Job) -> None:
        self.job, self.until = job, time.monotonic() + job.limit_s
        self.pipe.send(job)

    def end(self, with_servers: bool = True) -> None:
        if with_servers:
            self.process.terminate()  # it ends the processes of its servers
            self.process.join(_END_S)
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.stack.unlink(missing_ok=True)

    def where(self) -> str:
        """Where the main thread, and the loop's thread, of a hanging process are."""
        try:
            os.kill(self.process.pid or 0, signal.SIGUSR1)
        except ProcessLookupError:
            return "the process is gone"
        time.sleep(_STACK_S)
        return " | ".join(
            line.strip() for line in self.stack.read_text().splitlines() if "/rucola/client/" in line or "Hands" in line
        )[:600]


def run_jobs(jobs: Sequence[Job], processes: int) -> Iterator[Report]:
    """Runs all cells; yields their reports in the order of completion."""
    waiting = list(reversed(jobs))
    workers = [_Worker() for _ in range(min(processes, len(jobs)))]
    try:
        for worker in workers:
            worker.begin(waiting.pop())
        while busy := {worker.pipe: worker for worker in workers if worker.job is not None}:
            limit = max(0.0, min(worker.until for worker in busy.values()) - time.monotonic())
            ready: list[Any] = wait(list(busy), limit)
            late = [worker for worker in busy.values() if worker.until <= time.monotonic() and worker.pipe not in ready]
            for worker in [*(busy[pipe] for pipe in ready), *late]:
                assert worker.job is not None
                with_servers = bool(worker.job.broker)
                report, alive = _report_of(worker, worker in late)
                worker.job = None
                if not alive:
                    worker.end(with_servers)
                    workers[workers.index(worker)] = _Worker()
                for free in workers:
                    if free.job is None and waiting:
                        free.begin(waiting.pop())
                yield report
    finally:
        for worker in workers:
            worker.end()


def _report_of(worker: _Worker, late: bool) -> tuple[Report, bool]:
    """The report of a worker that has answered, is late or has ended; and whether it can go on."""
    assert worker.job is not None
    if late:
        return worker.job.failed(f"hangs: no end in its real time; {worker.where()}"), False
    try:
        report: Report = worker.pipe.recv()
    except EOFError:
        worker.process.join(5.0)
        return worker.job.failed(f"the process ended with {worker.process.exitcode}"), False
    return report, bool(
        worker.job.broker
    ) or not report.findings  # what a failed cell has left must not meet the next one


def _serve(pipe: Connection, stack: str, parent: int) -> None:
    signal.signal(signal.SIGTERM, _leave)
    gc.freeze()  # the cells' own collections need not look at modules
    worlds: dict[str, RealWorld] = {}
    with Path(stack).open("w", encoding="utf-8") as file, ExitStack() as ending:
        faulthandler.register(signal.SIGUSR1, file, all_threads=True)
        while _has_job(pipe, parent):
            try:
                job = pipe.recv()
            except (EOFError, KeyboardInterrupt):
                return
            if job.broker and job.broker not in worlds:
                worlds[job.broker] = ending.enter_context(RealWorld(job.broker))
            pipe.send(run_job(job, worlds.get(job.broker)))


def _has_job(pipe: Connection, parent: int) -> bool:
    """Waits for a job; returns False if nobody is left who could send one. A pipe does not tell it: the other workers
    have inherited its other end.
    """
    while not pipe.poll(_LOOK_S):
        if os.getppid() != parent:
            return False
    return True


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(1)
