"""Reads the rows of a table's data files. Runs in tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from rucola.lake.columns import LIFE
from rucola.lake.table_log import DataFile
from rucola.places.place import Place

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 4096


def joined_rows(place: Place, schema: pa.Schema, files: Iterable[DataFile]) -> Iterator[pa.RecordBatch]:
    """The rows of the files, with the columns of ``schema``; other columns are not read.

    A column that a file lacks is null, or 0 if it is the life, or it is part of the file's partition: other programs
    leave these columns out of the files that they write.
    """
    for one in files:
        with place.parquet(one.path) as file:
            here = set(file.schema_arrow.names)
            names = [name for name in schema.names if name in here]
            for batch in file.iter_batches(BATCH_ROWS, columns=names):
                yield completed(batch, schema, one)


def completed(batch: pa.RecordBatch, schema: pa.Schema, file: DataFile) -> pa.RecordBatch:
    """Rows of a file with all columns of ``schema``."""
    import pyarrow as pa

    columns = [_column(batch, field, file.partition) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field, partition: Mapping[str, str]) -> pa.Array:
    import pyarrow as pa

    missing = 0 if field.name == LIFE else None  # an earlier version knew only first lives
    if field.name in batch.schema.names:
        column = batch.column(field.name).cast(field.type)
        return column if missing is None else column.fill_null(missing)
    return pa.repeat(pa.scalar(partition.get(field.name, missing)).cast(field.type), batch.num_rows)
