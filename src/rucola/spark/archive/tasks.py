"""Runs tasks on Spark, and turns planned pieces into rows of a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rucola.arrow.ranges import SourceRange
from rucola.arrow.read_options import ReadOptions
from rucola.arrow.schema import all_columns
from rucola.lake.workers import Task, Workers
from rucola.spark.failures import one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ANSWER = "answer string"


def in_executors(spark: SparkSession) -> Workers:
    """Returns the executors of a session as ``Workers``, whose failures are ``TaskFailedError``."""

    def run(task: Task, count: int) -> list[str]:
        if not count:
            return []
        with one_line():  # the archiver must know which error it is
            found = numbered(spark, count).mapInArrow(_answering(task), "number long, " + ANSWER).collect()
        return [row.answer for row in sorted(found)]

    return run


def source_schema(options: ReadOptions, names: Iterable[str] = ()) -> StructType:
    """The columns that a reader builds, for Spark; limited to ``names`` unless ``names`` is empty."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from rucola.arrow.columns import arrow_schema

    wanted = {name.lower() for name in names}
    chosen = [column for column in all_columns(options) if not wanted or column.name.lower() in wanted]
    return from_arrow_schema(arrow_schema(chosen))


def numbered(spark: SparkSession, count: int) -> DataFrame:
    """A DataFrame of the numbers 0 to ``count`` - 1, each in a partition of its own."""
    return spark.range(0, count, 1, count)


def rows_of(spark: SparkSession, options: ReadOptions, schema: StructType, pieces: Sequence[SourceRange]) -> DataFrame:
    """A DataFrame of the rows in ``pieces``; each piece is read by a task of its own."""
    return reading(spark, schema, len(pieces), _piece_reader(options, schema, pieces))


def reading(
    spark: SparkSession, schema: StructType, count: int, read: Callable[[int], Iterator[pa.RecordBatch]]
) -> DataFrame:
    """A DataFrame of all rows that ``read`` yields for the numbers 0 to ``count`` - 1; each number is one task."""
    if not count:
        return spark.createDataFrame([], schema)

    def read_numbers(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from read(number)

    return numbered(spark, count).mapInArrow(read_numbers, schema)


def writing(rows: DataFrame, write: Callable[[Iterable[pa.RecordBatch]], str]) -> list[str]:
    """Calls ``write`` with the rows of each partition; returns the results of all calls."""

    def write_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"answer": [write(batches)]})

    with one_line():
        return [row.answer for row in rows.mapInArrow(write_rows, ANSWER).collect()]


def _answering(task: Task) -> Any:
    def answer(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from rucola.spark.reading import leave_modules_out_of_collections

        for batch in numbers:
            for number in batch.column(0).to_pylist():
                found = task(number)
                leave_modules_out_of_collections()
                yield pa.RecordBatch.from_pydict({"number": [number], "answer": [found]})

    return answer


def _piece_reader(
    options: ReadOptions, schema: StructType, pieces: Sequence[SourceRange]
) -> Callable[[int], Iterator[pa.RecordBatch]]:
    def read(number: int) -> Iterator[pa.RecordBatch]:
        from rucola.spark.reading import read_range

        return read_range(options, schema, pieces[number])

    return read
