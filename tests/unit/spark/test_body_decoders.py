"""Decoders of bodies in Avro and Protocol Buffers: types and rows."""

from __future__ import annotations

import datetime
import io
import json
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type

from rucola.errors import ConfigError
from rucola.spark.body_decoders import AvroDecoder, ProtobufDecoder

fastavro = pytest.importorskip("fastavro")
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "int"]},
        {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "from", "type": {"type": "record", "name": "Port", "fields": [{"name": "code", "type": "string"}]}},
        {"name": "to", "type": "Port"},
        {"name": "stops", "type": {"type": "array", "items": "Port"}},
        {"name": "notes", "type": {"type": "map", "values": "long"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}
ROW = {
    "carrier": "UA",
    "delay": None,
    "fare": Decimal("12.34"),
    "day": datetime.date(2013, 1, 1),
    "at": datetime.datetime(2013, 1, 1, 5, 17, tzinfo=datetime.UTC),
    "from": {"code": "EWR"},
    "to": {"code": "IAH"},
    "stops": [{"code": "ORD"}],
    "notes": {"gate": 3},
    "kind": "B",
}


def avro(row: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), row)
    return stream.getvalue()


def descriptors() -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto3")
    port = file.message_type.add(name="Port")
    port.field.add(name="code", number=1, type=9, label=1)
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="A", number=0)
    kind.value.add(name="B", number=1)
    flight = file.message_type.add(name="Flight")
    flight.field.add(name="carrier", number=1, type=9, label=1)
    flight.field.add(name="delay", number=2, type=5, label=1, proto3_optional=True, oneof_index=0)
    flight.oneof_decl.add(name="_delay")
    flight.field.add(name="big", number=3, type=4, label=1)
    flight.field.add(name="raw", number=4, type=12, label=1)
    flight.field.add(name="stops", number=5, type=11, type_name=".p.Port", label=3)
    flight.field.add(name="kind", number=6, type=14, type_name=".p.Kind", label=1)
    entry = flight.nested_type.add(name="NotesEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=3, label=1)
    flight.field.add(name="notes", number=7, type=11, type_name=".p.Flight.NotesEntry", label=3)
    node = file.message_type.add(name="Node")
    node.field.add(name="next", number=1, type=11, type_name=".p.Node", label=1)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def test_avro_types_and_rows() -> None:
    decoder = pickle.loads(pickle.dumps(AvroDecoder(json.dumps(AVRO), 0)))
    schema = decoder.schema()
    assert schema.simpleString() == (
        "struct<carrier:string,delay:int,fare:decimal(9,2),day:date,at:timestamp,from:struct<code:string>,"
        "to:struct<code:string>,stops:array<struct<code:string>>,notes:map<string,bigint>,kind:string>"
    )
    found = pa.array([decoder.row(avro(ROW))], to_arrow_type(schema, timezone="UTC")).to_pylist()
    assert found == [{**ROW, "notes": [("gate", 3)]}]


def test_avro_that_is_none() -> None:
    decoder = AvroDecoder(json.dumps(AVRO), 0)
    content = avro(ROW)
    assert decoder.row(None) == {"_error": "no body"}
    assert all(set(decoder.row(content[:end])) == {"_error"} for end in range(len(content)))
    assert decoder.row(content + b"x")["_error"] == "ValueError: 1 bytes are left after the datum"
    framed = AvroDecoder(json.dumps(AVRO), 5)
    assert framed.row(b"\0\0\0\0\1" + content)["carrier"] == "UA"
    assert "shorter" in framed.row(b"\0")["_error"]


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        '"string"',
        '{"type":"record","name":"R","fields":[{"name":"a","type":["int","string"]}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":["null","R"]}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"nothing"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"int","logicalType":"time-millis"}}]}',
    ],
)
def test_avro_schemas_that_make_no_columns(schema: str) -> None:
    with pytest.raises(ConfigError):
        AvroDecoder(schema, 0).schema()


def test_protobuf_types_and_rows() -> None:
    decoder = pickle.loads(pickle.dumps(ProtobufDecoder(descriptors(), "p.Flight", 0)))
    schema = decoder.schema()
    assert schema.simpleString() == (
        "struct<carrier:string,delay:int,big:decimal(20,0),raw:binary,stops:array<struct<code:string>>,kind:string,"
        "notes:map<string,bigint>>"
    )
    full = decoder._class(carrier="UA", delay=0, big=(1 << 64) - 1, raw=b"\xff", kind=1, notes={"gate": 3})
    full.stops.add(code="ORD")
    contents = [full.SerializeToString(), b"", b"\xff"]
    rows = [decoder.row(content) for content in contents]
    assert set(rows.pop()) == {"_error"}
    found = pa.array(rows, to_arrow_type(schema, timezone="UTC")).to_pylist()
    assert found[0] == {
        "carrier": "UA",
        "delay": 0,
        "big": Decimal((1 << 64) - 1),
        "raw": b"\xff",
        "stops": [{"code": "ORD"}],
        "kind": "B",
        "notes": [("gate", 3)],
    }
    assert (found[1]["carrier"], found[1]["delay"], found[1]["kind"]) == ("", None, "A")


@pytest.mark.parametrize(("content", "message"), [(b"\xff", "p.Flight"), (None, "p.Missing"), (None, "p.Node")])
def test_protobuf_messages_that_make_no_columns(content: bytes | None, message: str) -> None:
    with pytest.raises(ConfigError):
        ProtobufDecoder(content or descriptors(), message, 0).schema()
