"""The stream face: admission on the driver, reads that are a function of (start, end) in the tasks.

The object that answers ``latestOffset`` lives in one driver-side process per query and keeps the catalog open; the
object that runs ``read`` is another copy. Spark replays a logged but uncommitted micro-batch with the same two offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError
from rucola.spark.admission import admit_bytes, admit_rows
from rucola.spark.catalog import Bounds, Catalog, checked_ranges, clamp, starting_offsets
from rucola.spark.offsets import OffsetDocument, QueueOffsets, from_document, to_document
from rucola.spark.options import Position, SourceOptions
from rucola.spark.ranges import QueueRange
from rucola.spark.reading import open_catalog, read_range

if TYPE_CHECKING:
    import pyarrow as pa


class RocketMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the queues of a subscription. Queues that appear later are read from their first message."""

    def __init__(self, options: SourceOptions, schema: StructType, catalog: Catalog | None = None) -> None:
        if options.ending != Position(name="latest"):
            raise ConfigError("endingOffsets, endingTimestamp", "given", "nothing: a stream has no end")
        self.options = options
        self.schema = schema
        self._catalog = catalog
        self._initial: QueueOffsets | None = None
        self._target: QueueOffsets | None = None
        self._newest: QueueOffsets | None = None

    # The methods below have Spark's names.

    def initialOffset(self) -> OffsetDocument:  # noqa: N802
        """Where a new query starts; Spark asks more than once, and ``latest`` is resolved once."""
        if self._initial is None:
            catalog = self._open()
            self._initial = starting_offsets(self.options, catalog, catalog.queues(all_needed=False), "latest")
        return to_document(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit on messages, else the one on bytes; with both, the one on bytes is applied on top."""
        if self.options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self.options.offsets_per_trigger_max)
        if self.options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(self.options.bytes_per_trigger_max)
        return ReadAllAvailable()

    def latestOffset(self, start: OffsetDocument, limit: ReadLimit) -> OffsetDocument:  # noqa: N802
        """Where the next micro-batch ends: what exists, cut by ``limit``, never below ``start``."""
        begin = from_document(start)
        if self._target is not None:
            self._check_all_found(begin)
        bounds = self._current_bounds(begin)
        for queue in bounds:
            begin.setdefault(queue, bounds[queue].min)
        available = dict(begin)
        for queue, (_, most) in bounds.items():
            reachable = most if self._target is None else min(most, self._target.get(queue, begin[queue]))
            available[queue] = max(begin[queue], reachable)
        return to_document(self._admit(begin, available, limit))

    def reportLatestOffset(self) -> OffsetDocument | None:  # noqa: N802
        """The newest offsets seen, for the query's progress reports."""
        return None if self._newest is None else to_document(self._newest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remembers what exists now; this run of the query ends there."""
        catalog = self._open()
        bounds = catalog.bounds(catalog.queues(all_needed=False))
        self._target = {queue: bounds[queue].max for queue in bounds}

    def partitions(self, start: OffsetDocument, end: OffsetDocument) -> list[InputPartition]:
        """One partition per planned range between the two offsets."""
        catalog = self._open()
        begin, stop = from_document(start), from_document(end)
        bounds = catalog.bounds(sorted({*begin, *stop}))
        ranges = checked_ranges(begin, stop, bounds, self.options.fail_on_data_loss)
        return [InputPartition(piece) for piece in catalog.plan(ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        return read_range(self.options, self.schema, partition.value)

    def stop(self) -> None:
        """Frees files and connections."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _open(self) -> Catalog:
        if self._catalog is None:
            self._catalog = open_catalog(self.options)
        return self._catalog

    def _current_bounds(self, begin: Mapping[MessageQueue, int]) -> dict[MessageQueue, Bounds]:
        """Bounds of the queues of the query and of new ones.

        Raises:
            DataLossError: a queue ends before its start offset, as after a crash that lost its tail.
        """
        catalog = self._open()
        bounds = catalog.bounds(sorted({*begin, *catalog.queues(all_needed=False)}))
        self._newest = {queue: bounds[queue].max for queue in bounds}
        for queue in bounds:
            if queue in begin and bounds[queue].max < begin[queue]:
                clamp(QueueRange(queue, begin[queue], begin[queue]), bounds[queue], self.options.fail_on_data_loss)
        return bounds

    def _check_all_found(self, begin: QueueOffsets) -> None:
        """A run that ends by itself does not wait for topics to be made: a name that is nowhere is a mistyped one.

        Raises:
            ConfigError: a topic, or an assigned queue, is neither there nor among those read before.
        """
        subscription = self.options.subscription
        catalog = self._open()
        seen = {*begin, *catalog.queues(all_needed=False)}
        topics = {queue.topic for queue in seen}
        if not topics.issuperset(subscription.named_topics) or not seen.issuperset(subscription.queues):
            catalog.queues(all_needed=True)

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
            sizes = {queue: catalog.mean_record_bytes(queue, begin[queue], end[queue]) for queue in backlog}
            admitted = admit_bytes({q: begin[q] for q in backlog}, {q: end[q] for q in backlog}, bytes_max, sizes)
            end = {**end, **admitted}
        return end
