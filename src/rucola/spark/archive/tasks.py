"""Runs tasks on Spark, or one after another in this process, and turns planned pieces into rows of a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rucola.arrow.ranges import SourceRange
from rucola.arrow.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Task = Callable[[int], str]
"""Runs the task with the given number; returns its result. A task may run several times, even in parallel."""
ANSWER = "answer string"


def run_tasks(spark: SparkSession | None, task: Task, count: int) -> list[str]:
    """Runs the tasks 0 to ``count`` - 1; returns their results in order.

    Args:
        spark: the session whose executors run the tasks; None for this process, which needs no Java.
        task: the function to run; it is pickled, with everything that it refers to.
        count: number of tasks.
    """
    if spark is None:
        return [task(number) for number in range(count)]
    if not count:
        return []
    found = numbered(spark, count).mapInArrow(_answering(task), "number long, " + ANSWER).collect()
    return [row.answer for row in sorted(found)]


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

    return [row.answer for row in rows.mapInArrow(write_rows, ANSWER).collect()]


def _answering(task: Task) -> Any:
    def answer(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pydict({"number": [number], "answer": [task(number)]})

    return answer


def _piece_reader(
    options: ReadOptions, schema: StructType, pieces: Sequence[SourceRange]
) -> Callable[[int], Iterator[pa.RecordBatch]]:
    def read(number: int) -> Iterator[pa.RecordBatch]:
        from rucola.spark.reading import read_range

        return read_range(options, schema, pieces[number])

    return read
