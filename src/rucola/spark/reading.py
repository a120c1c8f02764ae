"""Where the faces meet the two places to read from. Heavy modules are imported in the functions, not above."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rucola.spark.options import SourceOptions
from rucola.spark.ranges import LogRange, QueueRange, SourceRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from rucola.spark.catalog import Catalog


def open_catalog(options: SourceOptions) -> Catalog:
    """The catalog of the store directory or of the brokers, whichever the options name."""
    if options.store_path:
        from rucola.spark.store_catalog import StoreCatalog

        return StoreCatalog(options)
    from rucola.spark.broker_catalog import BrokerCatalog

    return BrokerCatalog(options)


def read_range(options: SourceOptions, schema: StructType, piece: SourceRange) -> Iterator[pa.RecordBatch]:
    """The rows of ``piece`` as record batches that match ``schema`` exactly. Runs in a task."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from rucola.spark.columns import BatchBuilder

    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    broker_name = piece.queue.broker_name if isinstance(piece, QueueRange) else options.broker_name
    builder = BatchBuilder(options, schema.fieldNames(), arrow_schema, broker_name)
    if isinstance(piece, QueueRange):
        from rucola.spark.broker_pull import pull_queue

        return pull_queue(options, builder, piece)
    from rucola.spark.store_scan import scan_log, scan_queue

    if isinstance(piece, LogRange):
        return scan_log(options, builder, piece)
    return scan_queue(options, builder, piece)
