"""Rows as messages, and the ids that identify repeats."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from tests.sizes import size
from tests.unit.spark.ddl import schema_of

from rucola.common.message import Message
from rucola.errors import ConfigError
from rucola.spark import sink_pack, sink_rows
from rucola.spark.repeats import position_id, value_id
from rucola.spark.sink_options import parse_sink_options, sink_layout
from rucola.spark.sink_rows import Chunk, RowReader

POSITION = "topic string, brokerName string, queueId int, queueOffset bigint, body binary"


def batch(ddl: str, rows: list[tuple[Any, ...]]) -> tuple[StructType, pa.RecordBatch]:
    schema = schema_of(ddl)
    arrow = to_arrow_schema(schema, timezone="UTC")
    columns = list(zip(*rows, strict=True))
    return schema, pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, arrow, strict=True)], schema=arrow
    )


def chunks_of(ddl: str, rows: list[tuple[Any, ...]], query_id: str = "", **given: str) -> list[Chunk]:
    schema, table = batch(ddl, rows)
    options = parse_sink_options({"nameServer": "h:1", "topic": "t", **given})
    chunks = list(RowReader(options, sink_layout(options, schema), query_id).chunks(table))
    for chunk in chunks:
        chunk.unpack()
    return chunks


TEXTS = (
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(["", "a\x01b", "\x02"])
)
PROPERTIES = st.none() | st.dictionaries(st.sampled_from(["TAGS", "n", "__SHARDINGKEY", "UNIQ_KEY"]), TEXTS, max_size=3)
ROW = st.tuples(
    st.none() | st.binary(max_size=30), TEXTS, TEXTS, PROPERTIES,
    st.sampled_from(["in", "on"]), st.sampled_from(["broker-a", "b"]), st.integers(0, 2),
    st.sampled_from([0, 1, 1 << 16, (1 << 40) - 1]) | st.integers(0, 1 << 34) | st.none(),
)  # fmt: skip
DDL = "body binary, tags string, keys string, properties map<string,string>, {}"
DDL = DDL.format("topic string, brokerName string, queueId int, queueOffset bigint")


@settings(max_examples=size(15, 40))
@example([(b"b", "", "", None, "in", "b", 0, 0)], 0, {"tags", "keys"}, 100)
@given(
    rows=st.lists(ROW, min_size=1, max_size=12, unique_by=lambda row: row[4:]),
    start=st.integers(0, 11),
    names=st.sets(st.sampled_from(["tags", "keys", "properties"])),
    batch_bytes=st.sampled_from([1, 100, 300, 100_000]),
)
def test_packed_rows_are_the_messages_of_the_rows(
    rows: list[tuple[Any, ...]], start: int, names: set[str], batch_bytes: int
) -> None:
    schema, table = batch(DDL, rows)
    left_out = {"tags", "keys", "properties"} - names
    table = table.drop_columns(sorted(left_out)).slice(min(start, len(rows) - 1))
    schema = StructType([field for field in schema.fields if field.name not in left_out])
    options = parse_sink_options({"nameServer": "h:1", "topic": "t", "batchBytes": str(batch_bytes), "idScope": "s"})
    reader = RowReader(options, sink_layout(options, schema), "")
    (chunk,) = reader.chunks(table)
    assert all(one.rows == 1 or len(one.body) <= batch_bytes for one in chunk.packed)
    assert not chunk.packed or sum(one.rows for one in chunk.packed) == table.num_rows
    chunk.unpack()
    one_by_one = reader._row_by_row(table)
    assert list(map(parts, chunk.messages)) == list(map(parts, one_by_one.messages))
    assert chunk.invalid.keys() == one_by_one.invalid.keys()


def parts(message: Message) -> tuple[object, ...]:
    return message.topic, message.body, message.flag, message.properties


@pytest.mark.parametrize(
    ("ddl", "row", "packed"),
    [
        ("body string", ("b",), True),
        ("body binary, tags string, keys string", (b"b", "T", None), True),
        ("body string, keys array<string>", ("b", ["a", "b"]), True),
        ("body string, properties string", ("b", '{"n": "1"}'), True),
        (POSITION, ("in", "b", 0, 7, b"x"), True),
        (POSITION, ("in", "b", 0, None, b"x"), False),
        ("body string, tags string", ("b", "a\x02b"), False),
        ("body string, properties string", ("b", '{"__SHARDINGKEY": "1"}'), False),
        ("body string, queueId int", ("b", 1), False),
        ("body string, delayMs int", ("b", 0), False),
        ("body string", ("b" * 5000,), False),
        ("body string, tags string", ("b", "t" * 32_800), False),
        ("body string", ("",), False),
    ],
)
def test_the_rows_that_are_packed(ddl: str, row: tuple[Any, ...], packed: bool) -> None:
    schema, table = batch(ddl, [row])
    options = parse_sink_options({"nameServer": "h:1", "topic": "t"})
    (chunk,) = RowReader(options, sink_layout(options, schema), "").chunks(table)
    assert bool(chunk.packed) == packed
    assert not chunk.packed or not chunk.messages


def test_packed_rows_without_an_id_get_new_ones() -> None:
    ids = [one.uniq_key for chunk in chunks_of("body string", [("b",)] * 500) for one in chunk.messages]
    ids += [one.uniq_key for chunk in chunks_of("body string", [("b",)] * 500) for one in chunk.messages]
    assert len({*ids}) == 1000
    assert {len(one or "") for one in ids} == {32}


def test_a_request_has_a_limited_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_pack, "BATCH_MESSAGES_MAX", 3)
    schema, table = batch("body string", [("b",)] * 8)
    options = parse_sink_options({"nameServer": "h:1", "topic": "t"})
    (chunk,) = RowReader(options, sink_layout(options, schema), "").chunks(table)
    assert [(one.first, one.rows) for one in chunk.packed] == [(0, 3), (3, 3), (6, 2)]


def test_every_column_becomes_a_part_of_the_message() -> None:
    ddl = (
        "body string, tags string, keys array<string>, properties map<string,string>, shardingKey string, flag int, "
        "delayMs bigint, queueId int, brokerName string"
    )
    row = ("Zürich", "T", ["a", "b"], {"x": "1", "UNIQ_KEY": "no"}, "s", 7, 1500, 3, "broker-b")
    (chunk,) = chunks_of(ddl, [row, ("b", *[None] * 8)])
    full, bare = chunk.messages
    assert (full.topic, full.body, full.flag) == ("t", "Zürich".encode(), 7)
    assert full.properties == {
        "x": "1",
        "TAGS": "T",
        "KEYS": "a b",
        "__SHARDINGKEY": "s",
        "TIMER_DELAY_MS": "1500",
    }
    assert bare.properties == {}
    assert chunk.queues == {0: ("broker-b", 3)}
    assert chunk.invalid == {}


def test_a_time_to_deliver_at() -> None:
    when = datetime(2030, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    (chunk,) = chunks_of("body string, deliverAt timestamp", [("b", when)])
    assert chunk.messages[0].deliver_at == when


def test_properties_written_by_brokers_are_not_sent_again() -> None:
    text = '{"TAGS":"T","UNIQ_KEY":"U","MSG_REGION":"r","DELAY":"3","origin":"NYC","WAIT":"true"}'
    (chunk,) = chunks_of("body string, properties string", [("b", text), ("b", "[1]"), ("b", "{")])
    assert chunk.messages[0].properties == {"TAGS": "T", "origin": "NYC"}
    assert sorted(chunk.invalid) == [1, 2]


def test_rows_that_make_no_message() -> None:
    rows = [("t", b""), ("t", None), (None, b"x"), ("t", b"x")]
    (chunk,) = chunks_of("topic string, body binary", rows, topic="")
    assert {number: str(error) for number, error in chunk.invalid.items()} == {
        0: "the body is null or empty",
        1: "the body is null or empty",
        2: "the topic is null or empty",
    }
    (chunk,) = chunks_of("body string, delayMs int, delayLevel int", [("b", 5, 3), ("b", 5, 0), ("b", 0, 0)])
    assert sorted(chunk.invalid) == [0]
    assert chunk.messages[2].properties == {}


def test_one_message_read_gives_one_id_whenever_it_is_sent() -> None:
    rows = [("in", "broker-a", 1, number, b"x") for number in (0, 1, 1 << 17)]
    ids = [message.uniq_key for message in chunks_of(POSITION, rows, "query")[0].messages]
    assert ids == [message.uniq_key for message in chunks_of(POSITION, rows, "query")[0].messages]
    assert len({*ids}) == 3
    assert all(one is not None and len(one) == 32 and one[20:28] == "00000000" for one in ids)
    for other in ("another", ""):
        assert {*ids}.isdisjoint(message.uniq_key for message in chunks_of(POSITION, rows, other)[0].messages)
    assert {*ids} == {message.uniq_key for message in chunks_of(POSITION, rows, "x", idScope="query")[0].messages}


def test_ids_are_the_same_in_every_process_and_version() -> None:
    assert position_id("query", "in", "broker-a", 1, (7 << 16) + 5) == "82818DEDAED395000007000000000005"
    assert value_id("s", "v") == "5BAE7C4A85C457BC305100000000DAD6"


def test_ids_of_positions_differ_by_every_part() -> None:
    places = [("", "a", "b", 0, 0), ("q", "a", "b", 0, 0), ("", "b", "b", 0, 0), ("", "a", "a", 0, 0)]
    places += [("", "a", "b", 1, 0), ("", "a", "b", 0, 1), ("", "a", "b", 0, 1 << 16), ("", "a", "b", 0, (1 << 40) - 1)]
    assert len({position_id(*place) for place in places}) == len(places)


def test_several_rows_of_one_message_need_an_id_of_their_own() -> None:
    rows = [("in", "broker-a", 1, 5, b"x"), ("in", "broker-a", 1, 5, b"y")]
    with pytest.raises(ConfigError, match="distinguishes rows"):
        chunks_of(POSITION, rows)


def test_a_column_that_makes_the_id() -> None:
    (chunk,) = chunks_of("body string, id bigint", [("a", 1), ("b", 2), ("c", 1), ("d", None)], idColumn="id")
    ids = [message.uniq_key for message in chunk.messages]
    assert ids[0] == ids[2] == value_id("", 1) != ids[1]
    assert sorted(chunk.invalid) == [3]
    assert value_id("", "1") != value_id("s", "1")


@pytest.mark.parametrize(
    ("ddl", "values"),
    [
        ("body string, keys array<string>", [[], [None], [""], None, ["", "a", None, "b"]]),
        ("body string, keys binary", [b"", None, b"a b"]),
        ("body string, keys string", ["", None, "a b"]),
    ],
)
@pytest.mark.parametrize("more", ["", ", delayMs int"])  # packed, and one by one
def test_empty_keys_are_no_keys(ddl: str, values: list[Any], more: str) -> None:
    rows = [("x", value, *([0] if more else [])) for value in values]
    (chunk,) = chunks_of(ddl + more, rows)
    assert not chunk.invalid
    assert [message.keys for message in chunk.messages] == [None] * (len(values) - 1) + ["a b"]


def test_many_rows_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_rows, "CHUNK_ROWS", 3)
    chunks = chunks_of("body string", [(str(number),) for number in range(7)])
    assert [len(chunk.messages) for chunk in chunks] == [3, 3, 1]
    assert b"".join(message.body for chunk in chunks for message in chunk.messages) == b"0123456"
