"""Runs the tasks of the store doctor (``store.doctor``) as tasks of Spark.

Driver and executors must see the store under the same path. Spark retries a task that fails, and may run two attempts
of a task at the same time. Each attempt therefore writes its own files, and the driver uses those of one attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from rucola.errors import StoreDamagedError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from rucola.store.doctor.staged import Phase, Runner
    from rucola.store.offline.search import MessageQuery

_LOOK_S = 0.5
DAMAGE_SCHEMA = "path string, position long, problem string, advice string"
FINDING_SCHEMA = "store string, kind string, file string, position long, count long, detail string"
TALLY_SCHEMA = "store string, topic string, queueId int, tag string, hourMs long, messages long, bytes long"
MESSAGE_SCHEMA = (
    "store string, topic string, queueId int, queueOffset long, physicalOffset long, storeTimestampMs long, "
    "tags string, keys string, body binary"
)
T = TypeVar("T")


def in_spark(spark: SparkSession) -> Runner:
    """Returns a runner that executes the store doctor's tasks in a session, each as one Spark task.

    The runner raises ``StoreDamagedError`` if a task found damage, and Spark's error if a task failed too often.
    """

    def run(phase: Phase, numbers: Sequence[int], look: Callable[[], None]) -> None:
        tasks, call = list(numbers), uuid4().hex

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            attempt = f"{call}-{0 if context is None else context.taskAttemptId()}"
            for number in _tasks(batches, tasks):
                try:
                    phase.run(number, attempt)
                except StoreDamagedError as error:
                    # A retry would find the same damage, so the task reports the damage in a row instead of failing.
                    yield _batch(DAMAGE_SCHEMA, [(error.path, error.position, error.problem, error.advice)])

        _watch(_frame(spark, len(tasks), work, DAMAGE_SCHEMA), look)

    return run


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
    """Waits until the tasks end and calls ``look`` at intervals; raises the first damage that a task reports.

    Raises:
        StoreDamagedError: a task found damage.
    """
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(frame.collect)
        while not done.done():
            wait([done], _LOOK_S)
            look()
    for damage in done.result():
        raise StoreDamagedError(damage.path, damage.position, damage.problem, damage.advice)
