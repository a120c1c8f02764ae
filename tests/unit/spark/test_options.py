"""Options of the data source: which are accepted, and how others are refused."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from rucola.arrow.expression import SqlCondition
from rucola.arrow.read_options import MissingTime, Position, ScanOrder, SchemaStyle, Subscription
from rucola.broker.subscription.subscription_group_manager import BUILT_IN_GROUPS
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError
from rucola.filter.tag import parse_tag_expression
from rucola.spark.options import OPTIONS, parse_options

BASE = {"storePath": "store", "topic": "flights"}


def test_defaults() -> None:
    options = parse_options(BASE)
    assert options.store_path == "store"
    assert options.subscription == Subscription(topics=("flights",))
    assert options.starting is None
    assert options.ending == Position(name="latest")
    assert options.fail_on_data_loss is True
    assert options.offsets_per_trigger_max is None
    assert options.bytes_per_partition_max == 128 << 20
    assert options.scan_order is ScanOrder.AUTO
    assert options.schema_style is SchemaStyle.ROCKETMQ
    assert options.starting_missing_time is MissingTime.ERROR
    assert options.expression.matches_all
    assert options.retry_timeout_ms == 120_000


def test_options_travel_to_the_tasks() -> None:
    options = parse_options({**BASE, "startingOffsets": '{"flights":{"b":{"0":1}}}'})
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize("name", ["storepath", "STOREPATH", "path", "storePath"])
def test_names_are_case_insensitive(name: str) -> None:
    assert parse_options({name: "d", "TOPIC": "t"}).store_path == "d"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("failondataloss_", "failOnDataLoss"),
        ("storepaht", "storePath"),
        ("subexpresion", "subExpression"),
    ],
)
def test_unknown_option_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options({**BASE, name: "1"})
    assert caught.value.key == name
    assert f"the nearest is {nearest}" in str(caught.value)


def test_an_unknown_option_that_is_like_no_other_lists_them_all() -> None:
    with pytest.raises(ConfigError, match=r"they are accessKey, .*, useTLS") as caught:
        parse_options({**BASE, "watermarkDelay": "1"})
    assert "nearest" not in str(caught.value)


def test_a_group_of_a_prefix_is_the_same_in_every_run() -> None:
    given = {"nameServer": "h:1", "topic": "t", "groupIdPrefix": "reports"}
    group = parse_options(given).consumer_group
    assert group.startswith("reports-")
    assert parse_options({**given, "columns": "body"}).consumer_group == group
    assert parse_options({**given, "topic": "u"}).consumer_group != group
    assert parse_options({**given, "nameServer": "h:2"}).consumer_group != group


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"topic": "t"}, "nameServer, storePath"),
        ({"topic": "t", "storePath": "d", "nameServer": "h:1"}, "nameServer, storePath"),
        ({"storePath": "d"}, "topic, subscribe, subscribePattern, assign"),
        ({"storePath": "d", "topic": "t", "subscribe": "u"}, "topic, subscribe, subscribePattern, assign"),
        ({"storePath": "d", "path": "e", "topic": "t"}, "storePath"),
        ({"storePath": "d", "topic": " , "}, "topic"),
        ({"storePath": "d", "subscribePattern": "("}, "subscribePattern"),
        ({"storePath": "d", "assign": "[]"}, "assign"),
        ({"storePath": "d", "assign": '{"t":{"b":[]}}'}, "assign"),
        ({"storePath": "d", "assign": '{"t":{"b":[-1]}}'}, "assign"),
        ({**BASE, "subExpression": "||"}, "subExpression"),
        ({**BASE, "startingOffsets": "first"}, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"t":1}'}, "startingOffsets"),
        ({**BASE, "startingOffsets": '{"t":{"b":{"0":-3}}}'}, "startingOffsets"),
        ({**BASE, "endingOffsets": "earliest"}, "endingOffsets"),
        ({**BASE, "endingOffsets": '{"t":{"b":{"0":-2}}}'}, "endingOffsets"),
        ({**BASE, "startingTimestamp": "-1"}, "startingTimestamp"),
        ({**BASE, "startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({**BASE, "startingOffsetsByTimestampStrategy": "earliest"}, "startingOffsetsByTimestampStrategy"),
        ({**BASE, "failOnDataLoss": "yes"}, "failOnDataLoss"),
        ({**BASE, "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({**BASE, "maxBytesPerTrigger": "1k"}, "maxBytesPerTrigger"),
        ({**BASE, "minPartitions": "1.5"}, "minPartitions"),
        ({**BASE, "schemaStyle": "avro"}, "schemaStyle"),
        ({**BASE, "scanOrder": "random"}, "scanOrder"),
        ({**BASE, "pullBatchSize": "0"}, "pullBatchSize"),
        ({**BASE, "includeHeaders": "true"}, "includeHeaders"),
        ({"topic": "t", "storePath": "hdfs://h/store"}, "storePath"),
        ({"topic": "t", "storePath": "file://elsewhere/store"}, "storePath"),
        ({**BASE, "brokerName": "a,b"}, "brokerName"),
        ({"topic": "t", "storePath": "d,e", "brokerName": "a,a"}, "brokerName"),
        ({"topic": "t", "storePath": "d,e", "brokerName": "a,"}, "brokerName"),
        ({"topic": "t", "storePath": "d,e", "brokerName": "a,b", "storePathCommitLog": "c"}, "storePathCommitLog"),
        ({"topic": "t", "nameServer": "h:1", "storePathCommitLog": "c"}, "storePathCommitLog"),
        (
            {"topic": "t", "nameServer": "h:1", "groupIdPrefix": "p", "consumerGroup": "g"},
            "groupIdPrefix, consumerGroup",
        ),
    ],
)
def test_refused_values(given: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(given)
    assert caught.value.key == key
    assert caught.value.allowed


@pytest.mark.parametrize(
    ("given", "topics", "wanted", "unwanted"),
    [
        ({"topic": "b, a,b"}, ("a", "b"), ["a", "b"], ["c", "ab"]),
        ({"subscribe": "a"}, ("a",), ["a"], ["aa"]),
        ({"subscribePattern": "a.*"}, (), ["a", "abc"], ["ba"]),
        ({"assign": '{"a":{"x":[1,0]}}'}, ("a",), ["a"], ["b"]),
    ],
)
def test_subscriptions(given: dict[str, str], topics: Any, wanted: list[str], unwanted: list[str]) -> None:
    subscription = parse_options({"storePath": "d", **given}).subscription
    assert subscription.named_topics == topics
    assert all(subscription.wants_topic(topic) for topic in wanted)
    assert not any(subscription.wants_topic(topic) for topic in unwanted)


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "%RETRY%g", "%DLQ%g"])
def test_a_pattern_leaves_out_reserved_topics(topic: str) -> None:
    assert not parse_options({"storePath": "d", "subscribePattern": ".*"}).subscription.wants_topic(topic)
    assert parse_options({"storePath": "d", "topic": topic}).subscription.wants_topic(topic)
    if topic.startswith("%"):
        named = parse_options({"storePath": "d", "subscribePattern": topic.replace("g", ".*")})
        assert named.subscription.wants_topic(topic)


def test_assigned_queues_are_sorted() -> None:
    options = parse_options({"storePath": "d", "assign": '{"t":{"b":[2,0],"a":[1]}}'})
    assert options.subscription.queues == (
        MessageQueue("t", "a", 1),
        MessageQueue("t", "b", 0),
        MessageQueue("t", "b", 2),
    )


def test_times_beat_offsets() -> None:
    document = '{"flights":{"b":{"0":5}}}'
    offsets = {"startingOffsets": document, "startingOffsetsByTimestamp": document, "startingTimestamp": "7"}
    assert parse_options({**BASE, **offsets}).starting == Position(timestamp_ms=7)
    del offsets["startingTimestamp"]
    queue = MessageQueue("flights", "b", 0)
    assert parse_options({**BASE, **offsets}).starting == Position(timestamps={queue: 5})
    del offsets["startingOffsetsByTimestamp"]
    assert parse_options({**BASE, **offsets}).starting == Position(offsets={queue: 5})


@pytest.mark.parametrize(
    ("expression", "tags"), [("*", set()), ("", set()), ("AA", {"AA"}), ("AA || UA||", {"AA", "UA"}), ("a|b", {"a|b"})]
)
def test_tag_expressions(expression: str, tags: set[str]) -> None:
    assert set(parse_options({**BASE, "subExpression": expression}).expression.tags) == tags  # type: ignore[union-attr]


def test_the_default_group_is_one_that_every_broker_has() -> None:
    assert parse_options(BASE).consumer_group in BUILT_IN_GROUPS


def test_every_option_says_what_it_means() -> None:
    names = [option.name.lower() for option in OPTIONS]
    assert len(set(names)) == len(names)
    assert all(option.meaning for option in OPTIONS)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"subExpression": "a > 3 AND region = 'eu'"}, SqlCondition("a > 3 AND region = 'eu'")),
        ({"subExpression": "region is not null"}, SqlCondition("region is not null")),
        ({"subExpression": "TRUE", "expressionType": "SQL92"}, SqlCondition("TRUE")),
        ({"subExpression": "a=b", "expressionType": "tag"}, parse_tag_expression("a=b")),
        ({"subExpression": "A || B"}, parse_tag_expression("A || B")),
    ],
)
def test_a_condition_is_no_tag(given: dict[str, str], expected: object) -> None:
    assert parse_options({**BASE, **given}).expression == expected


def test_a_condition_that_does_not_compile_says_where() -> None:
    with pytest.raises(ConfigError, match=r"subExpression.*position 4"):
        parse_options({**BASE, "subExpression": "a > > 3"})


@pytest.mark.parametrize(
    ("given", "path"),
    [("file:///data/my%20store", "/data/my store"), ("file:/data/s", "/data/s"), ("d", "d"), ("/a:b", "/a:b")],
)
def test_a_directory_may_be_a_file_uri(given: str, path: str) -> None:
    assert parse_options({"storePath": given, "topic": "t"}).store_path == path


@pytest.mark.parametrize(
    ("name", "ours"),
    [("kafka.bootstrap.servers", "nameServer"), ("namesrvAddr", "nameServer")],
)
def test_names_of_other_sources_are_translated(name: str, ours: str) -> None:
    with pytest.raises(ConfigError, match=f"instead, use {ours}"):
        parse_options({**BASE, name: "x"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15m", 900_000),
        ("30 s", 30_000),
        ("250ms", 250),
        ("7", 7),
        ("2MIN", 120_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
    ],
)
def test_times_with_a_unit(text: str, expected: int) -> None:
    given = {"storePath": "d", "topic": "t", "maxTriggerDelay": text}
    assert parse_options(given).trigger_delay_max_ms == expected
    for wrong in ("1y", "-1s", "1.5m", "m"):
        with pytest.raises(ConfigError, match="maxTriggerDelay"):
            parse_options({**given, "maxTriggerDelay": wrong})
    with pytest.raises(ConfigError, match="up to maxOffsetsPerTrigger"):
        parse_options({**given, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"})


def test_a_table_without_options_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="CREATE TEMPORARY VIEW"):
        parse_options({})
