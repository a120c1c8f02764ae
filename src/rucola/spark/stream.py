"""The stream reader: the driver decides where each micro-batch ends; tasks read its messages.

For each query, one process on the driver holds the reader that Spark asks for ``latestOffset``; this reader keeps the
catalog open. The reader that runs ``read`` in a task is a copy. Spark replays a logged but uncommitted micro-batch with
the same start and end offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rucola.arrow.admission import admit_bytes, admit_rows
from rucola.arrow.catalog import Bounds, Catalog, Look, checked_ranges, starting_offsets
from rucola.arrow.offsets import (
    FROM,
    OffsetDocument,
    QueueOffsets,
    StreamDocument,
    StreamOffsets,
    queue_text,
    to_document,
)
from rucola.arrow.read_options import Position
from rucola.arrow.reading import open_catalog
from rucola.common.message_queue import MessageQueue
from rucola.errors import AnotherLogError, ConfigError, DataLossError, RucolaError
from rucola.runtime.clock import Clock, SystemClock
from rucola.spark.options import SourceOptions
from rucola.spark.reading import read_range

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the queues of a subscription. Queues that the query did not know when it began are read from their first
    message, whatever the start option says: ``latest`` means the moment when the query began, not when a topic appears.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, catalog: Catalog | None = None, clock: Clock | None = None
    ) -> None:
        if options.ending != Position(name="latest"):
            raise ConfigError("endingOffsets, endingTimestamp", "given", "nothing: a stream has no end")
        self.options = options
        self.schema = schema
        self._catalog = catalog
        self._initial: QueueOffsets | None = None
        self._target: QueueOffsets | None = None
        self._newest: QueueOffsets | None = None
        self._told: set[tuple[object, ...]] = set()
        self._clock = clock or SystemClock()
        self._admitted_s: float | None = None
        """When the latest micro-batch was admitted; None before the run's first micro-batch, which need not wait."""

    # The methods below have Spark's names.

    def initialOffset(self) -> StreamDocument:  # noqa: N802
        """Returns no offsets, because Spark does not log this offset. The first micro-batch records its own start
        offsets, and Spark logs those.
        """
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit on messages if set, else the limit on bytes. If both are set, ``latestOffset`` applies both."""
        if self.options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self.options.offsets_per_trigger_max)
        if self.options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(self.options.bytes_per_trigger_max)
        return ReadAllAvailable()

    def latestOffset(self, start: StreamDocument, limit: ReadLimit) -> StreamDocument:  # noqa: N802
        """The end of the next micro-batch, which reads as many new messages as ``limit`` allows; ``start`` if there is
        nothing to read yet.

        The first end is a new document even if there is nothing to read. Spark logs it, so after a restart the query
        knows that it has begun, and which queues it knew then.

        Raises:
            DataLossError: ``failOnDataLoss`` is set, and a queue was deleted or replaced, or ends below the offset in
                ``start``.
        """
        begin = StreamOffsets.from_document(start)
        subscription = self.options.subscription
        own = {queue: at for queue, at in begin.offsets.items() if subscription.wants(queue)}
        if self._target is not None:
            self._check_all_found(own)
        catalog = self._open()
        first = {} if start else self._first_offsets()
        look = catalog.look(sorted({*own, *catalog.queues(all_needed=False)}))
        self._newest = {queue: look.bounds[queue].max for queue in look.bounds}
        starts = self._starts(begin, own, look) | first
        position = {**own, **starts}
        available = dict(position)
        for queue in look.bounds.keys() & position.keys():
            most = look.bounds[queue].max
            reachable = most if self._target is None else min(most, self._target.get(queue, position[queue]))
            available[queue] = max(position[queue], reachable)
        if self._waits_for_more(sum(available[queue] - position[queue] for queue in available)):
            return start
        end = self._admit(position, available, limit)
        moved = {queue: end[queue] - 1 for queue in end if queue in starts or end[queue] != own[queue]}
        held = {queue: at for queue, at in moved.items() if queue in look.bounds and at >= look.bounds[queue].min}
        marks = catalog.marks(held)
        for queue in [queue for queue in marks if marks[queue] is None]:
            # The queue's broker has just become unavailable. A micro-batch with messages of this queue would wait for
            # the broker, and all other messages would wait, too.
            del moved[queue], end[queue]
            starts.pop(queue, None)
            if queue in own:
                end[queue] = own[queue]
            elif queue in first:
                end[queue] = starts[queue] = first[queue]
        if start and not starts and end == own:
            return start
        self._admitted_s = self._clock.monotonic()
        kept = {queue: mark for queue, mark in begin.marks.items() if queue not in moved}
        known = {queue: mark for queue, mark in marks.items() if mark is not None}
        return StreamOffsets({**begin.offsets, **end}, starts, {**kept, **known}).to_document() or {FROM: {}}

    def reportLatestOffset(self) -> OffsetDocument | None:  # noqa: N802
        """The newest offsets seen, for the query's progress reports."""
        return None if self._newest is None else to_document(self._newest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Notes the current ends of the queues; this run of the query will end there."""
        catalog = self._open()
        queues = catalog.queues(all_needed=False)
        try:
            bounds = catalog.bounds(queues)
        except RucolaError as error:
            bounds = catalog.look(queues).bounds
            if not bounds:
                raise
            logger.warning("%s; this run reads the other queues, and the next run continues with all queues", error)
        self._target = {queue: bounds[queue].max for queue in bounds}

    def partitions(self, start: StreamDocument, end: StreamDocument) -> list[InputPartition]:
        """One partition for each planned range between the two offsets."""
        if start == end:
            return []
        catalog = self._open()
        begin, stop = StreamOffsets.from_document(start), StreamOffsets.from_document(end)
        first = {**begin.offsets, **stop.starts}
        if not first and stop.offsets:  # an older version logged the first micro-batch without its start
            first = starting_offsets(self.options, catalog, sorted(stop.offsets), "latest")
        moved = {queue: at for queue, at in stop.offsets.items() if first.get(queue) != at}
        ranges = checked_ranges(
            {queue: first[queue] for queue in moved if queue in first},
            moved,
            self._bounds(moved, first),
            self.options.fail_on_data_loss,
        )
        return [InputPartition(piece) for piece in catalog.plan(ranges)]

    def _bounds(self, moved: QueueOffsets, first: QueueOffsets) -> dict[MessageQueue, Bounds]:
        """Bounds of the queues to read. If a queue's broker is unavailable, the bounds are the logged offsets, and the
        queue's tasks will wait for the broker.
        """
        catalog = self._open()
        look = catalog.look(sorted(moved))
        waiting = look.waiting & moved.keys()
        if waiting:
            names = ", ".join(sorted({queue.broker_name for queue in waiting}))
            logger.warning(
                "the micro-batch has messages of unavailable brokers (%s) and waits for these brokers", names
            )
        logged = {queue: Bounds(first[queue], moved[queue]) for queue in waiting & first.keys()}
        return look.bounds | logged | catalog.bounds(sorted(waiting - first.keys()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition. If the broker is unavailable, the task waits for the broker, because Spark has
        already logged the partition's end offset.
        """
        options = replace(self.options, waits_for_brokers=True)
        return read_range(options, self.schema, partition.value)

    def stop(self) -> None:
        """Frees files and connections."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _open(self) -> Catalog:
        if self._catalog is None:
            self._catalog = open_catalog(self.options)
        return self._catalog

    def _first_offsets(self) -> QueueOffsets:
        """Where the query begins in the queues that exist when it begins, fixed by the first call. Empty with
        ``earliest``: each queue then starts at the oldest message that it holds when its broker first responds.
        """
        if self._initial is None:
            self._initial = {}
            if self.options.starting != Position(name="earliest"):
                catalog = self._open()
                self._initial = starting_offsets(self.options, catalog, catalog.queues(all_needed=False), "latest")
        return self._initial

    def _starts(self, begin: StreamOffsets, own: QueueOffsets, look: Look) -> QueueOffsets:
        """Start offsets of the queues that cannot continue at a logged offset: new queues and replaced queues."""
        catalog = self._open()
        starts = {queue: look.bounds[queue].min for queue in look.bounds.keys() - own.keys()}
        for queue in own.keys() - look.bounds.keys() - look.waiting:
            self._lost(DataLossError(queue_text(queue), own[queue], own[queue], 0, 0))
        for queue in self._replaced(begin, own, look):
            mark, bounds = begin.marks.get(queue), look.bounds[queue]
            kind = AnotherLogError if bounds.max >= own[queue] else DataLossError
            self._lost(kind(queue_text(queue), own[queue], own[queue], *bounds))
            # There is no mark if an older version logged the offset, or if no record existed before the offset. Without
            # a mark, the stream waits until the end of the queue reaches the logged offset.
            if mark is not None:
                starts[queue] = catalog.offset_at(queue, mark.store_timestamp_ms + 1)
        return {queue: at for queue, at in starts.items() if at != own.get(queue)}

    def _replaced(self, begin: StreamOffsets, own: QueueOffsets, look: Look) -> list[MessageQueue]:
        """Queues that end below the logged offset, or whose record before this offset is not the one that was read."""
        grown = {
            queue: own[queue] - 1
            for queue in own.keys() & begin.marks.keys() & look.bounds.keys()
            if look.bounds[queue].min < own[queue] < look.bounds[queue].max
        }
        found = self._open().marks(grown) if grown else {}
        other = [queue for queue in found if found[queue] != begin.marks[queue] and found[queue] is not None]
        short = [queue for queue in own.keys() & look.bounds.keys() if look.bounds[queue].max < own[queue]]
        return sorted([*other, *short])

    def _lost(self, error: DataLossError) -> None:
        """Raises ``error`` if ``failOnDataLoss`` is set; otherwise logs it, unless an equal error was logged before."""
        if self.options.fail_on_data_loss:
            raise error
        if error.args not in self._told:
            self._told.add(error.args)
            logger.warning("%s; the query continues, because failOnDataLoss is off", error)

    def _check_all_found(self, begin: QueueOffsets) -> None:
        """Checks that all named topics and queues exist. A run that ends by itself does not wait until they are
        created.

        Raises:
            ConfigError: no topic matches the pattern, or a named topic or an assigned queue does not exist and was
                never read.
        """
        subscription = self.options.subscription
        catalog = self._open()
        seen = {*begin, *catalog.queues(all_needed=False)}
        topics = {queue.topic for queue in seen}
        if not seen or not topics.issuperset(subscription.named_topics) or not seen.issuperset(subscription.queues):
            catalog.queues(all_needed=True)

    def _waits_for_more(self, backlog: int) -> bool:
        """Whether ``minOffsetsPerTrigger`` delays a backlog of ``backlog`` messages; never in a run that ends by
        itself.
        """
        least = self.options.offsets_per_trigger_min
        if least is None or backlog >= least or self._target is not None or self._admitted_s is None:
            return False
        return (self._clock.monotonic() - self._admitted_s) * 1000 < self.options.trigger_delay_max_ms

    def _admit(self, begin: QueueOffsets, available: QueueOffsets, limit: ReadLimit) -> QueueOffsets:
        end = available
        if isinstance(limit, ReadMaxRows):
            end = admit_rows(begin, end, limit.max_rows)
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        if isinstance(limit, ReadMaxRows):
            bytes_max = self.options.bytes_per_trigger_max
        if bytes_max is not None:
            backlog = [queue for queue in sorted(end) if end[queue] > begin[queue]]
            catalog = self._open()
            samples = {queue: catalog.mean_record_bytes(queue, begin[queue], end[queue]) for queue in backlog}
            sizes = {queue: size for queue, size in samples.items() if size is not None}
            admitted = admit_bytes({q: begin[q] for q in sizes}, {q: end[q] for q in sizes}, bytes_max, sizes)
            end = {**end, **{queue: begin[queue] for queue in backlog}, **admitted}
        return end
