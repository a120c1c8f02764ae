"""Bodies become typed columns; rows that cannot be decoded go to a separate table, to be decoded again later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from pyspark.sql.types import StructType

from rucola.common.message import Message
from rucola.errors import ConfigError
from rucola.spark.decoding import decode, poison_rows, sample_schema, without_poison
from rucola.spark.repeats import drop_repeats

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .conftest import BrokerProcess

pytestmark = pytest.mark.spark

DDL = "carrier string, delay int"
BODIES = [b'{"carrier":"UA","delay":4}', b'{"carrier":"AA"}', b'{"delay":"late"}', b"{", b"\xff", b"[1]", b" "]
GOOD = 2


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
    assert query.awaitTermination(60)
    counted = query.recentProgress[0].observedMetrics["decoding"].asDict()
    assert counted["poison"] / counted["rows"] == (len(BODIES) - GOOD) / len(BODIES)
    good = spark.read.parquet(str(tmp_path / "good")).orderBy("keys").collect()
    assert [tuple(row) for row in good] == [("0", "UA", 4), ("1", "AA", None)]
    poison = spark.read.format("rocketmq").options(**where, topic="poison").load()
    again = decode(poison, "json", "carrier string, delay string", into="flight").orderBy("keys")
    found = again.selectExpr("keys", "properties", "flight.delay", "_error").collect()
    told = {row["keys"]: (json.loads(row.properties)["POISON_ERROR"], row.delay, row._error) for row in found}
    assert told == {
        "2": ("not JSON that fits the schema", "late", None),
        "3": ("not JSON that fits the schema", None, "not JSON that fits the schema"),
        "4": ("not UTF-8", None, "not UTF-8"),
        "5": ("not JSON that fits the schema", None, "not JSON that fits the schema"),
        "6": ("not JSON that fits the schema", None, "not JSON that fits the schema"),
    }
    assert {json.loads(row.properties)["POISON_TOPIC"] for row in found} == {"typed"}
    assert sample_schema(spark, **where, topic="typed").simpleString() == "struct<carrier:string,delay:string>"
    with pytest.raises(ConfigError, match="JSON objects"):
        sample_schema(spark, **where, topic="poison", subExpression="none")


def test_json_is_parsed_once_whatever_is_filtered(spark: SparkSession) -> None:
    rows = spark.range(1).selectExpr("cast(cast(id AS string) AS binary) AS body")
    good = without_poison(decode(rows, "json", DDL)).where("delay > 3")
    assert good._jdf.queryExecution().executedPlan().toString().count("from_json(") == 1  # type: ignore[operator]


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
    rows = spark.createDataFrame([("{}", "UA")], "body string, carrier string")
    for given, text in (
        ({"format": "xml"}, "json or avro"),
        ({"schema": DDL}, "already have a column carrier"),
        ({"schema": "a nothing"}, "option schema"),
        ({"schema": None}, "sample_schema"),
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
