"""The commands of ``rucola store`` that change a store. They take its lock, so no broker uses it meanwhile."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Annotated

import typer

from rucola.cli import store_output as output
from rucola.cli.config_file import read_broker_conf
from rucola.cli.store_arguments import CommitLog, Config, Directory, DryRun, Json
from rucola.store.doctor import rebuild as doctor

Jobs = Annotated[int, typer.Option("-j", "--jobs", min=1, help="Processes. [default: one per processor]")]
_PROCESSORS = os.cpu_count() or 1


def rebuild(
    directory: Directory,
    config: Config = None,
    commit_log: CommitLog = None,
    jobs: Jobs = _PROCESSORS,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Build consume queues and index files again from the log. Continues a rebuild that was interrupted."""
    run = in_processes(jobs) if jobs > 1 else doctor.run_serially
    with output.steps() as advance:
        report = doctor.rebuild(directory, run, read_broker_conf(config), commit_log, advance, dry_run)
    output.print_summary(report, json)


def in_processes(jobs: int) -> doctor.Runner:
    """A runner of tasks in several processes of this machine."""

    def run(phase: str, staging: str, numbers: Sequence[int], look: Callable[[], None]) -> None:
        # A forked child would share this process's threads' locks and the lock of the store.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(jobs, len(numbers)), context) as pool:
            tasks = [pool.submit(doctor.run_task, phase, staging, number, "local") for number in numbers]
            try:
                for task in as_completed(tasks):
                    task.result()
                    look()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    return run
