"""The commands of ``rucola store`` that write. ``rebuild`` and ``repair`` lock the store that they change, so no broker
uses it meanwhile; ``salvage`` only reads its sources and writes a new store.

Each command imports its job when it runs. Otherwise every other command of ``rucola store``, even a ``grep`` for one
key, would wait for these imports.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rucola.cli import store_output as output
from rucola.cli.config_file import read_broker_conf
from rucola.cli.exit_codes import ExitCode
from rucola.cli.store_arguments import CommitLog, Config, Directory, DryRun, Jobs, Json
from rucola.cli.store_tasks import TaskOptions
from rucola.cli.tool import options_from_fields

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


@options_from_fields
def rebuild(
    directory: Directory,
    where: TaskOptions,
    config: Config = None,
    commit_log: CommitLog = None,
    jobs: Jobs = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Build consume queues and index files again from the log. Continues a rebuild that was interrupted."""
    from rucola.store.doctor import rebuild as doctor

    options = read_broker_conf(config)
    with where.tasks(jobs, dry_run) as tasks, output.steps() as advance:
        report = doctor.rebuild(directory, tasks.run, options, commit_log, advance, dry_run)
    output.print_summary(report, json)


@options_from_fields
def repair(
    directory: Directory,
    where: TaskOptions,
    config: Config = None,
    jobs: Jobs = None,
    take_back: Undo = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Repair what can be repaired for certain, with an undo journal. Exits with 1 if findings are left."""
    from rucola.store.doctor import repair as repairs

    where.only_here("--undo", take_back)
    if take_back:
        count = repairs.undo(directory)
        output.print_facts({"changes taken back": count}, json)
        return ExitCode.CLEAN
    options = read_broker_conf(config)
    with where.tasks(jobs, dry_run) as tasks, output.steps() as advance:
        report = repairs.repair(directory, tasks.run, options, advance, dry_run)
    output.print_repair(report, json)
    return ExitCode.FAILED if report.left else ExitCode.CLEAN


@options_from_fields
def salvage(
    sources: Sources,
    where: TaskOptions,
    target: Target,
    topic: Only = None,
    segment_bytes: SegmentBytes = 0,
    config: Config = None,
    jobs: Jobs = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Save all whole records of damaged logs, partial files and disk images into a new store. Continues a salvage that
    was interrupted.
    """
    from rucola.store.doctor import salvage as salvages

    options = read_broker_conf(config)
    with where.tasks(jobs) as tasks, output.steps() as advance:
        report = salvages.salvage(
            sources,
            target,
            segment_bytes,
            topics=topic or (),
            options=options,
            run=tasks.run,
            progress=advance,
            dry_run=dry_run,
        )
    output.print_summary(report, json)


def export_queues(directory: Directory, commit_log: CommitLog = None, json: Json = False) -> None:
    """Write consume queues and offsets of lite topics, before RocketMQ opens the store. The store must be stopped
    cleanly.
    """
    from rucola.store.doctor.export_offsets import export_offsets
    from rucola.store.doctor.export_queues import export_queues as export

    report = export(directory, commit_log_path=commit_log)
    output.print_facts(asdict(report) | {"offsets": export_offsets(directory)}, json)
