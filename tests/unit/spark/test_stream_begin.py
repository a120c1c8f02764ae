"""Where a stream begins: what the query knew when it began is logged, and what appears later is read from its start."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import StructType
from tests.unit.arrow.dict_catalog import DictCatalog
from tests.unit.spark.streams import Q0, Q1, document, ends, ranges, reader

from rucola.arrow.catalog import Bounds
from rucola.arrow.offsets import StreamDocument
from rucola.arrow.ranges import QueueRange
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, DataLossError
from rucola.spark.options import parse_options
from rucola.spark.stream import RocketMQStreamReader

FAR = MessageQueue("t", "far", 0)
OTHER = MessageQueue("u", "b", 0)
EVERYTHING = ReadAllAvailable()
STARTS = [
    {},
    {"startingOffsets": "latest"},
    {"startingOffsets": "earliest"},
    {"startingTimestamp": "7000"},
    {"startingTimestamp": "9000000", "startingOffsetsByTimestampStrategy": "latest"},
]


def logged(end: StreamDocument) -> StreamDocument:
    """The document as a restarted query finds it in the checkpoint."""
    found: StreamDocument = json.loads(json.dumps(end))
    return found


def first_end(bounds: dict[MessageQueue, Bounds], **given: str) -> StreamDocument:
    """The logged end of the first micro-batch of a query that then ends."""
    stream, _ = reader(bounds, **given)
    return logged(stream.latestOffset(stream.initialOffset(), EVERYTHING))


@pytest.mark.parametrize("again", [False, True], ids=["goes on", "is restarted"])
@pytest.mark.parametrize("given", STARTS)
def test_a_topic_that_appears_later_is_read_from_its_first_message(given: dict[str, str], again: bool) -> None:
    stream, catalog = reader({}, **given)
    begun = logged(stream.latestOffset({}, EVERYTHING))
    assert stream.latestOffset(begun, EVERYTHING) is begun
    catalog.table[Q0] = Bounds(0, 10)
    if again:
        stream, _ = reader(catalog.table, **given)
    end = stream.latestOffset(begun, EVERYTHING)
    assert ranges(stream, begun, end) == [QueueRange(Q0, 0, 10)]


def test_the_first_document_is_logged_although_it_has_no_queue() -> None:
    """Spark logs an end only if it differs from the start."""
    begun = first_end({})
    assert begun != {}
    assert ends(begun) == {}
    stream, _ = reader({})
    assert stream.partitions({}, begun) == []
    assert stream.partitions(begun, begun) == []


@pytest.mark.parametrize("given", STARTS)
def test_a_queue_a_broker_and_a_topic_that_appear_while_the_query_is_down(given: dict[str, str]) -> None:
    for subscription in ({"topic": "t,u"}, {"topic": "", "subscribePattern": "[tu]"}):
        begun = first_end({Q0: Bounds(0, 8)}, **given, **subscription)
        bounds = {Q0: Bounds(0, 8), Q1: Bounds(0, 3), FAR: Bounds(2, 9), OTHER: Bounds(0, 4)}
        again, _ = reader(bounds, **given, **subscription)
        found = ranges(again, begun, again.latestOffset(begun, EVERYTHING))
        assert found == [QueueRange(Q1, 0, 3), QueueRange(FAR, 2, 9), QueueRange(OTHER, 0, 4)]


def test_a_topic_that_exists_is_read_where_the_option_says() -> None:
    assert ends(first_end({Q0: Bounds(2, 8)})) == document(8)
    stream, _ = reader({Q0: Bounds(2, 8)}, startingTimestamp="5000")
    assert ranges(stream, {}, stream.latestOffset({}, EVERYTHING)) == [QueueRange(Q0, 5, 8)]


def test_a_topic_that_appears_while_the_first_micro_batch_is_planned() -> None:
    """The query has begun when it has asked for the queues: ``latest`` does not move with later questions."""

    class Growing(DictCatalog):
        def look(self, queues: Any) -> Any:
            self.table[Q1] = Bounds(0, 5)
            return super().look([*queues, Q1])

    options = parse_options({"storePath": "d", "topic": "t"})
    stream = RocketMQStreamReader(options, StructType(), Growing(options, {Q0: Bounds(0, 8)}))
    end = stream.latestOffset({}, EVERYTHING)
    assert ranges(stream, {}, end) == [QueueRange(Q1, 0, 5)]


def test_a_first_end_that_spark_did_not_log_is_not_forgotten() -> None:
    stream, catalog = reader({Q0: Bounds(0, 5)})
    stream.latestOffset({}, EVERYTHING)
    catalog.table.update({Q0: Bounds(0, 7), Q1: Bounds(0, 2)})
    end = stream.latestOffset({}, EVERYTHING)
    assert ranges(stream, {}, end) == [QueueRange(Q0, 5, 7), QueueRange(Q1, 0, 2)]


@pytest.mark.parametrize("trouble", ["dying", "slow"])
def test_a_broker_that_fails_after_it_said_where_its_queue_ends(trouble: str) -> None:
    """Its queue is logged at ``latest``, so a restart reads neither more nor less than what came after the start."""
    options = parse_options({"storePath": "d", "topic": "t"})
    catalog = DictCatalog(options, {Q0: Bounds(0, 5), FAR: Bounds(0, 50)})
    stream = RocketMQStreamReader(options, StructType(), catalog)
    if trouble == "slow":
        stream.prepareForTriggerAvailableNow()
        assert stream._first_offsets() == {Q0: 5, FAR: 50}
        catalog.away = {"far"}
    else:
        catalog.dying = {"far"}
    begun = logged(stream.latestOffset({}, EVERYTHING))
    assert ends(begun) == {"t": {"b": {"0": 5}, "far": {"0": 50}}}
    assert stream.partitions({}, begun) == []
    again, _ = reader({Q0: Bounds(0, 5), FAR: Bounds(0, 53)})
    assert ranges(again, begun, again.latestOffset(begun, EVERYTHING)) == [QueueRange(FAR, 50, 53)]


def test_a_queue_without_a_sample_is_logged_where_the_query_began() -> None:
    stream, catalog = reader({Q0: Bounds(0, 5), FAR: Bounds(0, 9)}, startingTimestamp="3000", maxBytesPerTrigger="100")
    catalog.mute = {"far"}
    begun = logged(stream.latestOffset({}, ReadMaxBytes(100)))
    assert ranges(stream, {}, begun) == [QueueRange(Q0, 3, 4)]
    again, _ = reader({Q0: Bounds(0, 5), FAR: Bounds(0, 12)})
    assert ranges(again, begun, again.latestOffset(begun, EVERYTHING)) == [QueueRange(Q0, 4, 5), QueueRange(FAR, 3, 12)]


def test_available_now_knows_its_topics_in_the_next_run() -> None:
    now, catalog = reader({Q0: Bounds(0, 5)}, topic="", subscribePattern="[tu]")
    now.prepareForTriggerAvailableNow()
    catalog.table[OTHER] = Bounds(0, 4)
    begun = logged(now.latestOffset({}, EVERYTHING))
    assert now.partitions({}, begun) == []
    assert now.latestOffset(begun, EVERYTHING) is begun
    again, _ = reader({Q0: Bounds(0, 6), OTHER: Bounds(0, 9), FAR: Bounds(0, 2)}, topic="", subscribePattern="[tu]")
    again.prepareForTriggerAvailableNow()
    end = again.latestOffset(begun, EVERYTHING)
    assert set(ranges(again, begun, end)) >= {QueueRange(Q0, 5, 6), QueueRange(FAR, 0, 2)}
    assert sum(one.count for one in ranges(again, begun, end) if one.queue == OTHER) == 5


def test_offsets_for_named_queues_are_for_those_that_exist_at_the_start() -> None:
    given = {"topic": "t,u", "startingOffsets": '{"t":{"b":{"0":3}}}'}
    begun = first_end({Q0: Bounds(0, 3)}, **given)
    again, _ = reader({Q0: Bounds(0, 3), OTHER: Bounds(0, 4)}, **given)
    assert ranges(again, begun, again.latestOffset(begun, EVERYTHING)) == [QueueRange(OTHER, 0, 4)]
    for wanted in ("3", "-1", "-2"):  # there is no place to begin at; the query does not begin
        stream, _ = reader({}, startingOffsets=f'{{"t":{{"b":{{"0":{wanted}}}}}}}')
        with pytest.raises(ConfigError, match="exactly the queues of the subscription"):
            stream.latestOffset({}, EVERYTHING)


def test_a_topic_deleted_and_made_again_while_the_query_is_down() -> None:
    begun = first_end({Q0: Bounds(0, 8)})
    gone, _ = reader({})
    with pytest.raises(DataLossError, match="t@b:0"):
        gone.latestOffset(begun, EVERYTHING)
    lenient, catalog = reader({}, failOnDataLoss="false")
    assert lenient.latestOffset(begun, EVERYTHING) is begun
    catalog.table[Q0], catalog.times[Q0] = Bounds(0, 12), 1_000_000
    assert ranges(lenient, begun, lenient.latestOffset(begun, EVERYTHING)) == [QueueRange(Q0, 0, 12)]
    empty = first_end({Q0: Bounds(0, 0)})
    again, _ = reader({Q0: Bounds(0, 4)})
    assert ranges(again, empty, again.latestOffset(empty, EVERYTHING)) == [QueueRange(Q0, 0, 4)]


def test_a_checkpoint_of_the_last_version_goes_on() -> None:
    """The last version logged the first end only when it knew a queue."""
    old = {"t": {"b": {"0": 5}}, "#from": {"t": {"b": {"0": 5}}}, "#last": {"t": {"b": {"0": [4000, 400]}}}}
    stream, _ = reader({Q0: Bounds(0, 7), Q1: Bounds(0, 3)})
    end = stream.latestOffset(old, EVERYTHING)
    assert ranges(stream, old, end) == [QueueRange(Q0, 5, 7), QueueRange(Q1, 0, 3)]
