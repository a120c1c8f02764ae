"""``rucola store``: inspects a store directory without changing it, even while a broker uses it.

The commands in ``store_doctor`` write. ``rebuild`` and ``repair`` change the store, and no broker may use it meanwhile.
``salvage`` writes a new store.

Exit codes: 0 no problem found, 1 ``verify`` or ``repair`` ends with findings, 2 usage, 4 a broker uses the store, 5 the
store is damaged, or a file cannot be read or written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from rucola.cli import store_output as output
from rucola.cli.exit_codes import ExitCode
from rucola.cli.store_arguments import CommitLog, Conditions, Directory, Json, Most, Queue, Topic
from rucola.cli.store_census import find, stats
from rucola.cli.store_doctor import rebuild, repair, salvage
from rucola.cli.tool import options_from_fields, run_app, tool_app
from rucola.errors import ConfigError, DiskError, ForeignEntryError, FormatError, StoreDamagedError
from rucola.runtime.files import Files
from rucola.store.offline.hexdump import Hexdump
from rucola.store.offline.inspect import queue_infos, queue_ranges, store_info
from rucola.store.offline.offline_store import OfflineStore, OffsetRange
from rucola.store.offline.search import has_index, search_index, search_log
from rucola.store.verify.check import verify as verify_store
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
    output.print_queues(infos, json)


@app.command()
def cat(
    directory: Directory,
    topic: Annotated[str, typer.Option("--topic", help="Topic to read.", show_default=False)],
    queue: Annotated[
        int | None, typer.Option("--queue", min=0, help="Queue id. [default: all, one after another]")
    ] = None,
    offset: Annotated[int, typer.Option("--offset", min=0, help="First queue offset.")] = 0,
    most: Most = None,
    commit_log: CommitLog = None,
    json: Json = False,
) -> None:
    """Print the messages of a topic, queue by queue."""
    with _opened(directory, commit_log) as store:
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
    no_index: Annotated[bool, typer.Option("--no-index", help="Scan the log even if a key is given.")] = False,
    most: Most = None,
    commit_log: CommitLog = None,
    json: Json = False,
) -> None:
    """Find messages: by key through the index, otherwise by a scan of the log. All conditions must match."""
    wanted = conditions.query("PATTERN", pattern, re.IGNORECASE if ignore_case else 0, queue)
    files, found = Files(), Findings(Files().expand(directory))
    with _opened(directory, commit_log) as store:
        if wanted.key is not None and not no_index and has_index(store, files):
            output.print_messages(search_index(store, files, wanted), most, json)
            return
        with output.progress("searching", store.end_offset() - store.min_offset()) as advance:
            output.print_messages(search_log(store, files, wanted, found, advance), most, json)
    output.print_damage_passed(found.listed())


@app.command()
def hexdump(
    directory: Directory,
    at: Annotated[int | None, typer.Option("--at", min=0, help="Show the record at this physical offset.")] = None,
    unit: Annotated[str | None, typer.Option(help="TOPIC/QUEUE/OFFSET: show this unit of a consume queue.")] = None,
    ext: Annotated[str | None, typer.Option(help="TOPIC/QUEUE/OFFSET: show this unit's extended data.")] = None,
    index: Annotated[
        str | None,
        typer.Option(help="NAME: show the header of this index file, or with --slot or --entry one slot or entry."),
    ] = None,
    slot: Annotated[int | None, typer.Option(min=0, help="With --index: show this slot.")] = None,
    entry: Annotated[int | None, typer.Option(min=0, help="With --index: show this entry.")] = None,
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="Show the file checkpoint.")] = False,
    timer: Annotated[int | None, typer.Option(min=0, help="Show the unit at this position of the timer log.")] = None,
    wheel: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Show the timer wheel's slot for a time, in units of timerPrecisionMs (default: seconds) since 1970.",
        ),
    ] = None,
    timercheck: Annotated[bool, typer.Option("--timercheck", help="Show the file config/timercheck.")] = False,
    commit_log: CommitLog = None,
    json: Json = False,
) -> None:
    """Show the bytes of one item of the store, field by field."""
    pieces = (at, unit, ext, index, timer, wheel)
    if sum((*(piece is not None for piece in pieces), checkpoint, timercheck)) != 1:
        wanted = "--at, --unit, --ext, --index, --checkpoint, --timer, --wheel, --timercheck"
        raise ConfigError("hexdump", "", f"exactly one of {wanted}")
    if (slot is not None or entry is not None) and (index is None or (slot is not None and entry is not None)):
        raise ConfigError("hexdump", "", "--slot or --entry, not both, and only with --index")
    source = Hexdump(Files(), directory, commit_log)
    if at is not None:
        dump = source.record(at)
    elif unit is not None:
        dump = source.unit(*_unit_name("--unit", unit))
    elif ext is not None:
        dump = source.ext_unit(*_unit_name("--ext", ext))
    elif index is not None:
        if slot is not None:
            dump = source.index_slot(index, slot)
        else:
            dump = source.index_entry(index, entry) if entry is not None else source.index_header(index)
    elif timer is not None:
        dump = source.timer_unit(timer)
    elif wheel is not None:
        dump = source.timer_slot(wheel)
    elif timercheck:
        dump = source.timer_checkpoint()
    else:
        dump = source.checkpoint()
    output.print_dump(dump, json)


@app.command()
def verify(directory: Directory, commit_log: CommitLog = None, json: Json = False) -> int:
    """Compare log, queues, index, checkpoint and the tables in config. Exits with 1 if there are findings."""
    with output.progress("verifying", 0) as advance:
        report = verify_store(directory, Files(), advance, commit_log)
    output.print_report(report, json)
    return ExitCode.CLEAN if report.clean else ExitCode.FAILED


app.command()(find)
app.command()(stats)
app.command()(rebuild)
app.command()(repair)
app.command()(salvage)


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


def _unit_name(option: str, text: str) -> tuple[str, int, int]:
    topic, _, rest = text.partition("/")
    queue_id, _, queue_offset = rest.partition("/")
    if not topic or not all(part.isascii() and part.isdigit() for part in (queue_id, queue_offset)):
        raise ConfigError(option, text, "TOPIC/QUEUE/OFFSET")
    return topic, int(queue_id), int(queue_offset)
