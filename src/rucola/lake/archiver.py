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
from rucola.arrow.catalog import Catalog, checked_ranges
from rucola.arrow.offsets import StreamOffsets
from rucola.arrow.ranges import SourceRange
from rucola.arrow.read_options import BodyForm, ReadOptions, ScanOrder, SchemaStyle
from rucola.arrow.reading import open_catalog, read_range
from rucola.common.message_queue import MessageQueue
from rucola.errors import (
    BrokerError,
    ConfigError,
    DiskFullError,
    FormatError,
    ResourceError,
    RucolaError,
    StoreError,
    StoreLockedError,
    TableConflictError,
    TaskFailedError,
    TopicsFailedError,
)
from rucola.lake.columns import arrow_of, merged_schema, source_columns, table_schema
from rucola.lake.continuation import continuation
from rucola.lake.labels import Labels
from rucola.lake.table_log import Change, DataFile, Snapshot, TableLog, lag
from rucola.lake.workers import Task, Workers, run_here
from rucola.places.place import Place
from rucola.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGES_PER_COMMIT = 20_000_000
CONFLICTS_MAX = 20
"""Largest number of plans in a row that may become useless because another writer committed first."""

logger = logging.getLogger(__name__)

Copy = Callable[[Place, ReadOptions, Sequence[SourceRange], Labels], tuple[list[str], dict[str, Any]]]
"""Copies messages, with their labels, into new files of a table; returns the reports of the tasks (``write_all``), and
the columns of the files.
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
    begun: frozenset[MessageQueue]
    labels: Labels
    topics: tuple[str, ...]
    """The topics of the pieces."""
    lag: int


class Archiver:
    """Copies the new messages of some topics into a table.

    A topic that fails stops only itself: the others are archived. If reading fails while it is not known which topic is
    to blame, topics are read one by one.

    Args:
        table: the table's log.
        options: where and what to read; all messages of the topics are copied.
        copy: copies the messages; None copies them in this process.
        messages_per_commit: largest number of messages in one step; after a failure, only that step starts over.
        clock: source of time.

    Attributes:
        failures: the error of each topic that has failed since ``steps`` was called.

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
        if options.keys:
            raise ConfigError("keys", ", ".join(sorted(options.keys)), "none; a table has whole topics")
        if messages_per_commit < 1:
            raise ConfigError("messages_per_commit", str(messages_per_commit), "1 or more")
        if options.body is not BodyForm.DECOMPRESSED:
            raise ConfigError("body", options.body, "decompressed; the column record has the stored bytes")
        self.failures: dict[str, RucolaError] = {}
        self._table = table
        self._options = options
        self._copy = copy if copy is not None else plain_copy(run_here)
        self._messages_per_commit = messages_per_commit
        self._clock = clock or SystemClock()
        self._topics: set[str] = set()
        """All topics seen since ``steps`` was called."""
        self._alone: list[str] = []
        """Topics that are read one by one, after all others."""

    def steps(self) -> Iterator[Step]:
        """Makes commits until there is nothing new; yields each commit.

        Raises:
            TopicsFailedError: some topics failed; it is raised when all others are archived.
        """
        self._alone = sorted(self.failures)  # they may fail again, and spoil the work for the others
        self.failures.clear()
        self._topics.clear()
        while (step := self.step()) is not None:
            yield step
        if self.failures:
            is_one_kind = len({type(error) for error in self.failures.values()}) == 1
            raise TopicsFailedError(dict(self.failures), is_one_kind and self._topics == self.failures.keys())

    def step(self) -> Step | None:
        """Makes one commit; returns None if there is nothing new. Topics that fail are left out.

        Raises:
            TableConflictError: other writers were faster many times in a row.
        """
        conflicts = 0
        while True:
            began_s = self._clock.monotonic()
            plan = self._plan()
            if plan is None:
                return None
            change = self._copied(plan)
            if change is None:
                continue
            try:
                version = commit_rebased(self._table, plan.base, change)
            except TableConflictError as error:
                # Another writer has archived some of these messages, or has added columns.
                tell_conflict(error)
                self._remove(change.added)
                conflicts += 1
                if conflicts == CONFLICTS_MAX:
                    raise
                continue
            except ConfigError:
                self._remove(change.added)
                raise
            rows, size = sum(one.rows for one in change.added), sum(one.size for one in change.added)
            return Step(version, rows, size, len(change.added), plan.lag, self._clock.monotonic() - began_s)

    def _plan(self) -> _Plan | None:
        """The next commit; None if there is nothing new."""
        base, queues = snapshot_of(self._table, self._options, self.failures)
        self._topics |= {queue.topic for queue in queues} | self.failures.keys()
        plan = self._plan_of(base, [queue for queue in queues if queue.topic not in self._alone], self._options)
        while plan is None and self._alone:
            topic = self._alone[0]
            options = replace(self._options, scan_order=ScanOrder.QUEUE)  # other topics' damage is then passed by
            plan = self._plan_of(base, [queue for queue in queues if queue.topic == topic], options)
            if plan is None:
                self._alone.remove(topic)
        return plan

    def _plan_of(self, base: Snapshot, queues: Sequence[MessageQueue], options: ReadOptions) -> _Plan | None:
        """A commit with messages of these queues, without the topics that fail."""
        if not queues:
            return None
        catalog = open_catalog(options)
        try:
            try:
                return self._planned(base, catalog, queues)
            except RucolaError as error:
                if not is_of_a_topic(error):
                    raise
            for topic in sorted({queue.topic for queue in queues}):
                try:
                    self._planned(base, catalog, [queue for queue in queues if queue.topic == topic])
                except RucolaError as error:
                    if not is_of_a_topic(error):
                        raise
                    self._note(topic, error)
            return self._planned(base, catalog, queues)
        finally:
            catalog.close()

    def _planned(self, base: Snapshot, catalog: Catalog, queues: Sequence[MessageQueue]) -> _Plan | None:
        bounds = catalog.bounds(queue for queue in queues if queue.topic not in self.failures)
        flow = continuation(base, catalog, bounds)
        for queue, error in flow.troubles.items():
            self._note(queue.topic, error)
        start = {queue: at for queue, at in flow.starts.items() if queue.topic not in self.failures}
        bounds = {queue: bounds[queue] for queue in start}
        available = {queue: max(held.max, start[queue]) for queue, held in bounds.items()}
        end = admit_rows(start, available, self._messages_per_commit)
        moved = {queue: end[queue] for queue in end if end[queue] > start[queue]}
        if not moved:
            return None
        pieces = catalog.plan(checked_ranges(start, end, bounds, self._options.fail_on_data_loss))
        found = catalog.marks({queue: at - 1 for queue, at in moved.items()})
        begun = frozenset(flow.own[queue] for queue in moved if queue in flow.begun)
        offsets = StreamOffsets(
            {flow.own[queue]: at for queue, at in moved.items()},
            {own: start[queue] for queue in moved if base.end_of(own := flow.own[queue]) is None or own in begun},
            {flow.own[queue]: mark for queue, mark in found.items() if mark is not None},
        )
        topics = tuple(sorted({queue.topic for queue in moved}))
        return _Plan(base, pieces, offsets, begun, flow.labels, topics, lag(end, available))

    def _copied(self, plan: _Plan) -> Change | None:
        """Writes the files of a commit; None if a topic has failed, or one of several has."""
        try:
            reports, schema = self._copy(self._table.place, self._options, plan.pieces, plan.labels)
        except RucolaError as error:
            if not is_of_a_topic(error) or self._table.place.root in str(error):
                raise
            if len(plan.topics) == 1:
                self._note(plan.topics[0], error)
            self._alone = sorted({*self._alone, *plan.topics} - self.failures.keys())
            return None
        added = files_of(reports)
        try:
            columns = merged_schema(plan.base.schema, schema)
        except ConfigError:
            self._remove(added)
            raise
        return Change("archive", tuple(added), (), plan.offsets, columns, begun=plan.begun)

    def _note(self, topic: str, error: RucolaError) -> None:
        self.failures.setdefault(topic, error)

    def _remove(self, added: Iterable[DataFile]) -> None:
        for one in added:
            self._table.place.remove(one.path)


def is_of_a_topic(error: RucolaError) -> bool:
    """Whether an error may come from one topic, so that the others can go on."""
    kind = error.kind if isinstance(error, TaskFailedError) else type(error)
    everywhere = (DiskFullError, ResourceError, StoreLockedError, TableConflictError)
    kinds = (StoreError, FormatError, ConfigError, BrokerError)
    return kind is not None and issubclass(kind, kinds) and not issubclass(kind, everywhere)


def files_of(texts: Iterable[str]) -> list[DataFile]:
    """The files listed in ``texts``, the reports of tasks."""
    return [DataFile.from_json(one) for text in texts for one in json.loads(text)]


def plain_copy(workers: Workers) -> Copy:
    """A ``Copy`` in which each task reads a range of messages, and writes them."""

    def copy(
        place: Place, options: ReadOptions, pieces: Sequence[SourceRange], labels: Labels
    ) -> tuple[list[str], dict[str, Any]]:
        schema = table_schema(options)
        task = _writing_task(place, options, source_columns(options), arrow_of(schema), pieces, labels)
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
        fixed: as in ``PartitionedWriter``.
    """
    from rucola.lake.parquet_writer import PartitionedWriter

    writer = PartitionedWriter(place, schema, fixed)
    try:
        for batch in batches:
            writer.write(batch)
        return json.dumps([one.to_json() for one in writer.finish()])
    except OSError as error:
        writer.abandon()
        raise place.error("write", "", error) from error
    except BaseException:
        writer.abandon()
        raise


def _writing_task(
    place: Place,
    options: ReadOptions,
    source: pa.Schema,
    schema: pa.Schema,
    pieces: Sequence[SourceRange],
    labels: Labels,
) -> Task:
    def write_piece(number: int) -> str:
        batches = read_range(options, source, pieces[number])
        return write_all(place, schema, (labels.applied(batch, len(source)) for batch in batches))

    return write_piece


def snapshot_of(
    table: TableLog, options: ReadOptions, failures: dict[str, RucolaError] | None = None
) -> tuple[Snapshot, list[MessageQueue]]:
    """The newest snapshot, and the queues of the subscription whose archived offsets it has.

    Bounds of the queues must be taken after it, from a new catalog. Whatever other runs archive meanwhile, an archived
    offset then lies within the bounds, unless messages are gone.

    Args:
        table: the table's log.
        options: where to look, and the subscription.
        failures: topics that are left out; named topics that do not exist are added.

    Raises:
        ConfigError: no named topic exists, and the table has none of them.
    """
    failures = {} if failures is None else failures
    catalog = open_catalog(options)
    try:
        queues = plannable_queues(options, catalog)
        missing: ConfigError | None = None
        absent = set(options.subscription.named_topics) - {queue.topic for queue in queues} - failures.keys()
        if absent:
            try:
                catalog.queues(all_needed=True)
            except ConfigError as error:
                missing = error
    finally:
        catalog.close()
    base = table.snapshot()
    if missing is not None:
        if not queues and not failures and absent.isdisjoint(queue.topic for queue in base.offsets.offsets):
            raise missing
        failures.update(dict.fromkeys(absent, missing))
    return base, [queue for queue in queues if queue.topic not in failures]


def plannable_queues(options: ReadOptions, catalog: Catalog) -> list[MessageQueue]:
    """The existing queues of the subscription. With a pattern, topics are left out if their queues are of type
    BatchCQ.
    """
    queues = catalog.queues(all_needed=bool(options.subscription.queues))
    if not options.subscription.pattern:
        return queues
    batched = {topic for topic in {queue.topic for queue in queues} if catalog.is_batch(topic)}
    if batched:
        logger.warning("topics left out, because their queues are of type BatchCQ: %s", ", ".join(sorted(batched)))
    return [queue for queue in queues if queue.topic not in batched]


def tell_conflict(error: TableConflictError) -> None:
    """Logs that a plan is made again."""
    logger.warning(
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
