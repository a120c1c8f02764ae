"""The batch writer and the stream writer. Spark creates them on the driver and sends copies to the tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from rucola.spark.sink_options import SinkLayout, SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties that Spark sets in the tasks of a streaming query."""

logger = logging.getLogger(__name__)


@dataclass
class TaskWritten(WriterCommitMessage):
    """The result of a task."""

    rows: int
    refused: int


class RocketMQWriter(DataSourceArrowWriter):
    """Sends the rows of a batch. Brokers have stored the rows of a task before the task ends, so a commit adds nothing,
    and an abort undoes nothing.
    """

    def __init__(self, options: SinkOptions, layout: SinkLayout) -> None:
        self.options = options
        self.layout = layout
        self.run_id = uuid4().hex
        """Names this write in all of its tasks. A function for ``foreachBatch`` may write several times."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Sends the rows of one task and waits until brokers have stored them."""
        return _written(self.options, self.layout, iterator, self.run_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Logs how many rows were refused."""
        _tell(messages, "the batch")


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of each micro-batch, like ``RocketMQWriter``."""

    def __init__(self, options: SinkOptions, layout: SinkLayout) -> None:
        self.options = options
        self.layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Sends the rows of one task and waits until brokers have stored them."""
        return _written(self.options, self.layout, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Logs how many rows were refused."""
        _tell(messages, f"micro-batch {batchId}")


def _written(
    options: SinkOptions, layout: SinkLayout, iterator: Iterator[pa.RecordBatch], run_id: str = ""
) -> TaskWritten:
    from pyspark import TaskContext

    from rucola.spark.sink_task import TaskPlace, write_rows

    context = TaskContext.get()
    place = TaskPlace(run_id=run_id)
    if context is not None:
        place = TaskPlace(
            context.getLocalProperty(QUERY_ID) or "",
            context.getLocalProperty(BATCH_ID) or "",
            context.partitionId(),
            run_id,
        )
    return TaskWritten(*write_rows(options, layout, iterator, place))


def _tell(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    done = [message for message in messages if isinstance(message, TaskWritten)]
    rows, refused = sum(one.rows for one in done), sum(one.refused for one in done)
    if refused:
        logger.warning("%d of %d rows of %s became dead letters", refused, rows, what)
