"""Archives topics into a table: in one run, or continuously.

A step plans, lets tasks write files, and commits files and archived offsets together. No other state is kept between
steps, so a step that was killed is simply repeated.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rucola.arrow.admission import admit_rows
from rucola.arrow.catalog import Bounds, Catalog, checked_ranges
from rucola.arrow.offsets import QueueOffsets, StreamOffsets, queue_text
from rucola.arrow.ranges import SourceRange
from rucola.arrow.read_options import BodyForm, ReadOptions, SchemaStyle
from rucola.arrow.reading import open_catalog, read_range
from rucola.common.message_queue import MessageQueue
from rucola.errors import AnotherLogError, ConfigError, DataLossError, TableConflictError
from rucola.lake.columns import arrow_of, merged_schema, source_columns, table_schema
from rucola.lake.table_log import Change, DataFile, Snapshot, TableLog, lag
from rucola.lake.workers import Task, Workers, run_here
from rucola.places.place import Place
from rucola.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGES_PER_COMMIT = 20_000_000
CONFLICTS_MAX = 20
"""Largest number of plans in a row that may become useless because another writer committed first."""

ANOTHER_TABLE = "archive into another table; this one keeps its messages"
"""Advice if a store does not continue the log of a table; no option can make it do so."""

log = logging.getLogger(__name__)

Copy = Callable[[Place, ReadOptions, Sequence[SourceRange]], tuple[list[str], dict[str, Any]]]
"""Copies messages into new files of a table; returns the reports of the tasks (``write_all``), and the columns of the
files.
"""


class Step(NamedTuple):
    """A commit made by an archiver, with its size and duration.

    Attributes:
        version: number of the commit.
        messages: number of rows in its files.
        size: total size of its files in bytes.
        files: number of its files.
        lag: number of messages left for later steps, as seen when this step was planned.
        seconds: duration from plan to commit.
    """

    version: int
    messages: int
    size: int
    files: int
    lag: int
    seconds: float


@dataclass(frozen=True)
class _Plan:
    base: Snapshot
    pieces: Sequence[SourceRange]
    offsets: StreamOffsets
    lag: int


class Archiver:
    """Copies the new messages of some topics into a table.

    Args:
        table: the table's log.
        options: where and what to read; all messages of the topics are copied.
        copy: copies the messages; None copies them in this process.
        messages_per_commit: largest number of messages in one step; after a failure, only that step starts over.
        clock: source of time.

    Raises:
        ConfigError: the options filter messages, name columns, or change ``schema_style`` or ``body``.
    """

    def __init__(
        self,
        table: TableLog,
        options: ReadOptions,
        copy: Copy | None = None,
        messages_per_commit: int = MESSAGES_PER_COMMIT,
        clock: Clock | None = None,
    ) -> None:
        if options.schema_style is not SchemaStyle.ROCKETMQ or options.columns or not options.expression.matches_all:
            raise ConfigError("columns, schemaStyle, subExpression", "given", "the defaults; a table has whole topics")
        if options.body is not BodyForm.DECOMPRESSED:
            raise ConfigError("body", options.body, "decompressed; the column record has the stored bytes")
        self._table = table
        self._options = options
        self._copy = copy if copy is not None else plain_copy(run_here)
        self._messages_per_commit = messages_per_commit
        self._clock = clock or SystemClock()

    def steps(self) -> Iterator[Step]:
        """Makes commits until there is nothing new; yields each commit."""
        while (step := self.step()) is not None:
            yield step

    def step(self) -> Step | None:
        """Makes one commit; returns None if there is nothing new.

        Raises:
            AnotherLogError: the last archived record of a queue is no longer at its position.
            DataLossError: a queue of the store ends before its archived offset; or messages expired before they were
                archived, and ``fail_on_data_loss`` is set.
            TableConflictError: other writers were faster many times in a row.
        """
        for attempt in range(CONFLICTS_MAX):
            began_s = self._clock.monotonic()
            plan = self._plan()
            if not plan.pieces and not plan.offsets.offsets:
                return None
            reports, schema = self._copy(self._table.place, self._options, plan.pieces)
            added = files_of(reports)
            change = Change("archive", tuple(added), (), plan.offsets, merged_schema(plan.base.schema, schema))
            try:
                version = commit_rebased(self._table, plan.base, change)
            except TableConflictError as error:
                # Another writer has archived some of these messages, or has added columns.
                tell_conflict(error)
                for one in added:
                    self._table.place.remove(one.path)
                if attempt == CONFLICTS_MAX - 1:
                    raise
                continue
            rows, size = sum(one.rows for one in added), sum(one.size for one in added)
            return Step(version, rows, size, len(added), plan.lag, self._clock.monotonic() - began_s)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _plan(self) -> _Plan:
        base, queues = snapshot_of(self._table, self._options)
        catalog = open_catalog(self._options)
        try:
            bounds = catalog.bounds(queues)
            start = start_offsets(base, bounds)
            self._check_same_log(base, catalog, bounds)
            available = {queue: max(held.max, start[queue]) for queue, held in bounds.items()}
            end = admit_rows(start, available, self._messages_per_commit)
            ranges = checked_ranges(start, end, bounds, self._options.fail_on_data_loss)
            moved = {queue: end[queue] for queue in end if end[queue] > start[queue]}
            found = catalog.marks({queue: at - 1 for queue, at in moved.items()})
            marks = {queue: mark for queue, mark in found.items() if mark is not None}
            starts = {queue: start[queue] for queue in moved if base.end_of(queue) is None}
            return _Plan(base, catalog.plan(ranges), StreamOffsets(moved, starts, marks), lag(end, available))
        finally:
            catalog.close()

    def _check_same_log(self, base: Snapshot, catalog: Catalog, bounds: Mapping[MessageQueue, Bounds]) -> None:
        """Checks that the queues are those that were archived.

        Raises:
            AnotherLogError: the store is not the one whose messages are in the table.
            DataLossError: a queue ends before its archived offset.
        """
        archived = {queue: end for queue in bounds if (end := base.end_of(queue)) is not None}
        for queue, end in archived.items():
            if bounds[queue].max < end:
                raise DataLossError(queue_text(queue), end, end, *bounds[queue], ANOTHER_TABLE)
        places = {
            queue: end - 1
            for queue, end in archived.items()
            if base.mark_of(queue) is not None and bounds[queue].min < end
        }
        for queue, mark in catalog.marks(places).items():
            if mark is not None and mark != base.mark_of(queue):
                raise AnotherLogError(
                    queue_text(queue), archived[queue], archived[queue], *bounds[queue], ANOTHER_TABLE
                )


def files_of(texts: Iterable[str]) -> list[DataFile]:
    """The files listed in ``texts``, the reports of tasks."""
    return [DataFile.from_json(one) for text in texts for one in json.loads(text)]


def plain_copy(workers: Workers) -> Copy:
    """A ``Copy`` in which each task reads a range of messages, and writes them."""

    def copy(place: Place, options: ReadOptions, pieces: Sequence[SourceRange]) -> tuple[list[str], dict[str, Any]]:
        schema = table_schema(options)
        task = _writing_task(place, options, source_columns(options), arrow_of(schema), pieces)
        return workers(task, len(pieces)), schema

    return copy


def write_all(
    place: Place, schema: pa.Schema, batches: Iterable[pa.RecordBatch], fixed: Mapping[str, str] | None = None
) -> str:
    """Writes rows into new files; returns the task's report, a JSON list of the files. Runs in tasks.

    Args:
        place: where the table is.
        schema: columns of the files.
        batches: the rows.
        fixed: as in ``TableWriter``.
    """
    from rucola.lake.parquet_writer import TableWriter

    writer = TableWriter(place, schema, fixed)
    try:
        for batch in batches:
            writer.write(batch)
        return json.dumps([one.to_json() for one in writer.finish()])
    except BaseException:
        writer.abandon()
        raise


def _writing_task(
    place: Place, options: ReadOptions, source: pa.Schema, schema: pa.Schema, pieces: Sequence[SourceRange]
) -> Task:
    def write_piece(number: int) -> str:
        return write_all(place, schema, read_range(options, source, pieces[number]))

    return write_piece


def start_offsets(base: Snapshot, bounds: Mapping[MessageQueue, Bounds]) -> QueueOffsets:
    """The offset at which archiving continues in each queue: the archived offset, or the min offset of a new queue."""
    archived = {queue: base.end_of(queue) for queue in bounds}
    return {queue: held.min if (end := archived[queue]) is None else end for queue, held in bounds.items()}


def snapshot_of(table: TableLog, options: ReadOptions) -> tuple[Snapshot, list[MessageQueue]]:
    """The newest snapshot, and the queues of the subscription whose archived offsets it has.

    Bounds of the queues must be taken after it, from a new catalog. Whatever other runs archive meanwhile, an archived
    offset then lies within the bounds, unless messages are gone. A queue that appears after the snapshot is not among
    the queues: nobody knows how much of it the table holds.
    """
    catalog = open_catalog(options)
    try:
        queues = plannable_queues(options, catalog)
    finally:
        catalog.close()
    return table.snapshot(), queues


def plannable_queues(options: ReadOptions, catalog: Catalog) -> list[MessageQueue]:
    """The queues of the subscription. With a pattern, topics are left out if their queues are of type BatchCQ."""
    queues = catalog.queues(all_needed=not options.subscription.pattern)
    if not options.subscription.pattern:
        return queues
    batched = {topic for topic in {queue.topic for queue in queues} if catalog.is_batch(topic)}
    if batched:
        log.warning("topics left out, because their queues are of type BatchCQ: %s", ", ".join(sorted(batched)))
    return [queue for queue in queues if queue.topic not in batched]


def tell_conflict(error: TableConflictError) -> None:
    """Logs that a plan is made again."""
    log.warning(
        "table %s: another run committed first (version %d); this run plans its commit again",
        error.table,
        error.version,
    )


def commit_rebased(table: TableLog, base: Snapshot, change: Change) -> int:
    """Commits ``change`` after ``base``, or after a newer commit that does not conflict; returns the new version.

    Raises:
        TableConflictError: another commit advanced the same queues, removed the same files, or changed the schema.
    """
    while True:
        try:
            return table.commit(base, change)
        except TableConflictError:
            newer = table.snapshot()
            if newer.version == base.version or not newer.allows(base, change):
                raise
            base = replace(newer, time_ms=base.time_ms)
