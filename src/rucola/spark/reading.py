"""Reads a range in a task. Modules that are slow to import are imported inside ``read_range``."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from rucola.arrow.ranges import SourceRange
from rucola.arrow.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def read_range(options: ReadOptions, schema: StructType, part: SourceRange) -> Iterator[pa.RecordBatch]:
    """Yields the rows of ``part`` as record batches that match ``schema`` exactly. Runs in a task."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from rucola.arrow import reading

    batches = reading.read_range(options, to_arrow_schema(schema, timezone="UTC"), part)
    leave_modules_out_of_collections()
    return batches


@cache
def leave_modules_out_of_collections() -> None:
    """Excludes all objects that exist now from garbage collection, once in each process.

    Spark's worker runs a full garbage collection after each task, and accepts the next task only afterwards. PySpark,
    PyArrow and NumPy consist of very many objects, which never become garbage. A collection that visits all of these
    objects takes longer than some tasks.
    """
    gc.freeze()
