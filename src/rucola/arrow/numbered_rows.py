"""Rows of messages with only the columns that follow from a message's place in its queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from rucola.arrow.ranges import QueueRange

QUEUE_COLUMNS = frozenset(("topic", "brokerName", "queueId", "queueOffset"))
BATCH_ROWS = 1 << 16


def numbered_rows(schema: pa.Schema, ranges: Sequence[QueueRange]) -> Iterator[pa.RecordBatch]:
    """Yields a row for each queue offset, queue by queue.

    Args:
        schema: some of ``QUEUE_COLUMNS``.
        ranges: the offsets.
    """
    for one in ranges:
        topic = one.queue.topic.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        constants = {"topic": topic, "brokerName": one.broker_name, "queueId": one.queue.queue_id}
        rows = min(one.count, BATCH_ROWS)
        columns = {
            field.name: pa.repeat(pa.scalar(constants[field.name], field.type), rows)
            for field in schema
            if field.name in constants
        }
        for start in range(one.start, one.end, BATCH_ROWS):
            rows = min(one.end - start, BATCH_ROWS)
            columns["queueOffset"] = pa.array(np.arange(start, start + rows, dtype=np.int64))
            yield pa.record_batch([columns[name].slice(0, rows) for name in schema.names], schema=schema)
