"""Bodies become typed columns; rows that cannot be decoded go to a separate table, to be decoded again later."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from pyspark.sql.types import StructType
from tests.unit.arrow.json_bodies import mutated
from tests.unit.arrow.json_page import DDL as PAGE_DDL
from tests.unit.arrow.json_page import FITS, TIMES, cases
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import open_store

from rucola.common.message import Message
from rucola.errors import ConfigError
from rucola.spark.archive import archive, topic_table
from rucola.spark.decoding import decode, poison_rows, sample_schema, without_poison
from rucola.spark.repeats import drop_repeats

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .conftest import BrokerProcess

pytestmark = pytest.mark.spark

DDL = "carrier string, delay int"
BODIES = [b'{"carrier":"UA","delay":4}', b'{"carrier":"AA"}', b'{"delay":"late"}', b"{", b"\xff", b"[1]", b" "]
GOOD = 2
WANTED_DIFFERENCES = (
    "text after the object",
    "a second field of this name",
    "no name of a field",
    "NaN is not JSON",
    "Infinity is not JSON",
    "half of a surrogate pair",
    "is beyond double",
    "digits after the point",
    "integer_times is not given",
    "that is no timestamp",
    "that is no date",
    "a text, but the field is double",
)
"""Reasons for which a body is refused that ``from_json`` takes; docs/bodies.md lists them."""


def test_json_of_a_stream_with_poison(spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    with shared_broker.producer() as producer:
        producer.send_many([Message("typed", body, keys=str(number)) for number, body in enumerate(BODIES)])
    where = {"nameServer": shared_broker.namesrv}
    stream = spark.readStream.format("rocketmq").options(**where, topic="typed", startingOffsets="earliest").load()
    decoded = decode(stream, "json", DDL, count_as="decoding")

    def both(rows: DataFrame, _: int) -> None:
        without_poison(rows).select("keys", "carrier", "delay").write.mode("append").parquet(str(tmp_path / "good"))
        poison_rows(rows).write.format("rocketmq").options(**where, topic="poison").mode("append").save()

    query = (
        decoded.writeStream.foreachBatch(both)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    counted = query.recentProgress[0].observedMetrics["decoding"].asDict()
    assert counted["poison"] / counted["rows"] == (len(BODIES) - GOOD) / len(BODIES)
    good = spark.read.parquet(str(tmp_path / "good")).orderBy("keys").collect()
    assert [tuple(row) for row in good] == [("0", "UA", 4), ("1", "AA", None)]
    poison = spark.read.format("rocketmq").options(**where, topic="poison").load()
    again = decode(poison, "json", "carrier string, delay string", into="flight").orderBy("keys")
    found = again.selectExpr("keys", "properties", "flight.delay", "_error").collect()
    told = {row["keys"]: (json.loads(row.properties)["POISON_ERROR"], row.delay, row._error) for row in found}
    assert told == {
        "2": ("delay: a text, but the field is int at byte 9", "late", None),
        "3": ("the body ends at byte 1", None, "the body ends at byte 1"),
        "4": ("no JSON, not an object at byte 0", None, "no JSON, not an object at byte 0"),
        "5": ("an array, not an object at byte 0", None, "an array, not an object at byte 0"),
        "6": ("nothing, not an object at byte 1", None, "nothing, not an object at byte 1"),
    }
    assert {json.loads(row.properties)["POISON_TOPIC"] for row in found} == {"typed"}
    assert sample_schema(spark, **where, topic="typed").simpleString() == "struct<carrier:string,delay:string>"
    with pytest.raises(ConfigError, match="JSON objects"):
        sample_schema(spark, **where, topic="poison", subExpression="none")


def test_json_is_checked_and_parsed_once_whatever_is_filtered(spark: SparkSession) -> None:
    rows = spark.range(1).selectExpr("cast(cast(id AS string) AS binary) AS body")
    good = without_poison(decode(rows, "json", DDL)).where("delay > 3")
    plan = good._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    assert (plan.count("from_json("), plan.count("check_bodies(")) == (1, 1)


def test_every_case_of_the_page_gives_its_result(spark: SparkSession) -> None:
    found = cases()
    rows = bodies_of(spark, [FITS, *(case.body for case in found), None])
    decoded = decode(rows, "json", PAGE_DDL).orderBy("number").drop("number", "body").collect()
    assert decoded[0]._error is None
    assert None not in tuple(decoded[0])[:-1]
    for case, row in zip(found, decoded[1:], strict=False):
        values = {name: value for name, value in row.asDict().items() if value is not None}
        error = values.pop("_error", None)
        assert error == case.spark.error, case
        assert values == ({} if error else {case.spark.column: case.spark.value}), case
    assert decoded[-1]._error == "no body"
    texts = rows.where("number = 0").selectExpr("number", "cast(body AS string) AS body")
    assert decode(texts, "json", PAGE_DDL).selectExpr("n", "_error").collect() == [(-1, None)]


def test_bodies_that_are_nearly_right_beside_from_json(spark: SparkSession) -> None:
    """``from_json`` takes every body that fits, with Python's values, and refuses the others; what it takes although
    it does not fit is on the page.
    """
    chance = random.Random(34)
    bodies = [mutated(chance) for _ in range(1500)]
    ours = decode(bodies_of(spark, bodies), "json", PAGE_DDL).orderBy("number").collect()
    text = "try_validate_utf8(cast(body AS string))"
    permissive = f"from_json({text}, '{PAGE_DDL}, r string', map('columnNameOfCorruptRecord', 'r'))"
    taken = bodies_of(spark, bodies).selectExpr("number", f"{permissive} AS v").where("v IS NOT NULL AND v.r IS NULL")
    fitting = bodies_of(spark, [body for body, row in zip(bodies, ours, strict=True) if row._error is None])
    strict = fitting.selectExpr(f"from_json({text}, '{PAGE_DDL}', map('mode', 'FAILFAST')) AS v").collect()
    decoded = [row for row in ours if row._error is None]
    assert 200 < len(decoded) < 1300
    for number, row in enumerate(decoded):
        assert tuple(strict[number].v) == tuple(row)[2:-1]
        value = json.loads(bytes(row.body))
        assert all(value.get(name) == row[name] for name in ("n", "i", "b")), row.body
        assert row.d == (None if value.get("d") is None else float(value["d"])), row.body
    for row in taken.selectExpr("number").collect():
        error = ours[row.number]._error
        assert error is None or any(part in error for part in WANTED_DIFFERENCES), (bodies[row.number], error)


def test_texts_that_are_times(spark: SparkSession) -> None:
    """Spark reads every text that the check takes, and what Python reads in it."""
    bodies = [json.dumps({"t": text, "l": text if local else None}).encode() for text, zoned, local in TIMES if zoned]
    rows = decode(bodies_of(spark, bodies), "json", "t timestamp, l timestamp_ntz")
    zone = ZoneInfo(str(spark.conf.get("spark.sql.session.timeZone")))
    found = rows.orderBy("number").selectExpr("unix_micros(t) t", "cast(l AS string) l", "_error").collect()
    for (text, _, local), row in zip([one for one in TIMES if one[1]], found, strict=True):
        when = datetime.fromisoformat(text.replace(".123456789", ".123456"))
        local_when = when if when.tzinfo else when.replace(tzinfo=zone)
        assert row._error is None
        assert row.t == (local_when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1), text
        assert (row.l is not None) is local
        assert not local or datetime.fromisoformat(row.l) == when


def test_whole_numbers_are_times_only_in_their_unit(spark: SparkSession) -> None:
    body = b'{"t":1577836800123,"a":[1577836800123,"2020-01-01T00:00:00Z"]}'
    rows = bodies_of(spark, [body])
    for unit, year in (("millis", 2020), ("micros", 1970)):
        decoded = decode(rows, "json", "t timestamp, a array<timestamp>", integer_times=unit)
        (row,) = decoded.selectExpr("year(t)", "unix_micros(t)", "a[0] = t", "year(a[1])", "_error").collect()
        assert tuple(row) == (year, 1577836800123 * (1000 if unit == "millis" else 1), True, 2020, None)
    (row,) = decode(rows, "json", "t timestamp, n int", integer_times="SECONDS").collect()
    assert row._error == "t: 1577836800123 seconds is outside the years 1 to 9999 at byte 5"
    for given, text in (({"integer_times": "hours"}, "seconds or millis"), ({"format": "string"}, "has the units")):
        with pytest.raises(ConfigError, match=text):
            decode(rows, **{"schema": "t timestamp", "integer_times": "millis"} | given)  # type: ignore[arg-type]


def test_the_archive_decodes_by_the_same_rules(spark: SparkSession, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    found = cases()
    for number, case in enumerate(found):
        one = message(number, b"typed")
        one.store_host, one.queue_id, one.body = store.store_host, 0, case.body
        store.put_message(one)
    store.dispatch()
    store.shutdown()
    decoder = partial(decode, schema=PAGE_DDL, into="fields")
    archive(str(tmp_path / "table"), "typed", spark=spark, store=str(tmp_path / "store"), decode=decoder)
    rows = topic_table(spark, "typed", str(tmp_path / "table"), store=str(tmp_path / "store"), decode=decoder)
    for case, row in zip(found, rows.orderBy("queueOffset").select("fields", "_error").collect(), strict=True):
        assert row._error == case.spark.error
        assert row._error or row.fields[case.spark.column] == case.spark.value


def test_a_schema_comes_from_bodies_that_are_json(spark: SparkSession, tmp_path: Path) -> None:
    """Fields without names are left out, at any depth; bodies that ``decode`` refuses have no say."""
    store = open_store(tmp_path / "store")
    bodies = [
        b'{"":1,"n":1,"o":{"":2,"k":[{"":3,"x":1}]}}',
        b'{"n":"a"} rest',
        b'{"n":1,"n":0.5}',
        b'{"n":NaN}',
        b"[1]",
    ]
    for number, body in enumerate(bodies):
        one = message(number, b"typed")
        one.store_host, one.queue_id, one.body = store.store_host, 0, body
        store.put_message(one)
    store.dispatch()
    store.shutdown()
    found = sample_schema(spark, storePath=str(tmp_path / "store"), topic="typed")
    assert found.simpleString() == "struct<n:bigint,o:struct<k:array<struct<x:bigint>>>>"


def field(name: str) -> dict[str, object]:
    return {"name": name, "type": "string", "nullable": True, "metadata": {}}


def bodies_of(spark: SparkSession, bodies: list[bytes | None]) -> DataFrame:
    rows = [(number, None if body is None else bytearray(body)) for number, body in enumerate(bodies)]
    return spark.createDataFrame(rows, "number int, body binary").coalesce(1)


def test_text_avro_and_protobuf(spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("fastavro")
    pytest.importorskip("google.protobuf")
    from tests.unit.spark.test_body_decoders import AVRO, ROW, avro, descriptors

    schema = tmp_path / "flight.avsc"
    schema.write_text(json.dumps(AVRO))
    described = tmp_path / "flight.desc"
    described.write_bytes(descriptors())
    rows = spark.createDataFrame([(bytearray(body),) for body in (avro(ROW), b"\x0a\x02UA", b"\xff")], "body binary")
    from_avro = decode(rows, "avro", str(schema)).selectExpr("carrier", "fare", "`from`.code", "_error").collect()
    assert [(row.carrier, row.code) for row in from_avro] == [("UA", "EWR"), (None, None), (None, None)]
    assert [row._error is None for row in from_avro] == [True, False, False]
    described_rows = decode(rows, "protobuf", str(described), message="p.Flight", into="m").selectExpr(
        "m.carrier", "_error"
    )
    assert [(row.carrier, row._error is None) for row in described_rows.collect()][1:] == [("UA", True), (None, False)]
    texts = decode(rows, "string").select("text", "_error").collect()
    assert [tuple(row) for row in texts][1:] == [("\n\x02UA", None), (None, "not UTF-8")]


def test_mistakes_are_told(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql.types import StructType

    rows = spark.createDataFrame([("{}", "UA")], "body string, carrier string")
    for given, text in (
        ({"format": "xml"}, "json or avro"),
        ({"schema": DDL}, "already have a column carrier"),
        ({"schema": "a nothing"}, "option schema"),
        ({"schema": None}, "sample_schema"),
        ({"schema": StructType.fromJson({"type": "struct", "fields": [field("")]})}, "have names"),
        ({"schema": StructType.fromJson({"type": "struct", "fields": [field("a"), field("a")]})}, "have names"),
        ({"schema": str(tmp_path / "none.json")}, "a file that can be read"),
        ({"schema": DDL, "body": "value"}, "one of these columns"),
        ({"format": "protobuf", "schema": "f.desc"}, "full name"),
    ):
        with pytest.raises(ConfigError, match=text):
            decode(rows, **given)  # type: ignore[arg-type]


def test_the_advice_of_errors_works(spark: SparkSession, tmp_path: Path) -> None:
    """Errors of functions over a DataFrame; those of options are in ``tests/unit/spark/advice.py``."""
    rows = spark.createDataFrame([(bytearray(b'{"topic":"x"}'), "t", "id")], "body binary, topic string, msgId string")
    (tmp_path / "a.ddl").write_text("a int")
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    (tmp_path / "a.desc").write_bytes(files.SerializeToString())
    protobuf = {"format": "protobuf", "schema": str(tmp_path / "a.desc")}
    json_of = {"format": "json", "schema": "a int"}
    avro = '{"type": "record", "name": "r", "fields": []}'
    cases: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("json or avro", {**json_of, "format": "xml"}, json_of),
        ("one of these columns: body", {**json_of, "body": "value"}, {**json_of, "body": "body"}),
        ("name for a struct column", {**json_of, "schema": "topic string"}, {**json_of, "into": "decoded"}),
        ("a StructType", {"format": "json"}, {**json_of, "schema": StructType().add("a", "integer")}),
        ("DDL or a file", {"format": "json"}, {**json_of, "schema": str(tmp_path / "a.ddl")}),
        (
            "DDL, or a schema as Spark",
            {**json_of, "schema": "("},
            {**json_of, "schema": StructType().add("a", "integer").json()},
        ),
        ("DDL, or a schema as Spark", {**json_of, "schema": "int"}, json_of),
        ("without the fields", {**json_of, "schema": "_error string"}, json_of),
        ("a file that can be read", {**json_of, "schema": "none.ddl"}, {**json_of, "schema": str(tmp_path / "a.ddl")}),
        ("for avro, also JSON", {"format": "avro"}, {"format": "avro", "schema": avro}),
        ("full name of a message", protobuf, {**protobuf, "message": "google.protobuf.Timestamp"}),
    ]
    for advice, wrong, right in cases:
        with pytest.raises(ConfigError, match=advice):
            decode(rows, **wrong)
        assert decode(rows, **right).count() == 1
    with pytest.raises(ConfigError, match="none for a batch"):
        drop_repeats(rows, within="1 minute")
    assert drop_repeats(rows).count() == 1
    with pytest.raises(ConfigError, match="with msgId"):
        drop_repeats(rows.drop("msgId"))
