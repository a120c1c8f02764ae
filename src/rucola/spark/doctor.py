"""Runs the tasks of the store doctor (``store.doctor``) and of other commands over whole stores as tasks of Spark.

Driver and executors must see the store under the same path. Spark retries a task that fails, and may run two attempts
of a task at the same time. Each attempt therefore writes its own files, and the driver uses those of one attempt.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.errors import ForeignEntryError, FormatError, StoreDamagedError
from rucola.runtime.files import Files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from rucola.store.doctor.census import DeadLetters, SegmentPart, Tally
    from rucola.store.doctor.staged import Phase, Runner
    from rucola.store.offline.rows import SegmentRows
    from rucola.store.offline.search import MessageQuery
    from rucola.store.verify.check import VerifyReport

_LOOK_S = 0.5
ANSWER_SCHEMA = "answer binary"
FINDING_SCHEMA = "store string, kind string, file string, position long, count long, detail string"
TALLY_SCHEMA = "store string, topic string, queueId int, tag string, hourMs long, messages long, bytes long"
MESSAGE_SCHEMA = (
    "store string, topic string, queueId int, queueOffset long, physicalOffset long, storeTimestampMs long, "
    "tags string, keys string, body binary"
)
_FINAL = StoreDamagedError, FormatError, ForeignEntryError
"""Errors that a retry would meet again, on any machine."""
_POSITIONS = [column for column in RecordColumn if column.name.endswith("_POS")]
A = TypeVar("A")
T = TypeVar("T")


def in_spark(spark: SparkSession) -> Runner:
    """Returns a runner that executes the store doctor's tasks in a session, each as one Spark task.

    The runner raises ``StoreDamagedError`` if a task found damage, and Spark's error if a task failed too often.
    """

    def run(phase: Phase, numbers: Sequence[int], look: Callable[[], None]) -> None:
        call = uuid4().hex

        def work(number: int) -> Iterable[None]:
            from pyspark import TaskContext

            context = TaskContext.get()
            phase.run(number, f"{call}-{0 if context is None else context.taskAttemptId()}")
            return ()

        _watch(_answering(spark, work, numbers), look)

    return run


class SparkTasks:
    """Runs the tasks of ``rucola store`` in a session.

    Attributes:
        run: runs the tasks of a staged job.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.run = in_spark(spark)

    def verify(self, stores: Sequence[str], commit_log: str | None, /) -> Iterator[VerifyReport]:
        """Checks each store in one task; yields the reports in the order of ``stores``.

        Raises:
            StoreDamagedError: a directory holds no store.
        """
        return self._answers(partial(_verified, commit_log), [Files().expand(store) for store in stores])

    def count(self, parts: Sequence[SegmentPart], /) -> Iterator[tuple[list[Tally], list[DeadLetters]]]:
        """Counts the messages of each segment in one task, as ``census.count_in``."""
        return self._answers(_counted, parts)

    def find(
        self, stores: Sequence[str], wanted: MessageQuery, _by_index: bool, most: int | None, /
    ) -> Iterator[tuple[str, SegmentRows]]:
        """Yields the first ``most`` matching messages of ``stores``, each with its store; reads each segment in one
        task.
        """
        from rucola.store.doctor.census import segments_of
        from rucola.store.offline.rows import SegmentRows

        for store, record, columns in self._answers(partial(_copied, wanted), segments_of(stores), most):
            yield store, SegmentRows(memoryview(record), columns, [0])

    def _answers(
        self, work: Callable[[A], Iterable[object]], items: Sequence[A], most: int | None = None
    ) -> Iterator[Any]:
        frame = _answering(self._spark, work, items)
        return _unpacked((frame if most is None else frame.limit(most)).collect())


def findings(spark: SparkSession, stores: Sequence[str]) -> DataFrame:
    """The findings of ``rucola store verify`` in ``stores``; checks each store in one Spark task."""
    roots = list(stores)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from rucola.store.verify.check import verify

        for store in _tasks(batches, roots):
            found = verify(store).findings
            yield _batch(
                FINDING_SCHEMA,
                [(store, str(one.kind), one.file, one.position, one.count, one.detail) for one in found],
            )

    return _frame(spark, len(roots), work, FINDING_SCHEMA)


def statistics(spark: SparkSession, stores: Sequence[str]) -> DataFrame:
    """Counts of messages and bytes in ``stores`` by topic, queue, tag and hour, with one Spark task per segment.

    Each segment has rows of its own, so a combination of these fields may have several rows. For totals, group by these
    fields and sum ``messages`` and ``bytes``.
    """
    from rucola.store.doctor.census import segments_of

    parts = segments_of(stores)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from rucola.store.doctor.census import count_in

        for part in _tasks(batches, parts):
            yield _batch(TALLY_SCHEMA, list(map(tuple, count_in(part)[0])))

    return _frame(spark, len(parts), work, TALLY_SCHEMA)


def find(spark: SparkSession, stores: Sequence[str], wanted: MessageQuery) -> DataFrame:
    """The messages in ``stores`` that match ``wanted``, with one Spark task per segment.

    To find a key in one store, prefer option ``keys`` of the format ``rocketmq``: it uses the index.
    """
    from rucola.store.doctor.census import segments_of

    parts = segments_of(stores)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from rucola.formats.message import message_from_row
        from rucola.store.doctor.census import find_in

        for part in _tasks(batches, parts):
            for rows in find_in(part, wanted):
                messages = [message_from_row(rows.view, rows.table, row) for row in rows.chosen]
                yield _batch(
                    MESSAGE_SCHEMA,
                    [
                        (
                            part.store, one.topic, one.queue_id, one.queue_offset, one.physical_offset,
                            one.store_timestamp_ms, one.properties.get("TAGS"), one.properties.get("KEYS"), one.body,
                        )
                        for one in messages
                    ],
                )  # fmt: skip

    return _frame(spark, len(parts), work, MESSAGE_SCHEMA)


def _verified(commit_log: str | None, store: str) -> Iterable[VerifyReport]:
    from rucola.store.verify.check import verify

    return [verify(store, commit_log_path=commit_log)]


def _counted(part: SegmentPart) -> Iterable[tuple[list[Tally], list[DeadLetters]]]:
    from rucola.store.doctor.census import count_in

    return [count_in(part)]


def _copied(wanted: MessageQuery, part: SegmentPart) -> Iterator[tuple[str, bytes, array[int]]]:
    """The matching messages of a segment: store, record, and the record's row, whose positions refer to the record."""
    from rucola.store.doctor.census import find_in

    for view, table, chosen in find_in(part, wanted):
        for row in chosen:
            columns = table[row * ROW_WIDTH : (row + 1) * ROW_WIDTH]
            start = columns[RecordColumn.RECORD_POS]
            for column in _POSITIONS:
                columns[column] -= start
            yield part.store, bytes(view[start : start + columns[RecordColumn.RECORD_SIZE]]), columns


def _answering(spark: SparkSession, work: Callable[[A], Iterable[object]], items: Sequence[A]) -> DataFrame:
    """A DataFrame of pickled answers of ``work``, in the order of ``items``, with one task for each item. The answer of
    a task that met an error which a retry would meet again is this error.
    """
    tasks = list(items)

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for item in _tasks(batches, tasks):
            try:
                for one in work(item):
                    yield _batch(ANSWER_SCHEMA, [(pickle.dumps(one),)])
            except _FINAL as error:
                yield _batch(ANSWER_SCHEMA, [(pickle.dumps(error),)])

    return _frame(spark, len(tasks), answer, ANSWER_SCHEMA)


def _unpacked(rows: Iterable[Any]) -> Iterator[Any]:
    """The answers in ``rows``.

    Raises:
        RucolaError: a task met an error.
    """
    for row in rows:
        answer = pickle.loads(row.answer)
        if isinstance(answer, _FINAL):
            raise answer
        yield answer


def _frame(
    spark: SparkSession, count: int, work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """A DataFrame of the rows that ``work`` makes from the numbers 0 to ``count`` - 1, with one task per number."""
    return spark.range(0, count, 1, max(count, 1)).mapInArrow(work, schema)


def _tasks(batches: Iterator[pa.RecordBatch], tasks: Sequence[T]) -> Iterator[T]:
    """The tasks whose indices are in the first column of ``batches``."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield tasks[number]


def _batch(schema: str, rows: Sequence[tuple[object, ...]]) -> pa.RecordBatch:
    """A record batch of ``rows``; ``schema`` is in Spark's DDL notation."""
    import pyarrow

    types = {"string": pyarrow.string(), "int": pyarrow.int32(), "long": pyarrow.int64(), "binary": pyarrow.binary()}
    fields = [field.split() for field in schema.split(", ")]
    columns = list(zip(*rows, strict=True)) or [()] * len(fields)
    arrays = [pyarrow.array(column, types[kind]) for column, (_, kind) in zip(columns, fields, strict=True)]
    return pyarrow.RecordBatch.from_arrays(arrays, [name for name, _ in fields])


def _watch(frame: DataFrame, look: Callable[[], None]) -> None:
    """Waits until the tasks end and calls ``look`` at intervals.

    Raises:
        StoreDamagedError: a task found damage.
    """
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(frame.collect)
        while not done.done():
            wait([done], _LOOK_S)
            look()
    for _ in _unpacked(done.result()):
        pass
