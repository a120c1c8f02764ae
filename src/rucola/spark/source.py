"""``format("rocketmq")``: the class that Spark finds, instantiates on the driver, and asks for readers and writers.

Spark asks for the schema, plans a read and executes it in different processes. Between these processes, Spark passes
copies of the data source and its readers, so these copies hold no open files or connections. ``pip install`` makes the
format known through ``pyspark_rocketmq``; ``spark.dataSource.register`` with this class does the same for one session.
"""

from __future__ import annotations

import sys

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from rucola.arrow.schema import chosen_columns
from rucola.errors import ConfigError
from rucola.spark.batch import FilteringReader, RocketMQReader
from rucola.spark.options import parse_options
from rucola.spark.schema import check_schema, to_ddl
from rucola.spark.sink import RocketMQStreamWriter, RocketMQWriter
from rucola.spark.sink_options import parse_sink_options, sink_layout
from rucola.spark.stream import RocketMQStreamReader


class RocketMQDataSource(DataSource):
    """The data source: reads topics of a RocketMQ cluster or a store directory as rows, and sends rows as messages."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "rocketmq"

    def schema(self) -> str:
        """The columns as DDL; Spark calls this only if the user gave no schema."""
        return to_ddl(chosen_columns(parse_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader for batches."""
        options = parse_options(self.options)
        check_schema(options, schema)
        # Spark plans a query in the worker module ``data_source_pushdown_filters`` only if filter pushdown is on.
        pushes = options.push_filters and "pyspark.sql.worker.data_source_pushdown_filters" in sys.argv
        return FilteringReader(options, schema) if pushes else RocketMQReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Returns the reader for streams."""
        options = parse_options(self.options)
        check_schema(options, schema)
        return RocketMQStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The batch writer."""
        if overwrite:
            raise ConfigError("mode", "overwrite", 'mode("append"); the messages of a topic cannot be replaced')
        options = parse_sink_options(self.options)
        return RocketMQWriter(options, sink_layout(options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """The stream writer."""
        if overwrite:
            raise ConfigError("outputMode", "complete", "append or update; the messages of a topic cannot be replaced")
        options = parse_sink_options(self.options)
        return RocketMQStreamWriter(options, sink_layout(options, schema))
