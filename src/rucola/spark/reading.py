"""Reads a range in a task. Modules that are slow to import are imported inside the function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rucola.arrow.ranges import SourceRange
from rucola.arrow.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def read_range(options: ReadOptions, schema: StructType, piece: SourceRange) -> Iterator[pa.RecordBatch]:
    """Yields the rows of ``piece`` as record batches that match ``schema`` exactly. Runs in a task."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from rucola.arrow.reading import read_range as read

    return read(options, to_arrow_schema(schema, timezone="UTC"), piece)
