"""The plain modules of the formats: records as objects, properties, ids, names, checkpoint, tables."""

from __future__ import annotations

import pickle
import re
import sys
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.formats.samples import (
    STORE_HOST,
    STORE_TIMESTAMP_MS,
    WORKED_RECORD,
    message,
    property_maps,
)

from rucola.common.data_version import DataVersion
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.errors import ConfigError, FormatError
from rucola.formats import config_json, tables
from rucola.formats.checkpoint import CHECKPOINT_BYTES, StoreCheckpoint
from rucola.formats.checksum import CHECKSUM_MASK, crc32
from rucola.formats.compression import BODY_BYTES_MAX, CompressionType, check_compression, compress, decompress
from rucola.formats.layout import Field, Layout
from rucola.formats.message import decode_message, decode_messages, encode_message
from rucola.formats.message_id import offset_message_id, parse_offset_message_id
from rucola.formats.properties import decode_properties, encode_properties, java_order
from rucola.formats.segment_name import segment_name, segment_start


class TestMessage:
    def test_worked_example(self) -> None:
        assert encode_message(message(), 0, 0, STORE_TIMESTAMP_MS, STORE_HOST) == WORKED_RECORD
        got = decode_message(WORKED_RECORD)
        assert (got.topic, got.queue_id, got.body, got.tags, got.keys) == (
            "TopicTest",
            3,
            b"Hello RocketMQ",
            "TagA",
            "KeyX",
        )
        assert got.msg_id == got.uniq_key == "7F0000010A0018B4AAC2112233440001"
        assert got.offset_msg_id == "0A00000500002A9F0000000000000000"
        assert got.store_size == 176

    def test_own_store_host_and_offsets(self) -> None:
        one = message(store_host=bytes(19) + b"\x01", queue_id=0)
        got = decode_message(encode_message(one, 1 << 40, 1 << 41, 5, STORE_HOST, record_crc=True))
        assert (got.physical_offset, got.queue_offset, got.store_timestamp_ms) == (1 << 40, 1 << 41, 5)
        assert got.store_host == one.store_host
        assert got.properties["__CRC32#"].isdigit()

    def test_many_and_none(self) -> None:
        assert decode_messages(b"") == []
        records = WORKED_RECORD * 130
        assert [got.body for got in decode_messages(records)] == [b"Hello RocketMQ"] * 130
        with pytest.raises(FormatError, match="2 records"):
            decode_message(WORKED_RECORD * 2)

    @pytest.mark.parametrize("tail", [b"\0", bytes(8), bytes.fromhex("00000008cbd43194"), WORKED_RECORD[:-1]])
    def test_anything_else_behind_is_an_error_with_its_position(self, tail: bytes) -> None:
        with pytest.raises(FormatError) as caught:
            decode_messages(WORKED_RECORD + tail)
        assert caught.value.position == 176
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    def test_a_wrong_checksum_is_an_error(self) -> None:
        record = bytearray(WORKED_RECORD)
        record[90] ^= 1
        with pytest.raises(FormatError, match="damaged"):
            decode_message(record)

    @pytest.mark.parametrize("sys_flag", [0x1, 0x301])
    def test_compressed_body(self, sys_flag: int) -> None:
        record = encode_message(message(body=compress(b"x" * 5000)[0], sys_flag=sys_flag), 0, 0, 0, STORE_HOST)
        assert decode_message(record).body == b"x" * 5000
        assert decode_message(record, unpack=False).body == compress(b"x" * 5000)[0]


class TestCompression:
    @pytest.mark.parametrize("kind", CompressionType)
    @pytest.mark.parametrize("size", [1, 100, 5_000_000])
    def test_round_trip(self, kind: CompressionType, size: int) -> None:
        need(kind)
        body = bytes(n * n % 251 for n in range(1000)) * (size // 1000) or bytes(size)
        packed, bits = compress(body, 5, kind)
        assert bits == {"ZLIB": 0x301, "LZ4": 0x101, "ZSTD": 0x201}[kind.value]
        assert decompress(packed, bits) == body

    @pytest.mark.parametrize("kind", CompressionType)
    def test_damaged(self, kind: CompressionType) -> None:
        """A compressed frame that is cut at any position is refused, and so are bytes that are no such frame; a part of
        the body is never returned.
        """
        need(kind)
        packed, bits = compress(b"x" * 100 + bytes(range(100)), 5, kind)
        for body in (b"", b"nothing of that kind", *(packed[:end] for end in range(len(packed)))):
            with pytest.raises(FormatError):
                decompress(body, bits)

    def test_zlib_without_a_type_is_of_an_older_client(self) -> None:
        assert decompress(compress(b"x" * 100)[0], 1) == b"x" * 100

    def test_a_zstd_frame_that_java_streams_does_not_say_how_long_it_is(self) -> None:
        zstandard = pytest.importorskip("zstandard")
        for checksum in (False, True):
            packer = zstandard.ZstdCompressor(level=5, write_checksum=checksum).compressobj()
            body = bytes(n * n % 251 for n in range(300_000))
            packed = packer.compress(body) + packer.flush()
            assert zstandard.get_frame_parameters(packed).content_size == zstandard.CONTENTSIZE_UNKNOWN
            assert decompress(packed, 0x201) == body
            with pytest.raises(FormatError, match="a truncated one"):
                decompress(packed[:-1], 0x201)

    def test_java_reads_no_linked_blocks_of_lz4(self) -> None:
        need(CompressionType.LZ4)
        assert compress(b"x" * 100_000, 5, CompressionType.LZ4)[0][4] & 0x20  # the flag for independent blocks

    def test_an_unknown_type(self) -> None:
        with pytest.raises(FormatError, match="type 7"):
            decompress(b"", 0x701)

    @pytest.mark.parametrize("kind", [CompressionType.LZ4, CompressionType.ZSTD])
    def test_without_the_package(self, kind: CompressionType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, {"LZ4": "lz4.frame", "ZSTD": "zstandard"}[kind.value], None)
        bits = {"LZ4": 0x101, "ZSTD": 0x201}[kind.value]
        with pytest.raises(
            FormatError,
            match=rf"pip install 'rucola-mq\[compression\]'.*\), got {kind.value}",
        ):
            decompress(b"x", bits)
        with pytest.raises(ConfigError, match=rf"compressType.*{kind.value} after pip install"):
            check_compression(kind)
        check_compression(CompressionType.ZLIB)

    @pytest.mark.parametrize("kind", CompressionType)
    def test_a_small_body_cannot_fill_the_memory(self, kind: CompressionType, monkeypatch: pytest.MonkeyPatch) -> None:
        need(kind)
        monkeypatch.setattr("rucola.formats.compression.BODY_BYTES_MAX", 1 << 20)
        assert len(decompress(*compress(bytes(1 << 20), 5, kind))) == 1 << 20
        for size in ((1 << 20) + 1, 8 << 20):
            with pytest.raises(FormatError, match="more than"):
                decompress(*compress(bytes(size), 5, kind))

    def test_the_limit(self) -> None:
        assert BODY_BYTES_MAX == 64 << 20


def need(kind: CompressionType) -> None:
    """Skips the test if the package is not installed."""
    if kind is not CompressionType.ZLIB:
        pytest.importorskip({"LZ4": "lz4.frame", "ZSTD": "zstandard"}[kind.value])


class TestProperties:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (b"", {}),
            (b"a\x01b", {"a": "b"}),
            (b"a\x01b\x02", {"a": "b"}),
            (b"a\x01\x02b\x01x\x02", {"b": "x"}),
            (b"\x01novalue\x02b\x01y\x02", {"b": "y"}),
            (b"plain\x02b\x01z\x02", {"b": "z"}),
            (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
            (b"a\x01first\x02a\x01second\x02", {"a": "second"}),
            (b"\x02\x02b\x01w\x02", {"b": "w"}),
            (b"a\x01\xff\x02", {"a": "\ufffd"}),
        ],
    )
    def test_decode(self, text: bytes, expected: dict[str, str]) -> None:
        for data in (text, bytearray(text), memoryview(text)):
            assert decode_properties(data) == expected

    @given(property_maps)
    def test_round_trip(self, properties: dict[str, str]) -> None:
        assert decode_properties(encode_properties(properties)) == properties

    @pytest.mark.parametrize("properties", [{"": "x"}, {"a\x01": "x"}, {"a": "x\x02"}, {"a\x02b": "\x01"}])
    def test_properties_that_would_not_be_read_again_are_refused(self, properties: dict[str, str]) -> None:
        with pytest.raises(ValueError, match="property"):
            encode_properties(properties)

    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            ("TAGS KEYS UNIQ_KEY", "KEYS UNIQ_KEY TAGS"),
            ("TAGS KEYS UNIQ_KEY WAIT", "KEYS UNIQ_KEY WAIT TAGS"),
            ("WAIT TAGS", "WAIT TAGS"),
            ("REAL_TOPIC UNIQ_KEY TAGS TIMER_OUT_MS REAL_QID", "REAL_TOPIC UNIQ_KEY TAGS TIMER_OUT_MS REAL_QID"),
        ],
    )
    def test_java_order(self, names: str, expected: str) -> None:
        pairs = [(name, name.lower()) for name in names.split()]
        assert list(java_order(pairs).items()) == [(name, name.lower()) for name in expected.split()]

    def test_java_order_of_a_sent_message(self) -> None:
        names = ["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "MSG_REGION", "TRACE_ON", "CLUSTER"]
        order = " ".join(java_order([(name, "x") for name in names], 128))
        assert order == "MSG_REGION UNIQ_KEY CLUSTER TAGS KEYS WAIT TRACE_ON"


class TestIdsAndNames:
    def test_offset_message_id(self) -> None:
        text = offset_message_id(STORE_HOST, 176)
        assert text == "0A00000500002A9F00000000000000B0"
        assert parse_offset_message_id(text.lower()) == (STORE_HOST, 176)
        host = bytes(15) + b"\x01" + (10911).to_bytes(4, "big")
        assert len(offset_message_id(host, -1)) == 56
        assert parse_offset_message_id(offset_message_id(host, -1)) == (host, -1)

    @pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "0" * 31 + "G", " " + "0" * 31, "é" * 32])
    def test_no_offset_message_id(self, text: str) -> None:
        with pytest.raises(ValueError, match="offset message id"):
            parse_offset_message_id(text)

    def test_segment_names(self) -> None:
        assert segment_name(1 << 30) == "00000000001073741824"
        assert segment_start("00000000001073741824") == 1 << 30
        assert segment_start(segment_name(2**63 - 1)) == 2**63 - 1
        for name in ("", "0", "0" * 21, "0" * 19 + "x", "-" + "0" * 19, "٠" * 20, "9" * 20, "lock"):
            assert segment_start(name) is None
        for start in (-1, 2**63):
            with pytest.raises(ValueError, match="start"):
                segment_name(start)

    def test_checksum(self) -> None:
        assert crc32(b"123456789") == 0xCBF43926 == zlib.crc32(b"123456789")
        assert crc32(b"123456789") & CHECKSUM_MASK == 1274296614


class TestLayout:
    def test_fields(self) -> None:
        layout = Layout("test", 14, Field("a", "i", ""), Field("b", "q", ""), Field("c", "h", ""))
        assert [layout.position(name) for name in "abc"] == [0, 4, 12]
        assert layout.unpack(b"?" + layout.pack(-1, 2**40, 7), 1) == (-1, 2**40, 7)

    def test_a_wrong_size_is_found_at_once(self) -> None:
        with pytest.raises(AssertionError, match="8 bytes, 9"):
            Layout("test", 9, Field("a", "q", ""))


class TestCheckpoint:
    def test_round_trip(self) -> None:
        checkpoint = StoreCheckpoint(1, 2, 3, 4, 5)
        data = checkpoint.encode()
        assert len(data) == CHECKPOINT_BYTES == 4096
        assert data[:40] == b"".join(value.to_bytes(8, "big") for value in range(1, 6))
        assert StoreCheckpoint.decode(data) == checkpoint
        assert StoreCheckpoint.decode(b"") == StoreCheckpoint()
        assert StoreCheckpoint.decode(data[:15]) == StoreCheckpoint(1, 0)

    @pytest.mark.parametrize(("physic", "logics", "expected"), [(0, 5000, 0), (9000, 8000, 5000), (2999, 9000, 0)])
    def test_min_timestamp(self, physic: int, logics: int, expected: int) -> None:
        assert StoreCheckpoint(physic, logics, 1).min_timestamp_ms == expected


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=6).filter(lambda key: key != "$ref"), inner, max_size=4),
        st.dictionaries(st.integers(0, 99), inner, max_size=4),
    ),
    max_leaves=12,
)


def text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): text_keys(member) for key, member in value.items()}
    return [text_keys(member) for member in value] if isinstance(value, list) else value


class TestFastjson:
    def test_shape(self) -> None:
        value = {"a": {"b": {}, "c": [], "d": [1, "x"], "e": (1, 2)}, "f": {0: 1, 3: {"g": None}}, "h": True}
        assert config_json.dumps_pretty(value).decode() == (
            '{\n\t"a":{\n\t\t"b":{},\n\t\t"c":[],\n\t\t"d":[\n\t\t\t1,\n\t\t\t"x"\n\t\t],\n\t\t"e":[1,2]\n\t},'
            '\n\t"f":{0:1,3:{\n\t\t\t"g":null\n\t\t}\n\t},\n\t"h":true\n}'
        )

    def test_escapes(self) -> None:
        text = config_json.dumps_pretty({'q"': "\\\b\f\n\r\t\x00\x1f/é\u2028"})
        assert text.decode() == '{\n\t"q\\"":"\\\\\\b\\f\\n\\r\\t\\u0000\\u001F/é\\u2028"\n}'

    @given(st.dictionaries(st.text(max_size=6).filter(lambda key: key != "$ref"), json_values))
    def test_round_trip(self, value: dict[str, Any]) -> None:
        assert config_json.loads_object(config_json.dumps_pretty(value), "test") == text_keys(value)

    @pytest.mark.parametrize("text", [b"", b"{", b"[]", b"1", b'{"a":1}x', b"\xff", b"{a:1}", b'{"a":\x01}'])
    def test_no_object(self, text: bytes) -> None:
        with pytest.raises(FormatError, match=r"test\.json"):
            config_json.loads_object(text, "test.json")

    @pytest.mark.parametrize("levels", [32, 300, 900, 1020, 100_000])
    def test_s56_a_table_that_is_too_deep(self, levels: int) -> None:
        text = b'{"a":{"$ref":"$.b"},"b":' + b'{"c":' * levels + b"1" + b"}" * levels + b"}"
        with pytest.raises(FormatError):
            config_json.loads_object(text, "test")
        shallow = b'{"a":{"$ref":"$.b"},"b":' + b'{"c":' * 31 + b"1" + b"}" * 31 + b"}"
        value = config_json.loads_object(shallow, "test")
        assert value["a"] == value["b"]

    def test_keys_within_strings_stay(self) -> None:
        assert config_json.loads_object(b'{"{1:2,3:4}":"{5 : 6}", 7 : 8}', "test") == {"{1:2,3:4}": "{5 : 6}", "7": 8}

        assert config_json.loads_object(b'{"a,1:{2:":{3:4}}', "test") == {"a,1:{2:": {"3": 4}}

    @pytest.mark.parametrize("text", [b'{"a":{"b":"1,2:3\\" 4 :"}}', b'{"a":{1:2,-3:4\n\t},"b":"1 : 2"}'])
    def test_large_tables_are_read_without_a_look_at_each_string(
        self, text: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        value = config_json.loads_object(text, "test")
        monkeypatch.setattr(config_json, "_STRING_OR_KEY", None)
        assert config_json.loads_object(text, "test") == value
        monkeypatch.undo()
        monkeypatch.setattr(config_json, "_KEY", re.compile(b"(?!)()"))
        assert config_json.loads_object(text, "test") == value

    def test_references(self) -> None:
        text = b'{"t":{"%RETRY%a":{"x":[{"y":1}]},"b":{"$ref":"$.t.%RETRY%a.x[0]"}},"c":[{"$ref":"$.t.%RETRY%a"}]}'
        value = config_json.loads_object(text, "test")
        assert value["t"]["b"] == {"y": 1}
        assert value["c"] == [{"x": [{"y": 1}]}]
        for path in ("$.nowhere", "$.a.b.c", "..", "$.a", "$"):
            with pytest.raises(FormatError, match="reference"):
                config_json.loads_object(b'{"a":{"$ref":"%b"}}' % path.encode(), "test")

    def test_other_types_are_refused(self) -> None:
        with pytest.raises(TypeError, match="float"):
            config_json.dumps_pretty({"a": 1.5})


class TestTables:
    def test_empty_tables(self) -> None:
        version = DataVersion()
        assert tables.decode_topics(b"{}") == (version, {})
        assert tables.decode_subscription_groups(b'{"forbiddenTable":null}') == (version, {}, {})
        assert tables.decode_consumer_offsets(b"".join(tables.consumer_offset_pieces(version, {}))) == (version, {})
        assert tables.decode_delay_offsets(b'{"dataVersion":null}') == (version, {})

    def test_round_trips(self) -> None:
        version = DataVersion(1, 2, 3)
        topics = {"T": TopicConfig("T", 3, 4, 2, order=True, attributes={"queue.type": "BatchCQ"})}
        assert tables.decode_topics(b"".join(tables.topic_pieces(version, topics))) == (version, topics)
        groups = {"g": SubscriptionGroupConfig("g", retry_queue_nums=2, subscription_data_set=[{"topic": "T"}])}
        forbidden = {"g": {"T": 1}}
        text = b"".join(tables.subscription_group_pieces(version, groups, forbidden))
        assert tables.decode_subscription_groups(text) == (version, groups, forbidden)
        offsets = {"T@g": {0: 5, 1: 2**62}, "U@g": {}}
        text = b"".join(tables.consumer_offset_pieces(version, offsets))
        assert tables.decode_consumer_offsets(text) == (version, offsets)

    @pytest.mark.parametrize(
        ("decode", "text"),
        [
            (tables.decode_topics, b'{"topicConfigTable":{"T":{"perm":"x"}}}'),
            (tables.decode_topics, b'{"topicConfigTable":{"T":5}}'),
            (tables.decode_topics, b'{"topicConfigTable":[1]}'),
            (tables.decode_topics, b'{"topicConfigTable":{"T":{"topicFilterType":"NONE"}}}'),
            (tables.decode_topics, b'{"dataVersion":{"counter":"x"}}'),
            (tables.decode_subscription_groups, b'{"forbiddenTable":{"g":{"T":[]}}}'),
            (tables.decode_consumer_offsets, b'{"offsetTable":{"T@g":{"x":1}}}'),
            (tables.decode_delay_offsets, b'{"offsetTable":{"1":null}}'),
            (tables.decode_delay_offsets, b'{"offsetTable":[1]}'),
        ],
    )
    def test_bad_entries_are_named(self, decode: Any, text: bytes) -> None:
        with pytest.raises(FormatError, match="expected"):
            decode(text)
