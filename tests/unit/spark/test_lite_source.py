"""Lite topics in the Spark source and sink, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)
from pyspark.sql.types import StringType, StructField, StructType
from tests.unit.arrow.lite_stores import COUNT, filled, name_of
from tests.unit.spark.ddl import schema_of
from tests.unit.spark.test_sink_rows import chunks_of

from rucola.arrow.lite_condition import EVERY_LITE, LiteCondition
from rucola.arrow.ranges import LogRange, RecordRange
from rucola.arrow.schema import chosen_columns
from rucola.arrow.store_catalog import StoreCatalog
from rucola.common.message_const import LITE_TOPIC, SHARDING_KEY
from rucola.errors import ConfigError
from rucola.spark.batch import FilteringReader, RocketMQReader
from rucola.spark.options import SourceOptions, parse_options
from rucola.spark.pushdown import wanted_by
from rucola.spark.replay_source import plan_replay, read_plan
from rucola.spark.schema import check_schema, to_ddl
from rucola.spark.stream import RocketMQStreamReader

DDL = "queueId int, queueOffset bigint, liteTopic string, liteOffset bigint"
LITE = ("liteTopic",)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lite") / "store"
    filled(path).shutdown()
    return path


def options_of(path: Path, **given: str) -> SourceOptions:
    return parse_options({"storePath": str(path), "topic": "Parent", **given})


def read(reader: RocketMQReader) -> list[tuple[Any, ...]]:
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def in_topics(*names: str | None) -> int:
    return sum(name_of(number) in names for number in range(COUNT))


def test_the_columns_come_by_name_or_by_an_option(directory: Path) -> None:
    assert "liteTopic" not in to_ddl(chosen_columns(options_of(directory)))
    assert (
        to_ddl(chosen_columns(options_of(directory, columns="litetopic,body"))) == "`liteTopic` string, `body` binary"
    )
    assert to_ddl(chosen_columns(options_of(directory, includeLiteTopic="true"))).endswith(
        "`preparedTransactionOffset` bigint, `liteTopic` string, `liteOffset` bigint"
    )
    assert check_schema(options_of(directory), schema_of(DDL)) == tuple(schema_of(DDL).names)
    with pytest.raises(ConfigError, match="without NOT NULL"):
        check_schema(options_of(directory), StructType([StructField("liteTopic", StringType(), False)]))
    rows = read(RocketMQReader(options_of(directory), schema_of(DDL)))
    assert len(rows) == COUNT
    assert {row[2] for row in rows} == {name_of(number) for number in range(COUNT)}


@pytest.mark.parametrize(
    ("filters", "condition"),
    [
        ([EqualTo(LITE, "a")], LiteCondition(frozenset("a"))),
        ([EqualNullSafe(("LITETOPIC",), "a")], LiteCondition(frozenset("a"))),
        ([EqualNullSafe(LITE, None)], EVERY_LITE),
        ([In(LITE, ("a", "b", None)), In(LITE, ("b", "c"))], LiteCondition(frozenset("b"))),
        ([IsNull(LITE)], LiteCondition(is_null=True)),
        ([IsNotNull(LITE), StringStartsWith(LITE, "ab")], LiteCondition(None, "ab", "ac", False)),
        ([GreaterThan(LITE, "b"), LessThanOrEqual(LITE, "d")], LiteCondition(None, "b", "d\0", False)),
        ([StringContains(LITE, "b"), Not(EqualTo(LITE, "a")), EqualTo(LITE, 7)], EVERY_LITE),
        ([EqualTo(("topic",), "a"), EqualTo(("x", "liteTopic"), "a")], EVERY_LITE),
    ],
)
def test_filters(filters: list[Filter], condition: LiteCondition) -> None:
    assert wanted_by(filters).lite == condition


def test_pushed_names_read_only_their_records(directory: Path) -> None:
    reader = FilteringReader(options_of(directory, pushFilters="true"), schema_of(DDL))
    pushed: list[Filter] = [In(LITE, ("s4", "s6"))]
    assert list(reader.pushFilters(pushed)) == pushed
    (part,) = reader.partitions()
    assert isinstance(part.value, RecordRange)
    assert len(part.value.physical_offsets) == len(read(reader)) == in_topics("s4", "s6")
    prefix = FilteringReader(options_of(directory, pushFilters="true"), schema_of(DDL))
    prefix.pushFilters([StringStartsWith(LITE, "s4")])
    assert all(isinstance(part.value, LogRange) for part in prefix.partitions())
    assert len(read(prefix)) == in_topics("s4")


def test_the_option_selects_in_batch_and_stream(directory: Path) -> None:
    options = options_of(directory, liteTopics="s4, s6,", startingOffsets="earliest")
    reader = RocketMQReader(options, schema_of(DDL))
    assert isinstance(reader.partitions()[0].value, RecordRange)
    assert len(read(reader)) == in_topics("s4", "s6")
    without = RocketMQReader(options_of(directory, liteTopics="s4", useIndex="false"), schema_of(DDL))
    assert isinstance(without.partitions()[0].value, LogRange)
    assert len(read(without)) == in_topics("s4")
    stream = RocketMQStreamReader(options, schema_of(DDL))
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    parts: list[InputPartition] = list(stream.partitions(start, end))
    assert sum(batch.num_rows for part in parts for batch in stream.read(part)) == in_topics("s4", "s6")
    stream.stop()


def test_both_option_and_filter_must_hold(directory: Path) -> None:
    reader = FilteringReader(options_of(directory, pushFilters="true", liteTopics="s4,s6"), schema_of(DDL))
    reader.pushFilters([EqualTo(LITE, "s4")])
    assert {row[2] for row in read(reader)} == {"s4"}
    nothing = FilteringReader(options_of(directory, pushFilters="true", liteTopics="s4"), schema_of(DDL))
    nothing.pushFilters([EqualTo(LITE, "s6")])
    assert read(nothing) == []


def test_a_replay_chooses_lite_topics_and_keeps_them(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreCatalog, "plan", None)  # the units lead to the records
    plan = plan_replay(options_of(directory, liteTopics="s4,s6"))
    batches = list(read_plan(plan, ("queueId", "queueOffset", "liteTopic", "properties")))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert len(rows) == in_topics("s4", "s6")
    for queue_id in (0, 1):
        offsets = [row["queueOffset"] for row in rows if row["queueId"] == queue_id]
        assert offsets == sorted(offsets)
    given = [("b", row["properties"]) for row in rows]
    (chunk,) = chunks_of("body string, properties string", given)
    assert [message.properties[LITE_TOPIC] for message in chunk.messages] == [row["liteTopic"] for row in rows]
    assert all("INNER_MULTI_DISPATCH" not in message.properties for message in chunk.messages)


def test_the_sink_takes_the_column(directory: Path) -> None:
    (chunk,) = chunks_of(
        "body string, liteTopic string, liteOffset bigint, shardingKey string, properties string",
        [
            ("b", "session-1", 4, None, None),
            ("b", None, None, "key", json.dumps({"a": "b"})),
            ("b", "", None, None, json.dumps({LITE_TOPIC: "session-2"})),
            ("b", "session-3", None, None, json.dumps({LITE_TOPIC: "session-2"})),
            ("b", "session-1", None, "key", None),
            ("b", None, None, None, json.dumps({LITE_TOPIC: "session-2", SHARDING_KEY: "key"})),
        ],
    )
    assert [message.properties.get(LITE_TOPIC) for message in chunk.messages] == [
        "session-1", None, "session-2", "session-3", "session-1", None,
    ]  # fmt: skip
    assert chunk.messages[0].properties == {LITE_TOPIC: "session-1"}
    assert list(chunk.invalid) == [4]
    assert "neither shardingKey nor delay" in str(chunk.invalid[4])


def test_rows_of_lite_topics_are_not_packed_into_batches() -> None:
    schema = "body string, properties string"
    (packed,) = chunks_of(schema, [("b", json.dumps({"a": "b"}))])
    (lite,) = chunks_of(schema, [("b", json.dumps({LITE_TOPIC: "s"}))])
    assert "UNIQ_KEY" in packed.messages[0].properties
    assert lite.messages[0].properties == {LITE_TOPIC: "s"}
