"""Sends stored messages into a topic, in Spark tasks. The messages come from a store, from brokers or from a table."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from rucola.arrow.offsets import to_document
from rucola.common.message_const import KEY_SEPARATOR
from rucola.errors import ConfigError
from rucola.spark.sink_options import SinkOptions, parse_sink_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import Column, DataFrame

    from rucola.spark.replay_rows import ReplayTally
    from rucola.spark.replay_source import Plan

PROGRESS_S = 0.5
SELECTING = ("topic", "subscribe", "subscribepattern", "assign")
"""Source options, in lower case, that ``plan_options`` replaces. It also replaces all options whose names begin with an
element of ``_BOUNDS``.
"""
_BOUNDS = ("starting", "ending")

logger = logging.getLogger(__name__)


def replay(
    rows: DataFrame,
    options: Mapping[str, str],
    *,
    rate: float | None = None,
    dry_run: bool = False,
    progress: Callable[[int], None] | None = None,
    settled: Callable[[ReplayTally], None] | None = None,
) -> ReplayTally:
    """Sends each row to a topic, as a new message with the old body, flag and user properties.

    A second run with the same ``idScope`` sends each message with the same id as the first run. ``drop_repeats``
    therefore keeps only one of the two messages.

    Args:
        rows: rows with the columns of the source, from ``format("rocketmq")`` or a table.
        options: options of the sink: ``nameServer``, ``topic`` and others; with ``queueColumn`` set to ``queueId``,
            messages keep their queue ids.
        rate: largest number of messages sent per second. With a rate, only one task sends at a time.
        dry_run: counts the messages and sends none.
        progress: is called at intervals with the number of messages sent so far; not with Spark Connect.
        settled: is called after each task, once for each source queue of the task, with the counts of all messages
            sent or refused so far. The calls follow the order of the tasks. With ``settled``, too, only one task sends
            at a time.

    Returns:
        Counts of the messages, by source queue.

    Raises:
        ConfigError: an option does not fit, or a column is missing.
        PySparkException: a task failed, for example because a message was refused.
    """
    from rucola.spark.replay_rows import COLUMNS, SUMMARY, SUMMARY_DDL, ReplayTally, replay_layout

    if rate is not None and rate <= 0:
        raise ConfigError("rate", str(rate), "a number of messages per second, above 0")
    checked = parse_sink_options(options)
    replay_layout(checked)
    missing = [name for name in COLUMNS if name not in rows.columns]
    if missing:
        raise ConfigError("columns", ", ".join(rows.columns), "with " + ", ".join(missing))
    tally = ReplayTally()
    with _counted(rows, progress) as sent:
        task = _Task(checked, rate, dry_run, sent, uuid4().hex)
        results = rows.select(*COLUMNS).mapInArrow(task, SUMMARY_DDL)
        if rate is None and settled is None:
            tally.add(results.toArrow().cast(SUMMARY))
            return tally
        import pyarrow as pa

        for row in results.toLocalIterator():
            tally.add(pa.Table.from_pylist([row.asDict()], SUMMARY))
            if settled is not None:
                settled(tally)
    return tally


def with_keys(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The rows that have one of ``keys``, or whose ``msgId`` is one of them."""
    from pyspark.sql import functions as f

    wanted: Column = f.array(*map(f.lit, keys))
    split = f.split(f.coalesce("keys", f.lit("")), KEY_SEPARATOR)
    return rows.where(f.arrays_overlap(split, wanted) | f.col("msgId").isin(*keys))


def plan_options(given: Mapping[str, str], plan: Plan, tasks: int) -> dict[str, str]:
    """Returns options of the source that read exactly the ranges of ``plan``.

    Args:
        given: the user's options of the source.
        plan: the ranges; at least one.
        tasks: the value of ``minPartitions``, unless ``given`` contains this option.
    """
    import json

    kept = {
        name: value
        for name, value in given.items()
        if name.lower() not in SELECTING and not name.lower().startswith(_BOUNDS)
    }
    queues: dict[str, dict[str, list[int]]] = {}
    for one in plan.ranges:
        queues.setdefault(one.queue.topic, {}).setdefault(one.queue.broker_name, []).append(one.queue.queue_id)
    return {
        "minPartitions": str(tasks),
        **kept,
        "assign": json.dumps(queues),
        "startingOffsets": json.dumps(to_document({one.queue: one.start for one in plan.ranges})),
        "endingOffsets": json.dumps(to_document(plan.end)),
    }


@dataclass(frozen=True)
class _Task:
    """Runs one task: sends its rows, then returns one row of counts for each source queue."""

    options: SinkOptions
    rate: float | None
    dry_run: bool
    sent: Accumulator[int] | None
    run_id: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        from rucola.spark.replay_rows import replay_batches
        from rucola.spark.sink_task import TaskPlace

        context = TaskContext.get()
        place = TaskPlace()
        if context is not None:
            place = TaskPlace("replay", "", context.partitionId(), self.run_id)
        tally = replay_batches(batches, self.options, rate=self.rate, dry_run=self.dry_run, place=place)
        if self.sent is not None:
            self.sent.add(tally.messages)
        yield from tally.table.to_batches()


@contextmanager
def _counted(rows: DataFrame, progress: Callable[[int], None] | None) -> Iterator[Accumulator[int] | None]:
    """Makes an accumulator that counts the messages sent by finished tasks. Within the block, ``progress`` is called
    with the accumulator's value at intervals.
    """
    if progress is None:
        yield None
        return
    sent = rows.sparkSession.sparkContext.accumulator(0)
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(PROGRESS_S):
            progress(sent.value)

    thread = threading.Thread(target=tell, name="rucola-replay-progress", daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        ended.set()
        thread.join()
        progress(sent.value)
