"""Bodies by a schema: Avro, Protocol Buffers, wrong schemas, and bodies that do not fit them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.console.test_changes import play
from tests.unit.console.visitor import Seen

from rucola.common.topic_config import TopicConfig
from rucola.console.messages.decoding import BODY_BYTES_MAX, TEXT_CHARACTERS_MAX, BodyDecoders, DecodeError
from rucola.errors import ConfigError, MissingExtraError
from rucola.runtime import extras

fastavro = pytest.importorskip("fastavro")
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")

BILL: dict[str, Any] = {
    "type": "record",
    "name": "Bill",
    "namespace": "acme",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "payer", "type": ["null", "string"]},
        {"name": "scan", "type": "bytes"},
        {"name": "due", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}
VALUE = {"number": 9007199254740993, "payer": "Müller", "scan": b"\xff", "due": 20_000, "price": b"\x04\xd2"}


def avro(folder: Path, schema: Any = BILL) -> Path:
    path = folder / "bill.avsc"
    path.write_text(json.dumps(schema))
    return path


def datum(value: Any = VALUE) -> bytes:
    out = io.BytesIO()
    plain = {**BILL, "fields": [{**one, "type": _plain(one["type"])} for one in BILL["fields"]]}
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), value)
    return out.getvalue()


def _plain(kind: Any) -> Any:
    return kind["type"] if isinstance(kind, dict) else kind


def descriptors(folder: Path) -> Path:
    """A file as of protoc: message acme.Bill with an int64, a text, bytes and itself."""
    file = descriptor_pb2.FileDescriptorProto(name="bill.proto", package="acme", syntax="proto3")
    message = file.message_type.add(name="Bill")
    for number, (name, kind) in enumerate((("number", 3), ("payer", 9), ("scan", 12), ("before", 11)), 1):
        given = {"type_name": ".acme.Bill"} if kind == 11 else {}
        message.field.add(name=name, number=number, type=kind, label=1, **given)
    path = folder / "bill.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    return path


def test_avro(tmp_path: Path) -> None:
    decoders = BodyDecoders(f"bills={avro(tmp_path)}, others={avro(tmp_path)}+5")
    decoder = decoders.of("bills")
    assert decoder is not None and decoder.name == "acme.Bill" and decoders.of("nothing") is None
    assert json.loads(decoder.text(datum())) == {
        "number": 9007199254740993, "payer": "Müller", "scan": "/w==", "due": "2024-10-04", "price": "12.34",
    }  # fmt: skip
    skipping = decoders.of("others")
    assert skipping is not None and json.loads(skipping.text(b"\0\0\0\0\7" + datum()))["payer"] == "Müller"
    for body in (b"", datum()[:-1], datum() + b"x", b"\xff" * 40, bytes(BODY_BYTES_MAX + 1)):
        with pytest.raises(DecodeError):
            decoder.text(body)
    with pytest.raises(DecodeError, match="shorter than the 5 bytes"):
        skipping.text(b"1234")


def test_protocol_buffers(tmp_path: Path) -> None:
    decoder = BodyDecoders(f"bills={descriptors(tmp_path)}#acme.Bill").of("bills")
    assert decoder is not None and decoder.name == "acme.Bill"
    assert json.loads(decoder.text(b"\x08\x81\x80\x80\x80\x80\x80\x80\x10\x12\x02hi\x1a\x01\xff")) == {
        "number": "9007199254740993", "payer": "hi", "scan": "/w==",
    }  # fmt: skip
    for body in (b"\x12\x7fhi", b"\x12\x01\xff", b"\x0b" * 200):
        with pytest.raises(DecodeError):
            decoder.text(body)
    deep = b""
    for _ in range(500):
        deep = b"\x22" + _varint(len(deep)) + deep
    with pytest.raises(DecodeError):
        decoder.text(deep)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def test_long_texts_are_cut(tmp_path: Path) -> None:
    decoder = BodyDecoders(f"bills={avro(tmp_path)}").of("bills")
    assert decoder is not None
    text = decoder.text(datum({**VALUE, "payer": "x" * 200_000}))
    assert len(text) == TEXT_CHARACTERS_MAX + 2 and text.endswith("…")


@pytest.mark.parametrize(
    ("entry", "allowed"),
    [
        ("orders", "TOPIC=FILE"),
        ("=x.avsc", "TOPIC=FILE"),
        ("orders=/no/such/file", "a file that exists"),
        ("orders={folder}", "a file that can be read"),
        ("orders={folder}/text", "an Avro schema as JSON"),
        ("orders={folder}/number", "an Avro schema"),
        ("orders={folder}/text#acme.Bill", "a descriptor set with message acme.Bill"),
        ("orders={folder}/bill.desc#acme.Other", "a descriptor set with message acme.Other"),
    ],
)
def test_wrong_entries(tmp_path: Path, entry: str, allowed: str) -> None:
    (tmp_path / "text").write_text("no schema")
    (tmp_path / "number").write_text('"long"')
    descriptors(tmp_path)
    with pytest.raises(ConfigError, match=allowed) as raised:
        BodyDecoders(entry.format(folder=tmp_path))
    assert raised.value.key == "bodySchemas"


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "record", "name": "Empty", "fields": []},
        {"type": "record", "name": "Outer", "fields": [{"name": "a", "type": "null"}]},
        {"type": "fixed", "name": "None", "size": 0},
    ],
)
def test_items_without_bytes_are_refused(tmp_path: Path, items: Any) -> None:
    """A body of five bytes could claim thousands of millions of them, and fill the memory."""
    fields = [{"name": "many", "type": ["null", {"type": "array", "items": items}]}]
    with pytest.raises(ConfigError, match="without arrays of items that take no bytes"):
        BodyDecoders(f"bills={avro(tmp_path, {'type': 'record', 'name': 'R', 'fields': fields})}")


def test_a_named_empty_record_is_refused(tmp_path: Path) -> None:
    fields = [
        {"name": "one", "type": {"type": "record", "name": "Empty", "fields": []}},
        {"name": "many", "type": {"type": "map", "values": {"type": "array", "items": "Empty"}}},
    ]
    with pytest.raises(ConfigError, match="take no bytes"):
        BodyDecoders(f"bills={avro(tmp_path, {'type': 'record', 'name': 'R', 'fields': fields})}")


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _name: None)
    assert BodyDecoders("").of("x") is None
    with pytest.raises(MissingExtraError, match="schemas"):
        BodyDecoders("bills=x")


def test_the_page_shows_what_is_decoded(tmp_path: Path) -> None:
    async def work(it: Seen) -> None:
        await it.there.cluster.broker.topics.update(TopicConfig("bills", 1, 1, 6))
        for body in (datum(), b"junk"):
            await it.there.cluster.send("bills", body)
        await it.look()
        address = "message?topic=bills&broker=broker-a&queue=0&offset="
        page = await it.page(f"{address}0")
        assert '"payer": "Müller"' in page.text and "acme.Bill" in page.text
        assert (await it.api(f"{address}0"))["body"]["form"] == "decoded"
        assert (await it.api(f"{address}0&form=hex"))["body"]["form"] == "hex"
        page = await it.page(f"{address}1")
        assert "Not decoded as acme.Bill" in page.text and "junk" in page.text
        other = await it.api("message?topic=T_live&broker=broker-a&queue=0&offset=0&form=decoded")
        assert (other["body"]["form"], other["body"]["schema"]) == ("text", "")

    play(tmp_path, work, body_schemas=f"bills={avro(tmp_path)}")
