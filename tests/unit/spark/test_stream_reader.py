"""The driver side of the stream face, over a catalog that is a dict."""

from __future__ import annotations

import json
import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType
from tests.unit.spark.dict_catalog import DictCatalog

from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, DataLossError
from rucola.spark.catalog import Bounds
from rucola.spark.options import parse_options
from rucola.spark.ranges import QueueRange
from rucola.spark.stream import RocketMQStreamReader

Q0, Q1 = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


def reader(bounds: dict[MessageQueue, Bounds], **given: str) -> tuple[RocketMQStreamReader, DictCatalog]:
    options = parse_options({"storePath": "d", "topic": "t", **given})
    catalog = DictCatalog(options, bounds)
    return RocketMQStreamReader(options, StructType(), catalog), catalog


def document(*values: int) -> dict[str, dict[str, dict[str, int]]]:
    return {"t": {"b": {str(queue_id): value for queue_id, value in enumerate(values)}}}


def test_latest_is_resolved_once() -> None:
    stream, catalog = reader({Q0: Bounds(0, 5)})
    assert stream.initialOffset() == document(5)
    catalog.table[Q0] = Bounds(0, 9)
    assert stream.initialOffset() == document(5)


def test_a_topic_without_queues_yet_is_waited_for() -> None:
    stream, catalog = reader({})
    assert stream.initialOffset() == {}
    assert stream.latestOffset({}, ReadAllAvailable()) == {}
    catalog.table[Q0] = Bounds(0, 3)
    assert stream.latestOffset({}, ReadAllAvailable()) == document(3)
    assert [partition.value for partition in stream.partitions({}, document(3))] == [QueueRange(Q0, 0, 3)]


def test_no_new_data_gives_the_same_text() -> None:
    stream, _ = reader({Q1: Bounds(0, 4), Q0: Bounds(0, 5)})
    start = document(5, 4)
    assert json.dumps(stream.latestOffset(start, ReadAllAvailable())) == json.dumps(start)


def test_the_default_limit() -> None:
    assert reader({})[0].getDefaultReadLimit() == ReadAllAvailable()
    assert reader({}, maxBytesPerTrigger="10")[0].getDefaultReadLimit() == ReadMaxBytes(10)
    both = reader({}, maxBytesPerTrigger="10", maxOffsetsPerTrigger="7")[0]
    assert both.getDefaultReadLimit() == ReadMaxRows(7)


def test_limits() -> None:
    stream, _ = reader({Q0: Bounds(0, 100), Q1: Bounds(0, 100)})
    assert stream.latestOffset(document(0, 0), ReadMaxRows(10)) == document(5, 5)
    assert stream.latestOffset(document(0, 0), ReadMaxBytes(4000)) == document(20, 20)
    assert stream.latestOffset(document(0, 0), ReadAllAvailable()) == document(100, 100)


def test_both_limits_hold() -> None:
    stream, _ = reader({Q0: Bounds(0, 100), Q1: Bounds(0, 100)}, maxBytesPerTrigger="2000", maxOffsetsPerTrigger="60")
    assert stream.latestOffset(document(0, 0), ReadMaxRows(60)) == document(10, 10)
    assert stream.latestOffset(document(0, 0), ReadAllAvailable()) == document(100, 100)


def test_a_new_queue_counts_from_its_minimum() -> None:
    stream, _ = reader({Q0: Bounds(0, 10), Q1: Bounds(6, 10)})
    assert stream.latestOffset(document(10), ReadMaxRows(3)) == document(10, 9)


def test_available_now_stops_at_its_target() -> None:
    stream, catalog = reader({Q0: Bounds(0, 10)})
    stream.prepareForTriggerAvailableNow()
    catalog.table.update({Q0: Bounds(0, 30), Q1: Bounds(0, 5)})
    at = document(4)
    seen = []
    while (end := stream.latestOffset(at, ReadMaxRows(4))) != at:
        seen.append(end)
        at = end
        assert len(seen) < 10
    assert seen[0]["t"]["b"]["0"] == 8
    assert at == document(10, 0)
    assert stream.reportLatestOffset() == document(30, 5)


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_a_mistyped_topic_fails_a_run_that_ends(lenient: str) -> None:
    stream, _ = reader({Q0: Bounds(0, 10)}, topic="t,tt", failOnDataLoss=lenient)
    stream.prepareForTriggerAvailableNow()
    with pytest.raises(ConfigError, match=r"'tt'.*existing ones: t"):
        stream.latestOffset({}, ReadAllAvailable())
    stream, _ = reader({Q0: Bounds(0, 10)}, topic="", assign='{"t":{"b":[0,1]}}')
    stream.prepareForTriggerAvailableNow()
    with pytest.raises(ConfigError, match="t@b:1"):
        stream.latestOffset({}, ReadAllAvailable())


def test_offsets_never_go_back() -> None:
    stream, catalog = reader({Q0: Bounds(0, 10)}, failOnDataLoss="false")
    catalog.table[Q0] = Bounds(0, 7)
    assert stream.latestOffset(document(10), ReadAllAvailable()) == document(10)
    strict, _ = reader({Q0: Bounds(0, 7)})
    with pytest.raises(DataLossError):
        strict.latestOffset(document(10), ReadAllAvailable())


def test_a_queue_that_is_gone_keeps_its_offset() -> None:
    stream, _ = reader({Q0: Bounds(0, 12)})
    assert stream.latestOffset(document(10, 3), ReadAllAvailable()) == document(12, 3)


def test_partitions_are_a_function_of_the_two_offsets() -> None:
    stream, catalog = reader({Q0: Bounds(0, 10), Q1: Bounds(0, 10)}, maxRecordsPerPartition="3")
    first = [partition.value for partition in stream.partitions(document(1, 2), document(7, 2))]
    catalog.table[Q0] = Bounds(0, 99)
    again = [partition.value for partition in stream.partitions(document(1, 2), document(7, 2))]
    assert first == again == [QueueRange(Q0, 1, 4), QueueRange(Q0, 4, 7)]
    assert stream.partitions(document(7, 2), document(7, 2)) == []


def test_retention_under_a_stream_is_data_loss() -> None:
    with pytest.raises(DataLossError):
        reader({Q0: Bounds(5, 10)})[0].partitions(document(1), document(7))
    lenient, _ = reader({Q0: Bounds(5, 10)}, failOnDataLoss="false")
    assert [partition.value for partition in lenient.partitions(document(1), document(7))] == [QueueRange(Q0, 5, 7)]


@pytest.mark.parametrize("given", [{"endingTimestamp": "5"}, {"endingOffsets": '{"t":{"b":{"0":5}}}'}])
def test_a_stream_has_no_end(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="a stream has no end"):
        reader({}, **given)


def test_stop_closes_and_the_reader_can_be_pickled() -> None:
    stream, catalog = reader({})
    stream.stop()
    assert catalog.closed
    copy = pickle.loads(pickle.dumps(stream))
    assert copy.options == stream.options
