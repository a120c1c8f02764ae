"""Runs the tasks of the store doctor (``store.doctor``) as tasks of Spark.

Driver and executors must see the store under the same path. A task that fails is retried by Spark, and may run twice at
a time: each attempt writes under a name of its own, and the driver publishes one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING
from uuid import uuid4

from rucola.errors import StoreDamagedError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from rucola.store.doctor.rebuild import Runner

_LOOK_S = 0.5
DAMAGE_SCHEMA = "path string, position long, problem string, advice string"


def in_spark(spark: SparkSession) -> Runner:
    """A runner of tasks in a session, one Spark task each.

    The runner raises ``StoreDamagedError`` if a task found damage, and Spark's error if a task failed too often.
    """

    def run(phase: str, staging: str, numbers: Sequence[int], look: Callable[[], None]) -> None:
        tasks, call = list(numbers), uuid4().hex

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow
            from pyspark import TaskContext

            from rucola.store.doctor.rebuild import run_task

            context = TaskContext.get()
            attempt = f"{call}-{0 if context is None else context.taskAttemptId()}"
            for batch in batches:
                for at in batch.column(0).to_pylist():
                    try:
                        run_task(phase, staging, tasks[at], attempt)
                    except StoreDamagedError as error:
                        # Another attempt would find the same.
                        facts = (error.path, error.position, error.problem, error.advice)
                        names = ("path", "position", "problem", "advice")
                        yield pyarrow.RecordBatch.from_pydict(
                            {name: [fact] for name, fact in zip(names, facts, strict=True)}
                        )

        frame = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, DAMAGE_SCHEMA)
        _watch(frame, look)

    return run


def _watch(frame: DataFrame, look: Callable[[], None]) -> None:
    """Collects the damage that tasks report, and calls ``look`` meanwhile.

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
