"""``rucola store``: inspects a store directory without changing it, even while a broker uses it.

The commands in ``store_doctor`` write. ``rebuild`` and ``repair`` change the store, and no broker may use it meanwhile.
``salvage`` writes a new store.

Exit codes: 0 no problem found, 1 ``verify`` or ``repair`` ends with findings, or ``compare`` finds different logs, 2
usage, 4 a broker uses the store, 5 the store is damaged, or a file cannot be read or written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from rucola.cli import store_hexdump
from rucola.cli import store_output as output
from rucola.cli.exit_codes import ExitCode
from rucola.cli.store_arguments import (
    CommitLog,
    Conditions,
    Directory,
    Json,
    LiteTopic,
    Most,
    Queue,
    Stores,
    Topic,
    existing,
)
from rucola.cli.store_census import find, stats
from rucola.cli.store_compare import compare
from rucola.cli.store_doctor import export_queues, rebuild, repair, salvage
from rucola.cli.store_lite import lite_rows
from rucola.cli.store_tasks import TaskOptions
from rucola.cli.tool import options_from_fields, run_app, tool_app
from rucola.errors import ConfigError, DiskError, ForeignEntryError, FormatError, StoreDamagedError, TaskFailedError
from rucola.runtime.files import Files
from rucola.store.inspect.search import has_index, search_index, search_lite, search_log
from rucola.store.inspect.summary import lite_queues, lite_topics, queue_infos, queue_ranges, store_info
from rucola.store.offline.offline_store import OfflineStore, OffsetRange
from rucola.store.verify.findings import Findings

app = tool_app("store", "Inspect a store directory, even while a broker uses it, and repair one that no broker uses.")

_NAMED_MAX = 20


def run(arguments: list[str]) -> int:
    """Runs one ``rucola store`` command; returns the exit code.

    Raises:
        RucolaError: the command failed.
    """
    try:
        return run_app(app, arguments)
    except ForeignEntryError:
        raise
    except DiskError as error:
        raise StoreDamagedError(error.path, 0, f"{error.operation} failed: {error.reason}", "check the file") from error
    except TaskFailedError as error:
        kind = StoreDamagedError if error.kind is not None and issubclass(error.kind, DiskError) else error.kind
        raise TaskFailedError(error.reason, kind) from error


@app.command()
def info(directory: Directory, commit_log: CommitLog = None, json: Json = False) -> None:
    """Show sizes, offsets, counts and checkpoint, and whether the store is in use."""
    with _opened(directory, commit_log) as store:
        facts = store_info(store, Files())
    output.print_info(facts, json)


@app.command()
def ls(directory: Directory, topic: Topic = None, commit_log: CommitLog = None, json: Json = False) -> None:
    """List topics and queues with their offsets and the store times of the first and last message."""
    with _opened(directory, commit_log) as store:
        infos = queue_infos(store, topic)
        folded = (lite_topics(Files(), store.path), lite_queues(store)) if topic is None else (0, 0)
    output.print_queues(infos, folded, json)


@app.command()
def cat(
    directory: Directory,
    topic: Annotated[str, typer.Option("--topic", help="Topic to read.", show_default=False)],
    queue: Annotated[
        int | None, typer.Option("--queue", min=0, help="Queue id. [default: all, one after another]")
    ] = None,
    lite_topic: LiteTopic = None,
    offset: Annotated[
        int, typer.Option("--offset", min=0, help="First queue offset; with --lite-topic, the offset there.")
    ] = 0,
    most: Most = None,
    commit_log: CommitLog = None,
    json: Json = False,
) -> None:
    """Print the messages of a topic, queue by queue, or of one of its lite topics."""
    with _opened(directory, commit_log) as store:
        if lite_topic is not None:
            if queue is not None:
                raise ConfigError("--queue", str(queue), "not with --lite-topic, which has no queues")
            with lite_rows(store, topic, lite_topic, offset) as rows:
                output.print_messages(rows, most, json)
            return
        ranges = _ranges(store, topic, queue)
        rows = (rows for found in ranges for rows in store.rows(topic, found.queue_id, offset, found.max_offset))
        output.print_messages(rows, most, json)


@app.command()
@options_from_fields
def grep(
    directory: Directory,
    conditions: Conditions,
    pattern: Annotated[str | None, typer.Argument(help="Regular expression to find in bodies.")] = None,
    queue: Queue = None,
    ignore_case: Annotated[
        bool, typer.Option("-i", "--ignore-case", help="Ignore case in regular expressions.")
    ] = False,
    no_index: Annotated[
        bool, typer.Option("--no-index", help="Scan the log even if a key or lite topic is given.")
    ] = False,
    most: Most = None,
    commit_log: CommitLog = None,
    json: Json = False,
) -> None:
    """Find messages: by key or lite topic without a scan of the log, otherwise by one. All conditions must match."""
    wanted = conditions.query("PATTERN", pattern, re.IGNORECASE if ignore_case else 0, queue)
    files, found = Files(), Findings(Files().expand(directory))
    with _opened(directory, commit_log) as store:
        if wanted.key is not None and not no_index and has_index(store, files):
            output.print_messages(search_index(store, files, wanted), most, json)
            return
        if wanted.lite_topic is not None and wanted.topic is not None and not no_index:
            by_units = search_lite(store, wanted)
            if by_units is not None:
                output.print_messages(by_units, most, json)
                return
        with output.progress("searching", store.end_offset() - store.min_offset()) as advance:
            output.print_messages(search_log(store, files, wanted, found, advance), most, json)
    output.print_damage_passed(found.listed())


@app.command()
@options_from_fields
def verify(directories: Stores, where: TaskOptions, commit_log: CommitLog = None, json: Json = False) -> int:
    """Compare log, queues, index, checkpoint and the tables in config. Exits with 1 if there are findings."""
    stores = [existing(directory) for directory in directories]
    if commit_log is not None and len(stores) > 1:
        raise ConfigError("--commit-log", commit_log, "only with one DIR")
    clean = True
    with where.tasks() as tasks:
        for report in tasks.verify(stores, commit_log):
            output.print_report(report, json, len(stores) > 1)
            clean = clean and report.clean
    return ExitCode.CLEAN if clean else ExitCode.FAILED


app.add_typer(store_hexdump.app)
app.command()(compare)
app.command()(find)
app.command()(stats)
app.command()(rebuild)
app.command()(repair)
app.command()(salvage)
app.command("export-queues")(export_queues)


def _ranges(store: OfflineStore, topic: str, queue: int | None) -> list[OffsetRange]:
    """The queues of ``topic``, or the requested one.

    Raises:
        ConfigError: the topic or queue does not exist; the error lists the existing ones.
    """
    ranges = queue_ranges(store, topic)
    if not ranges:
        topics = sorted({found.topic for found in queue_ranges(store)})
        shown = ", ".join(topics[:_NAMED_MAX]) + (f" and {len(topics) - _NAMED_MAX} more" * (len(topics) > _NAMED_MAX))
        raise ConfigError("--topic", topic, f"a topic with messages: {shown or 'there is none'}")
    found = [one for one in ranges if queue in (None, one.queue_id)]
    if not found:
        raise ConfigError("--queue", str(queue), ", ".join(str(one.queue_id) for one in ranges))
    return found


@contextmanager
def _opened(directory: str, commit_log: str | None) -> Iterator[OfflineStore]:
    try:
        store = OfflineStore(directory, commit_log_path=commit_log)
    except FormatError as error:
        raise StoreDamagedError(directory, error.position, str(error), "run rucola store verify") from error
    try:
        yield store
    finally:
        store.close()
