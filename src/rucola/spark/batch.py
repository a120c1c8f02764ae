"""The batch reader: the driver fixes the offsets once, then every task reads its own range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from rucola.arrow.catalog import can_narrow, checked_ranges, ending_offsets, starting_offsets
from rucola.arrow.ranges import QueueRange, SourceRange
from rucola.arrow.reading import open_catalog
from rucola.spark.options import SourceOptions
from rucola.spark.pushdown import Wanted, cut_ranges, lookup, narrowed, wanted_by
from rucola.spark.reading import read_range

if TYPE_CHECKING:
    import pyarrow as pa

    from rucola.arrow.catalog import Catalog
    from rucola.arrow.key_lookup import KeyLookup


class RocketMQReader(DataSourceReader):
    """Reads the messages between the starting and the ending offsets, which are fixed when Spark plans the query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.pushed = Wanted()

    def partitions(self) -> list[InputPartition]:
        """One partition for each planned range; none if there is nothing to read."""
        catalog = open_catalog(self.options)
        try:
            queues = catalog.queues(all_needed=True)
            keys = lookup(self.pushed, self.options)
            if keys is not None and can_narrow(self.options):
                queues = catalog.holders(queues, *keys)
            start = starting_offsets(self.options, catalog, queues, "earliest")
            end = ending_offsets(self.options, catalog, queues)
            ranges = checked_ranges(start, end, catalog.bounds(queues), self.options.fail_on_data_loss)
            return [InputPartition(one) for one in self._planned(ranges, catalog, keys)]
        finally:
            catalog.close()

    def _planned(self, ranges: list[QueueRange], catalog: Catalog, keys: KeyLookup | None) -> list[SourceRange]:
        """The ranges of the tasks. They hold every message in ``ranges`` that the query needs, and perhaps others."""
        found = None if keys is None else catalog.plan_lookup(ranges, *keys)
        if found is None and self.options.lite.names is not None and self.options.use_index is not False:
            found = catalog.plan_lite(ranges, self.options.lite.names)
        return catalog.plan(ranges) if found is None else found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition. If the plan is empty, Spark makes one partition without a value."""
        if partition.value is None:
            return iter(())
        return read_range(self.options, self.schema, partition.value)


class FilteringReader(RocketMQReader):
    """Leaves out messages that the query's filters exclude.

    This reader needs a session with filter pushdown. Without pushdown, Spark refuses a reader with ``pushFilters``.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Remembers the filters; Spark still applies all of them."""
        self.pushed = wanted_by(filters)
        self.options = narrowed(self.options, self.pushed)
        return filters

    def _planned(self, ranges: list[QueueRange], catalog: Catalog, keys: KeyLookup | None) -> list[SourceRange]:
        return super()._planned(cut_ranges(self.pushed, ranges, catalog), catalog, keys)
