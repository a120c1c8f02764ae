"""Stream readers over a catalog made from a dict, and what their tests ask of micro-batches."""

from __future__ import annotations

from pyspark.sql.types import StructType
from tests.unit.arrow.dict_catalog import DictCatalog

from rucola.arrow.catalog import Bounds
from rucola.arrow.offsets import OffsetDocument, StreamDocument, StreamOffsets, to_document
from rucola.arrow.ranges import QueueRange
from rucola.common.message_queue import MessageQueue
from rucola.spark.options import parse_options
from rucola.spark.stream import RocketMQStreamReader

Q0, Q1 = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


def reader(bounds: dict[MessageQueue, Bounds], **given: str) -> tuple[RocketMQStreamReader, DictCatalog]:
    options = parse_options({"storePath": "d", "topic": "t", **given})
    catalog = DictCatalog(options, bounds)
    return RocketMQStreamReader(options, StructType(), catalog), catalog


def document(*values: int) -> dict[str, dict[str, dict[str, int]]]:
    return {"t": {"b": {str(queue_id): value for queue_id, value in enumerate(values)}}}


def ends(end: StreamDocument) -> OffsetDocument:
    """Returns only the end offsets of the micro-batch, without the other sections of the JSON document."""
    return to_document(StreamOffsets.from_document(end).offsets)


def ranges(stream: RocketMQStreamReader, start: StreamDocument, end: StreamDocument) -> list[QueueRange]:
    return [partition.value for partition in stream.partitions(start, end)]
