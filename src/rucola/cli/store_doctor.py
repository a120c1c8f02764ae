"""The commands of ``rucola store`` that write. ``rebuild`` and ``repair`` lock the store that they change, so no broker
uses it meanwhile; ``salvage`` only reads its sources and writes a new store.

Each command imports its job when it runs. Otherwise every other command of ``rucola store``, even a ``grep`` for one
key, would wait for these imports.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from typing import TYPE_CHECKING, Annotated

import typer

from rucola.cli import store_output as output
from rucola.cli.config_file import read_broker_conf
from rucola.cli.exit_codes import ExitCode
from rucola.cli.store_arguments import CommitLog, Config, Directory, DryRun, Jobs, Json
from rucola.cli.worker_processes import worker_processes

if TYPE_CHECKING:
    from rucola.store.doctor.staged import Phase, Runner

Undo = Annotated[bool, typer.Option("--undo", help="Undo the newest repair, even an interrupted one.")]
Sources = Annotated[
    list[str], typer.Argument(metavar="SOURCE...", help="Stores, directories, segments or images.", show_default=False)
]
Target = Annotated[
    str, typer.Option("-o", "--output", metavar="DIR", help="Directory of the new store.", show_default=False)
]
Only = Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")]
SegmentBytes = Annotated[
    int, typer.Option("--segment-bytes", min=0, show_default="as in the sources", help="Length of the new segments.")
]
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
    from rucola.store.doctor import rebuild as doctor

    with output.steps() as advance:
        report = doctor.rebuild(directory, runner(jobs), read_broker_conf(config), commit_log, advance, dry_run)
    output.print_summary(report, json)


def repair(
    directory: Directory,
    config: Config = None,
    jobs: Jobs = _PROCESSORS,
    take_back: Undo = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Repair what can be repaired for certain, with an undo journal. Exits with 1 if findings are left."""
    from rucola.store.doctor import repair as repairs

    if take_back:
        count = repairs.undo(directory)
        output.print_facts({"changes taken back": count}, json)
        return ExitCode.CLEAN
    with output.steps() as advance:
        report = repairs.repair(directory, runner(jobs), read_broker_conf(config), advance, dry_run)
    output.print_repair(report, json)
    return ExitCode.FAILED if report.left else ExitCode.CLEAN


def salvage(
    sources: Sources,
    target: Target,
    topic: Only = None,
    segment_bytes: SegmentBytes = 0,
    config: Config = None,
    jobs: Jobs = _PROCESSORS,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Save all whole records of damaged logs, partial files and disk images into a new store. Continues a salvage that
    was interrupted.
    """
    from rucola.store.doctor import salvage as salvages

    options = read_broker_conf(config)
    with output.steps() as advance:
        report = salvages.salvage(sources, target, segment_bytes, topic or (), options, runner(jobs), advance, dry_run)
    output.print_summary(report, json)


def runner(jobs: int) -> Runner:
    """Runs the tasks of a job in this process, or in up to ``jobs`` processes of this machine."""
    from rucola.store.doctor.staged import run_serially

    if jobs == 1:
        return run_serially

    def run(phase: Phase, numbers: Sequence[int], look: Callable[[], None]) -> None:
        with worker_processes(min(jobs, len(numbers))) as pool:
            tasks = [pool.submit(phase.run, number, "local") for number in numbers]
            try:
                for task in as_completed(tasks):
                    task.result()
                    look()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    return run
