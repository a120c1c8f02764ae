"""Opens catalogs and reads ranges, from a store directory or from brokers. Modules that are slow to import are imported
inside the functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rucola.arrow.ranges import LogRange, QueueRange, RecordRange, SourceRange
from rucola.arrow.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from rucola.arrow.catalog import Catalog
    from rucola.arrow.scanner import Scanned


def open_catalog(options: ReadOptions) -> Catalog:
    """The catalog of the store directories or of the brokers, depending on the options."""
    if len(options.stores) > 1:
        from rucola.arrow.stores_catalog import StoresCatalog

        return StoresCatalog(options)
    if options.store_path:
        from rucola.arrow.store_catalog import StoreCatalog

        return StoreCatalog(options)
    from rucola.arrow.broker_catalog import BrokerCatalog

    return BrokerCatalog(options)


def read_range(
    options: ReadOptions, schema: pa.Schema, part: SourceRange, scanned: Scanned | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of ``part`` as record batches of ``schema``, whose fields are columns in the chosen style.

    Args:
        options: the options of the reader.
        schema: the columns.
        part: what to read.
        scanned: is told how many messages of the part have been passed, whether they are chosen or not. With the
            parts of a lookup, it is told only of those that the index has found.
    """
    from rucola.arrow.columns import BatchBuilder

    builder = BatchBuilder(options, schema.names, schema, part.broker_name)
    if isinstance(part, QueueRange):
        from rucola.arrow.broker_pull import pull_queue

        return pull_queue(options, builder, part, scanned)
    from rucola.arrow.store_scan import scan_log, scan_queue, scan_records

    if isinstance(part, LogRange):
        return scan_log(options, builder, part, scanned)
    if isinstance(part, RecordRange):
        return scan_records(options, builder, part, scanned)
    return scan_queue(options, builder, part, scanned)
