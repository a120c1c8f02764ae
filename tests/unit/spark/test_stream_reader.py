"""The driver's part of the stream reader, over a catalog made from a dict."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType
from tests.unit.arrow.dict_catalog import DictCatalog
from tests.unit.spark.streams import Q0, Q1, document, ends, ranges, reader

from rucola.arrow.catalog import Bounds
from rucola.arrow.offsets import StreamDocument
from rucola.arrow.ranges import QueueRange
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, DataLossError, RemotingConnectError
from rucola.spark.options import parse_options
from rucola.spark.stream import RocketMQStreamReader
from rucola.testing.clock import ManualClock


def test_where_a_query_begins_is_logged() -> None:
    stream, catalog = reader({Q0: Bounds(0, 5)})
    assert stream.initialOffset() == {}
    first = stream.latestOffset({}, ReadAllAvailable())
    assert ends(first) == document(5)
    assert first["#from"] == document(5)
    catalog.table[Q0] = Bounds(0, 9)
    assert ends(stream.latestOffset({}, ReadAllAvailable())) == document(9)
    restarted, _ = reader({Q0: Bounds(0, 9)})
    assert restarted.partitions({}, first) == restarted.partitions(first, first) == []
    second = restarted.latestOffset(first, ReadAllAvailable())
    assert ranges(restarted, first, second) == [QueueRange(Q0, 5, 9)]


def test_a_broker_that_goes_away_while_a_micro_batch_is_made_is_left_out_of_it() -> None:
    """If the broker were not left out, the micro-batch with the messages of all other brokers would wait for it."""
    other = MessageQueue("t", "c", 0)
    stream, catalog = reader({Q0: Bounds(0, 5), other: Bounds(0, 7)}, startingOffsets="earliest")
    catalog.dying = {"c"}
    first = stream.latestOffset({}, ReadAllAvailable())
    assert ends(first) == document(5)
    assert stream.latestOffset(first, ReadAllAvailable()) == first
    catalog.dying = set()
    second = stream.latestOffset(first, ReadAllAvailable())
    assert ranges(stream, first, second) == [QueueRange(other, 0, 7)]
    catalog.table |= {Q0: Bounds(0, 6), other: Bounds(0, 9)}
    catalog.dying = {"c"}
    third = stream.latestOffset(second, ReadAllAvailable())
    assert ranges(stream, second, third) == [QueueRange(Q0, 5, 6)]
    catalog.dying = set()
    assert ranges(stream, third, stream.latestOffset(third, ReadAllAvailable())) == [QueueRange(other, 7, 9)]


def test_a_replayed_first_batch_begins_where_it_began() -> None:
    stream, _ = reader({Q0: Bounds(2, 10)}, startingOffsets="earliest")
    first = stream.latestOffset({}, ReadMaxRows(4))
    assert ranges(stream, {}, first) == [QueueRange(Q0, 2, 6)]
    later, _ = reader({Q0: Bounds(4, 20)}, startingOffsets="earliest")
    with pytest.raises(DataLossError, match="offsets 2 to 6 are wanted, 4 to 20 exist"):
        later.partitions({}, first)


def test_a_replayed_first_batch_of_a_new_queue_begins_where_it_began() -> None:
    stream, catalog = reader({Q0: Bounds(0, 5)}, startingOffsets="earliest")
    first = stream.latestOffset({}, ReadAllAvailable())
    catalog.table[Q1] = Bounds(3, 8)
    second = stream.latestOffset(first, ReadAllAvailable())
    assert ranges(stream, first, second) == [QueueRange(Q1, 3, 8)]
    catalog.table[Q1] = Bounds(6, 9)
    with pytest.raises(DataLossError, match="offsets 3 to 8 are wanted, 6 to 9 exist"):
        stream.partitions(first, second)


def test_checkpoints_of_older_versions_are_read() -> None:
    stream, _ = reader({Q0: Bounds(2, 10), Q1: Bounds(1, 4)}, startingOffsets="earliest")
    assert ranges(stream, {}, document(6, 4)) == [QueueRange(Q0, 2, 6), QueueRange(Q1, 1, 4)]
    assert ranges(stream, document(3), document(6, 4)) == [QueueRange(Q0, 3, 6), QueueRange(Q1, 1, 4)]
    later = stream.latestOffset(document(6, 4), ReadAllAvailable())
    assert ranges(stream, document(6, 4), later) == [QueueRange(Q0, 6, 10)]
    lenient, _ = reader({Q0: Bounds(0, 3)}, failOnDataLoss="false")
    assert lenient.latestOffset(document(6), ReadAllAvailable()) == document(6)


def test_a_topic_without_queues_yet_is_waited_for() -> None:
    stream, catalog = reader({})
    assert stream.initialOffset() == {}
    nothing = stream.latestOffset({}, ReadAllAvailable())
    assert ends(nothing) == {}
    assert stream.latestOffset(nothing, ReadAllAvailable()) is nothing
    catalog.table[Q0] = Bounds(0, 3)
    end = stream.latestOffset(nothing, ReadAllAvailable())
    assert ends(end) == document(3)
    assert ranges(stream, nothing, end) == [QueueRange(Q0, 0, 3)]


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
    assert ends(stream.latestOffset(document(0, 0), ReadMaxRows(10))) == document(5, 5)
    assert ends(stream.latestOffset(document(0, 0), ReadMaxBytes(4000))) == document(20, 20)
    assert ends(stream.latestOffset(document(0, 0), ReadAllAvailable())) == document(100, 100)


def test_both_limits_hold() -> None:
    stream, _ = reader({Q0: Bounds(0, 100), Q1: Bounds(0, 100)}, maxBytesPerTrigger="2000", maxOffsetsPerTrigger="60")
    assert ends(stream.latestOffset(document(0, 0), ReadMaxRows(60))) == document(10, 10)
    assert ends(stream.latestOffset(document(0, 0), ReadAllAvailable())) == document(100, 100)


def test_a_new_queue_counts_from_its_minimum() -> None:
    stream, _ = reader({Q0: Bounds(0, 10), Q1: Bounds(6, 10)})
    assert ends(stream.latestOffset(document(10), ReadMaxRows(3))) == document(10, 9)


def test_available_now_stops_at_its_target() -> None:
    stream, catalog = reader({Q0: Bounds(0, 10)})
    stream.prepareForTriggerAvailableNow()
    catalog.table.update({Q0: Bounds(0, 30), Q1: Bounds(0, 5)})
    at: StreamDocument = document(4)
    seen: list[StreamDocument] = []
    while (end := stream.latestOffset(at, ReadMaxRows(4))) != at:
        seen.append(end)
        at = end
        assert len(seen) < 10
    assert seen[0]["t"]["b"]["0"] == 8
    assert ends(at) == document(10, 0)
    assert stream.reportLatestOffset() == document(30, 5)


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_a_mistyped_topic_fails_a_run_that_ends(lenient: str) -> None:
    stream, _ = reader({Q0: Bounds(0, 10)}, topic="t,tt", failOnDataLoss=lenient)
    stream.prepareForTriggerAvailableNow()
    with pytest.raises(ConfigError, match=r"'tt'.*existing topics: t"):
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


def test_a_deleted_topic_is_data_loss_or_left_out(caplog: pytest.LogCaptureFixture) -> None:
    strict, _ = reader({Q0: Bounds(0, 12)}, topic="t,gone")
    start = {**document(10), "gone": {"b": {"0": 3}}}
    with pytest.raises(DataLossError, match="gone@b:0"):
        strict.latestOffset(start, ReadAllAvailable())
    for given in ({"topic": "t,gone"}, {"topic": "", "subscribePattern": ".*"}):
        lenient, _ = reader({Q0: Bounds(0, 12)}, failOnDataLoss="false", **given)
        end = lenient.latestOffset(start, ReadAllAvailable())
        assert ends(end) == {**document(12), "gone": {"b": {"0": 3}}}
        assert ranges(lenient, start, end) == [QueueRange(Q0, 10, 12)]
        caplog.clear()
        for _ in range(20):  # an idle stream asks for offsets some 75 times a second
            assert lenient.latestOffset(end, ReadAllAvailable()) == end
        assert caplog.text == ""


def test_a_topic_taken_out_of_the_subscription_is_not_read_on() -> None:
    other = MessageQueue("u", "b", 0)
    both, catalog = reader({Q0: Bounds(0, 5), other: Bounds(0, 5)}, topic="t,u", startingOffsets="earliest")
    first = both.latestOffset({}, ReadMaxRows(4))
    catalog.table.update({Q0: Bounds(0, 9), other: Bounds(0, 9)})
    one, _ = reader(catalog.table, topic="t")
    end = one.latestOffset(first, ReadAllAvailable())
    assert ranges(one, first, end) == [QueueRange(Q0, 2, 9)]
    # A replay reads exactly the logged range.
    assert ranges(one, {}, first) == [QueueRange(Q0, 0, 2), QueueRange(other, 0, 2)]
    again, _ = reader(catalog.table, topic="t,u")
    assert ranges(again, end, again.latestOffset(end, ReadAllAvailable())) == [QueueRange(other, 2, 9)]
    del catalog.table[other]
    assert one.latestOffset(end, ReadAllAvailable()) == end


@pytest.mark.parametrize(("now", "wanted"), [(Bounds(0, 30), 0), (Bounds(0, 6), 0), (Bounds(0, 10), None)])
def test_a_topic_made_again_is_noticed(now: Bounds, wanted: int | None) -> None:
    """A stream notices that a topic was created again, even if its queue has grown beyond the old offset. If the queue
    ends exactly at the old offset, the stream notices it at the next message.
    """
    stream, catalog = reader({Q0: Bounds(0, 10)}, startingOffsets="earliest")
    first = stream.latestOffset({}, ReadAllAvailable())
    assert first["#last"] == {"t": {"b": {"0": [9000, 900]}}}
    catalog.table[Q0] = now
    catalog.times[Q0] = 1_000_000
    lenient = RocketMQStreamReader(replace(stream.options, fail_on_data_loss=False), StructType(), catalog)
    if wanted is None:
        assert stream.latestOffset(first, ReadAllAvailable()) == first
        return
    with pytest.raises(DataLossError, match="t@b:0"):
        stream.latestOffset(first, ReadAllAvailable())
    end = lenient.latestOffset(first, ReadMaxRows(5))
    assert ranges(lenient, first, end) == [QueueRange(Q0, 0, 5)]
    rest = lenient.latestOffset(end, ReadAllAvailable())
    assert ranges(lenient, end, rest) == [QueueRange(Q0, 5, now.max)]
    assert lenient.latestOffset(rest, ReadAllAvailable()) == rest


def test_a_broker_that_is_away_holds_nobody_up() -> None:
    far = MessageQueue("t", "far", 0)
    stream, catalog = reader({Q0: Bounds(0, 5), far: Bounds(0, 5)}, startingOffsets="earliest")
    first = stream.latestOffset({}, ReadAllAvailable())
    catalog.table.update({Q0: Bounds(0, 9), far: Bounds(0, 9)})
    catalog.away = {"far"}
    second = stream.latestOffset(first, ReadAllAvailable())
    assert ranges(stream, first, second) == [QueueRange(Q0, 5, 9)]
    assert stream.latestOffset(second, ReadAllAvailable()) == second
    catalog.away = set()
    third = stream.latestOffset(second, ReadAllAvailable())
    assert ranges(stream, second, third) == [QueueRange(far, 5, 9)]


def test_a_logged_micro_batch_is_planned_when_a_broker_of_it_is_away(caplog: pytest.LogCaptureFixture) -> None:
    far = MessageQueue("t", "c", 0)
    stream, catalog = reader({Q0: Bounds(0, 9), far: Bounds(2, 7)}, startingOffsets="earliest")
    first = stream.latestOffset({}, ReadAllAvailable())
    catalog.away = {"c"}
    assert ranges(stream, {}, first) == [QueueRange(Q0, 0, 9), QueueRange(far, 2, 7)]
    assert "unavailable brokers (c)" in caplog.text
    with pytest.raises(RemotingConnectError):  # an older version did not log where the micro-batch begins
        stream.partitions({}, {"t": {"b": {"0": 9}, "c": {"0": 7}}})


def test_a_broker_that_gives_no_sample_is_read_later() -> None:
    far = MessageQueue("t", "c", 0)
    bounds = {Q0: Bounds(0, 9), far: Bounds(0, 9)}
    stream, catalog = reader(bounds, startingOffsets="earliest", maxBytesPerTrigger="500")
    catalog.mute = {"c"}
    first = stream.latestOffset({}, ReadMaxBytes(500))
    assert ranges(stream, {}, first) == [QueueRange(Q0, 0, 5)]
    catalog.mute = set()
    second = stream.latestOffset(first, ReadMaxBytes(10_000))
    assert ranges(stream, first, second) == [QueueRange(Q0, 5, 9), QueueRange(far, 0, 9)]


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


def test_a_micro_batch_waits_for_enough_messages() -> None:
    clock = ManualClock()
    options = parse_options(
        {
            "storePath": "d",
            "topic": "t",
            "startingOffsets": "earliest",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "2m",
        }
    )
    catalog = DictCatalog(options, {Q0: Bounds(0, 3)})
    stream = RocketMQStreamReader(options, StructType(), catalog, clock)
    first = stream.latestOffset({}, ReadAllAvailable())
    assert ends(first) == document(3)
    catalog.table[Q0], catalog.table[Q1] = Bounds(0, 8), Bounds(0, 4)
    assert stream.latestOffset(first, ReadAllAvailable()) is first
    catalog.table[Q1] = Bounds(0, 5)
    second = stream.latestOffset(first, ReadAllAvailable())
    assert ends(second) == document(8, 5)
    catalog.table[Q0] = Bounds(0, 9)
    clock.advance(119_999)
    assert stream.latestOffset(second, ReadAllAvailable()) is second
    clock.advance(1)
    assert ends(stream.latestOffset(second, ReadAllAvailable())) == document(9, 5)


def test_a_run_that_ends_waits_for_no_messages() -> None:
    stream, catalog = reader({Q0: Bounds(0, 3)}, startingOffsets="earliest", minOffsetsPerTrigger="10")
    first = stream.latestOffset({}, ReadAllAvailable())
    catalog.table[Q0] = Bounds(0, 5)
    stream.prepareForTriggerAvailableNow()
    assert ends(stream.latestOffset(first, ReadAllAvailable())) == document(5)


def test_a_run_that_ends_reads_the_queues_of_brokers_that_answer(caplog: pytest.LogCaptureFixture) -> None:
    there, gone = Q0, MessageQueue("t", "c", 0)
    stream, catalog = reader({there: Bounds(0, 3), gone: Bounds(0, 4)}, startingOffsets="earliest")
    catalog.away = {"c"}
    stream.prepareForTriggerAvailableNow()
    first = stream.latestOffset({}, ReadAllAvailable())
    assert ranges(stream, {}, first) == [QueueRange(there, 0, 3)]
    assert stream.latestOffset(first, ReadAllAvailable()) is first
    assert "the next run continues with all" in caplog.text
    catalog.away = set()
    again, _ = reader(catalog.table, startingOffsets="earliest")
    again.prepareForTriggerAvailableNow()
    assert ranges(again, first, again.latestOffset(first, ReadAllAvailable())) == [QueueRange(gone, 0, 4)]
    catalog.away = {"b", "c"}
    with pytest.raises(RemotingConnectError):
        stream.prepareForTriggerAvailableNow()


def test_the_first_micro_batch_waits_for_all_brokers_only_when_it_must() -> None:
    gone = MessageQueue("t", "c", 0)
    stream, catalog = reader({Q0: Bounds(2, 3), gone: Bounds(1, 4)}, startingOffsets="earliest")
    catalog.away = {"c"}
    first = stream.latestOffset({}, ReadAllAvailable())
    assert ranges(stream, {}, first) == [QueueRange(Q0, 2, 3)]
    catalog.away = set()
    assert ranges(stream, first, stream.latestOffset(first, ReadAllAvailable())) == [QueueRange(gone, 1, 4)]
    newest, catalog = reader({Q0: Bounds(2, 3), gone: Bounds(1, 4)}, startingOffsets="latest")
    catalog.away = {"c"}
    with pytest.raises(RemotingConnectError):  # the queue's first offset is not known
        newest.latestOffset({}, ReadAllAvailable())


def test_a_run_that_ends_needs_a_topic_for_its_pattern() -> None:
    options = parse_options({"storePath": "d", "subscribePattern": "x.*"})
    stream = RocketMQStreamReader(options, StructType(), DictCatalog(options, {Q0: Bounds(0, 3)}))
    assert ends(stream.latestOffset({}, ReadAllAvailable())) == {}
    stream.prepareForTriggerAvailableNow()
    with pytest.raises(ConfigError, match=r"subscribePattern.*existing topics: t"):
        stream.latestOffset({}, ReadAllAvailable())
