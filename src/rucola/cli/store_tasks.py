"""Where the tasks of ``rucola store`` run: on this machine, or with ``--spark`` in Spark. Only with ``--spark`` is
anything of Spark imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from rucola.cli import store_output as output
from rucola.cli.worker_processes import worker_processes
from rucola.errors import ConfigError
from rucola.runtime import extras

if TYPE_CHECKING:
    from rucola.store.doctor.census import DeadLetters, SegmentPart, Tally
    from rucola.store.doctor.staged import Runner
    from rucola.store.offline.rows import SegmentRows
    from rucola.store.offline.search import MessageQuery
    from rucola.store.verify.check import VerifyReport

_MASTER = re.compile(
    r"yarn|local(-cluster\[[1-9]\d*,[1-9]\d*,[1-9]\d*\]|\[([1-9]\d*|\*)(,[1-9]\d*)?\])?|(spark|k8s)://\S+", re.ASCII
)


class StoreTasks(Protocol):
    """Runs the tasks of a command."""

    @property
    def run(self) -> Runner:
        """Runs the tasks of a staged job."""

    def verify(self, stores: Sequence[str], commit_log: str | None, /) -> Iterable[VerifyReport]:
        """Checks stores; yields the reports in the order of ``stores``."""

    def count(self, parts: Sequence[SegmentPart], /) -> Iterable[tuple[list[Tally], list[DeadLetters]]]:
        """Counts the messages of segments, as ``census.count_in``; yields the counts in the order of ``parts``."""

    def find(
        self, stores: Sequence[str], wanted: MessageQuery, by_index: bool, most: int | None, /
    ) -> Iterable[tuple[str, SegmentRows]]:
        """Yields at least the first ``most`` matching messages of ``stores``, each with its store."""


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """The options that say where the tasks of a command run."""

    spark: Annotated[
        str | None,
        typer.Option(
            "--spark", metavar="MASTER", help="Run the tasks in Spark: local[4], spark://HOST:PORT, k8s://URL or yarn."
        ),
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="With --spark: a setting of Spark; may be repeated."),
    ] = None

    def only_here(self, option: str, value: object) -> None:
        """Refuses an option that was given although the tasks run in Spark.

        Raises:
            ConfigError: ``option`` has a value, and so has ``--spark``.
        """
        if self.spark is not None and value:
            raise ConfigError(option, "given" if value is True else str(value), "only without --spark")

    @contextmanager
    def tasks(self, jobs: int | None = None, dry_run: bool = False) -> Iterator[StoreTasks]:
        """What runs the tasks of one command.

        Args:
            jobs: number of processes on this machine; None means one for each processor.
            dry_run: whether there will be no tasks, so that Spark is not started.

        Raises:
            ConfigError: an option is not allowed here.
            MissingExtraError: PySpark is not installed.
            TaskFailedError: a task in Spark failed.
        """
        self.only_here("--jobs", jobs)
        settings = self._settings()
        if self.spark is None or dry_run:
            yield LocalTasks(jobs or os.cpu_count() or 1)
            return
        extras.require(extras.SPARK, "rucola store --spark")
        from rucola.spark.doctor import SparkTasks
        from rucola.spark.failures import one_line
        from rucola.spark.session import command_session

        with one_line():
            session = command_session("rucola store", master=self.spark, **settings)
            try:
                yield SparkTasks(session)
            finally:
                session.stop()

    def _settings(self) -> dict[str, str]:
        if self.spark is None and self.conf:
            raise ConfigError("--conf", self.conf[0], "only with --spark")
        if self.spark is not None and _MASTER.fullmatch(self.spark) is None:
            allowed = "a master of Spark: local, local[4], spark://HOST:PORT, k8s://URL or yarn"
            raise ConfigError("--spark", self.spark, allowed)
        pairs = [text.partition("=") for text in self.conf or ()]
        for key, equals, value in pairs:
            if not key or not equals:
                raise ConfigError("--conf", key + equals + value, "KEY=VALUE")
        return {key: value for key, _, value in pairs}


class LocalTasks:
    """Runs tasks in this process, or in several processes of this machine.

    Args:
        jobs: maximum number of processes.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    @property
    def run(self) -> Runner:
        """See ``StoreTasks``."""
        from rucola.store.doctor.staged import run_serially

        return run_serially if self._jobs == 1 else self._run

    def verify(self, stores: Sequence[str], commit_log: str | None, /) -> Iterator[VerifyReport]:
        """See ``StoreTasks``."""
        from rucola.store.verify.check import verify

        for store in stores:
            with output.progress("verifying", 0) as advance:
                report = verify(store, None, advance, commit_log)
            yield report

    def count(self, parts: Sequence[SegmentPart], /) -> Iterator[tuple[list[Tally], list[DeadLetters]]]:
        """See ``StoreTasks``."""
        from rucola.store.doctor.census import count_in

        if self._jobs == 1 or len(parts) < 2:
            yield from map(count_in, parts)
            return
        with worker_processes(min(self._jobs, len(parts))) as pool:
            yield from pool.map(count_in, parts)

    def find(
        self, stores: Sequence[str], wanted: MessageQuery, by_index: bool, _most: int | None, /
    ) -> Iterator[tuple[str, SegmentRows]]:
        """See ``StoreTasks``."""
        from rucola.store.doctor.census import find

        return find(stores, wanted, by_index)

    def _run(self, phase: str, staging: str, numbers: Sequence[int], look: Callable[[], None]) -> None:
        from rucola.store.doctor.staged import run_task

        with worker_processes(min(self._jobs, len(numbers))) as pool:
            tasks = [pool.submit(run_task, phase, staging, number, "local") for number in numbers]
            try:
                for task in as_completed(tasks):
                    task.result()
                    look()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
