"""Sends stored messages again: the part of a replay that needs PyArrow but not Spark.

``rucola replay`` runs this code in the process of the command; ``rucola.spark.replay`` runs it in Spark tasks. A
replayed message is a new message with the body, flag, lite topic and user properties of the old one. Properties that
brokers and clients write are left out: retries, delays, transactions, POP and others
(``common.system_properties.NOT_FORWARDED``). The id is made from the source position, so repeats sent by a second run
have the same id and can be dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from rucola.arrow.offsets import QueueOffsets
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError
from rucola.runtime.clock import Clock, SystemClock
from rucola.spark.sink_options import COLUMN_TYPES, POSITION, SinkLayout, SinkOptions
from rucola.spark.sink_rows import RowReader
from rucola.spark.sink_send import Refused
from rucola.spark.sink_task import TaskPlace, write_rows

COLUMNS = (*POSITION, "storeTimestamp", "flag", "properties", "body")
"""The columns of the source that a replay needs."""
SUMMARY_DDL = (
    "topic string, brokerName string, queueId int, messages bigint, refused bigint, bodyBytes bigint, "
    "firstOffset bigint, endOffset bigint, firstTimestamp timestamp, lastTimestamp timestamp"
)
SUMMARY = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("messages", pa.int64()),
        ("refused", pa.int64()),
        ("bodyBytes", pa.int64()),
        ("firstOffset", pa.int64()),
        ("endOffset", pa.int64()),
        ("firstTimestamp", pa.timestamp("us", "UTC")),
        ("lastTimestamp", pa.timestamp("us", "UTC")),
    ]
)
"""One row for each source queue; ``endOffset`` is the offset after the last message."""
QUEUE = ("topic", "brokerName", "queueId")
TURNS_A_SECOND = 10
_HOW = ("sum", "sum", "sum", "min", "max", "min", "max")


class ReplayTally:
    """Counts of the messages that a replay has processed so far, whether sent or refused, by source queue.

    Attributes:
        table: the counts, with the columns of ``SUMMARY``.
    """

    def __init__(self) -> None:
        self.table = SUMMARY.empty_table()

    def add(self, more: pa.Table) -> None:
        """Adds counts, with the columns of ``SUMMARY``."""
        values = SUMMARY.names[len(QUEUE) :]
        sums = pa.concat_tables([self.table, more]).group_by(QUEUE).aggregate(list(zip(values, _HOW, strict=True)))
        found = sums.rename_columns({f"{name}_{how}": name for name, how in zip(values, _HOW, strict=True)})
        self.table = found.select(SUMMARY.names).cast(SUMMARY)

    def add_rows(self, rows: pa.RecordBatch, refused: Refused) -> None:
        """Counts messages, given as rows of ``COLUMNS``; ``refused`` has the indices of the rows that were not sent."""
        marks = pa.array([int(number in refused) for number in range(rows.num_rows)], pa.int64())
        offset, stored = rows.column("queueOffset"), rows.column("storeTimestamp")
        sizes = pc.cast(pc.fill_null(pc.binary_length(rows.column("body")), 0), pa.int64())
        columns = [rows.column(name) for name in QUEUE]
        columns += [pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows), marks, sizes]
        columns += [offset, pc.add(offset, 1), stored, stored]
        self.add(pa.table(columns, names=SUMMARY.names).cast(SUMMARY))

    @property
    def messages(self) -> int:
        """Number of messages, including refused ones."""
        return self._sum("messages")

    @property
    def refused(self) -> int:
        """Number of messages that became dead letters; in a dry run, number of messages that cannot be sent."""
        return self._sum("refused")

    @property
    def body_bytes(self) -> int:
        """Total size of all bodies in bytes."""
        return self._sum("bodyBytes")

    @property
    def ends(self) -> QueueOffsets:
        """For each source queue, the offset after the last message."""
        rows = self.table.select([*QUEUE, "endOffset"]).to_pylist()
        return {MessageQueue(row["topic"], row["brokerName"], row["queueId"]): row["endOffset"] for row in rows}

    def _sum(self, name: str) -> int:
        return pc.sum(self.table[name]).as_py() or 0


def replay_batches(
    batches: Iterable[pa.RecordBatch],
    options: SinkOptions,
    *,
    rate: float | None = None,
    dry_run: bool = False,
    settled: Callable[[ReplayTally], None] | None = None,
    place: TaskPlace | None = None,
) -> ReplayTally:
    """Sends messages to the topic named in ``options``.

    Args:
        batches: rows of the source with at least ``COLUMNS``.
        options: options of the sink; with ``queueColumn`` set to ``queueId``, messages keep their queue ids.
        rate: largest number of messages sent per second.
        dry_run: counts the messages and sends none.
        settled: is called each time more messages have been sent or refused, with the counts of all such messages so
            far. Messages are counted in the order of ``batches``.
        place: identifies the task; files of dead letters are named after it.

    Raises:
        ConfigError: an option does not fit a replay, or a column is missing.
        RefusedRowError: a message cannot be sent, and the options name no topic or directory for dead letters.
        RucolaError: brokers failed for too long.
    """
    layout = replay_layout(options)
    tally = ReplayTally()

    def add(rows: pa.RecordBatch, refused: Refused) -> None:
        tally.add_rows(rows, refused)
        if settled is not None:
            settled(tally)

    chosen: Iterator[pa.RecordBatch] = (_chosen(batch) for batch in batches)
    if dry_run:
        reader = RowReader(options, layout, "")
        for batch in chosen:
            for chunk in reader.chunks(batch):
                add(chunk.rows, chunk.invalid)
        return tally
    if rate is not None:
        chosen = paced(chosen, rate, SystemClock(), time.sleep)
    write_rows(options, layout, chosen, place or TaskPlace(), add)
    return tally


def replay_layout(options: SinkOptions) -> SinkLayout:
    """The assignment of ``COLUMNS`` to the parts of a message.

    Raises:
        ConfigError: an option does not fit a replay.
    """
    if not options.topic:
        raise ConfigError("topic", "", "the topic to replay into")
    if options.id_column:
        allowed = "no idColumn in a replay, whose ids are made from the source position; use idScope for different ids"
        raise ConfigError("idColumn", options.id_column, allowed)
    if options.queue_column.lower() not in ("", "queueid"):
        raise ConfigError("queueColumn", options.queue_column, "queueId, or nothing")
    fields = {name: at for at, name in enumerate(COLUMNS) if name in COLUMN_TYPES}
    return SinkLayout(fields, COLUMNS, True, None, fields["queueId"] if options.queue_column else None)


def paced(
    batches: Iterable[pa.RecordBatch], rate: float, clock: Clock, pause: Callable[[float], None]
) -> Iterator[pa.RecordBatch]:
    """Yields the same rows, at most ``rate`` per second. If the caller is slow, no burst makes up for the lost time."""
    step = max(1, int(rate / TURNS_A_SECOND))
    due = clock.monotonic()
    for batch in batches:
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            now = clock.monotonic()
            if due > now:
                pause(due - now)
            due = max(due, now) + part.num_rows / rate
            yield part


def _chosen(batch: pa.RecordBatch) -> pa.RecordBatch:
    missing = [name for name in COLUMNS if name not in batch.schema.names]
    if missing:
        raise ConfigError("columns", ", ".join(batch.schema.names), "with " + ", ".join(missing))
    return batch.select(COLUMNS)
