"""A data source that sends one prepared batch repeatedly: it shows how fast Spark can take rows from Python at all.

It plans and starts its tasks as ``format("rocketmq")`` over a directory does. Each task builds its first full batch as
for a store directory, then sends this batch until it has sent its share of the rows. The batch stays in the CPU's
cache, and nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rucola.arrow.schema import chosen_columns
from rucola.spark.batch import RocketMQReader
from rucola.spark.options import SourceOptions, parse_options
from rucola.spark.reading import read_range
from rucola.spark.schema import to_ddl

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "rocketmq-prepared"
ROWS = "rows"
"""Name of the option for the number of rows; all other options are those of ``format("rocketmq")``."""
BATCHES_LOOKED_AT = 3
"""Number of batches that a task reads; it then sends only the largest batch, repeatedly. The first batch is small."""


class PreparedSource(DataSource):
    """A data source that repeats the same rows, which are like those of a store directory."""

    @classmethod
    def name(cls) -> str:
        """Returns the format's name."""
        return FORMAT

    def schema(self) -> str:
        """Returns the columns of ``format("rocketmq")``."""
        return to_ddl(chosen_columns(self._options()))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader for batch queries; the source has no stream reader."""
        return PreparedReader(self._options(), schema, int(self.options[ROWS]))

    def _options(self) -> SourceOptions:
        return parse_options({name: value for name, value in self.options.items() if name.lower() != ROWS})


class PreparedReader(RocketMQReader):
    """Sends ``rows`` rows, divided evenly among the partitions with which the directory would be read."""

    def __init__(self, options: SourceOptions, schema: StructType, rows: int) -> None:
        super().__init__(options, schema)
        self.rows = rows

    def partitions(self) -> list[InputPartition]:
        """Returns the partitions of the directory, each with the number of rows that it must yield."""
        pieces = super().partitions()
        ends = [self.rows * number // len(pieces) for number in range(len(pieces) + 1)]
        return [InputPartition((piece.value, ends[at + 1] - ends[at])) for at, piece in enumerate(pieces)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the same batch again and again until the partition has its number of rows."""
        piece, rows = partition.value
        first = islice(read_range(self.options, self.schema, piece), BATCHES_LOOKED_AT)
        batch = max(first, key=lambda one: one.num_rows)
        for _ in range(rows // batch.num_rows):
            yield batch
        yield batch.slice(0, rows % batch.num_rows)
