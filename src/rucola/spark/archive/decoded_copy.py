"""Copies messages into a table with typed columns, which the JVM makes from the bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rucola.arrow.ranges import SourceRange
from rucola.arrow.read_options import ReadOptions
from rucola.errors import ConfigError
from rucola.lake.archiver import Copy, plain_copy, write_all
from rucola.lake.columns import DAY, LIFE, arrow_of, nullable, table_schema
from rucola.lake.labels import Labels
from rucola.places.place import Place
from rucola.spark.archive.tasks import in_executors, rows_of, source_schema, writing

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Decode = Callable[["DataFrame"], "DataFrame"]
"""Adds typed columns to rows of messages, as ``rucola.spark.decoding.decode`` does."""


def decoded_copy(spark: SparkSession, decode: Decode) -> Copy:
    """A ``Copy`` that passes the rows through ``decode``."""

    def copy(
        place: Place, options: ReadOptions, pieces: Sequence[SourceRange], labels: Labels
    ) -> tuple[list[str], dict[str, Any]]:
        if not pieces:
            return plain_copy(in_executors(spark))(place, options, pieces, labels)
        source = source_schema(options)
        decoded = decode(rows_of(spark, options, source, pieces))
        schema = table_schema(options)
        typed = decoded.schema.jsonValue()["fields"][len(source) :]
        if taken := [field["name"] for field in typed if field["name"].lower() in (DAY.lower(), LIFE)]:
            raise ConfigError("decode", ", ".join(taken), f"other names than {DAY} and {LIFE}, columns of the table")
        schema["fields"] += nullable(typed)
        return writing(decoded, _row_writer(place, arrow_of(schema), labels, len(source))), schema

    return copy


def _row_writer(place: Place, schema: pa.Schema, labels: Labels, at: int) -> Callable[[Iterable[pa.RecordBatch]], str]:
    return lambda batches: write_all(place, schema, (labels.applied(batch, at) for batch in batches))
