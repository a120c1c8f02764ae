"""Value types, and conventions of Java such as hash codes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.common import key_builder
from rucola.common.data_version import DataVersion
from rucola.common.hosts import host_bytes, host_parts, host_text, join_address, split_address
from rucola.common.java import (
    format_properties,
    has_iso_control,
    hash_map_order,
    is_blank,
    parse_properties,
    read_int32,
    read_int64,
    string_hash,
    to_int32,
)
from rucola.common.message import Message, MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.common.mq_version import CURRENT_VERSION, MQVersion, version_name
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig, TopicFilterType


class TestJava:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [(0, 0), (2**31 - 1, 2**31 - 1), (2**31, -(2**31)), (2**32 + 5, 5), (-1, -1), (-(2**31) - 1, 2**31 - 1)],
    )
    def test_int32(self, value: int, expected: int) -> None:
        assert to_int32(value) == expected

    def test_white_space_and_controls(self) -> None:
        """The characters were printed by Java 17: ``Character.isWhitespace`` and ``isISOControl``."""
        characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
        blank = "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\x20\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a"
        assert "".join(filter(is_blank, characters)) == blank + "\u2028\u2029\u205f\u3000"
        controls = [*range(0x20), *range(0x7F, 0xA0)]
        assert [ord(char) for char in characters if has_iso_control(char)] == controls
        assert is_blank("")
        assert is_blank(blank)
        assert not is_blank(blank + "x" + blank)
        assert has_iso_control("x\n")
        assert not has_iso_control("")

    def test_numbers_of_peers(self) -> None:
        assert [read_int32(value) for value in (7, "7", 7.0, -(2**31), "2147483647")] == [7, 7, 7, -(2**31), 2**31 - 1]
        assert read_int64("-9223372036854775808") == -(2**63)
        for value in (2**31, -(2**31) - 1, "2147483648", 1e300, float("inf"), float("nan"), "x", "", "9" * 5000):
            with pytest.raises(ValueError):
                read_int32(value)
        for value in (2**63, "9" * 30, 1e300, float("inf")):
            with pytest.raises(ValueError, match="64-bit"):
                read_int64(value)

    @given(st.text(st.characters(blacklist_categories=[])))
    def test_string_hash(self, text: str) -> None:
        value = 0
        for char in text:
            code = ord(char)
            units = [code] if code < 0x10000 else [0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code & 0x3FF)]
            for unit in units:
                value = to_int32(31 * value + unit)
        assert string_hash(text) == value

    def test_hash_map_grows(self) -> None:
        # 13 one-letter names need more than 16 buckets; of 32 buckets, both 'a' (97) and 'A' (65) go to bucket 1
        names = list("aAbcdefghijkl")
        assert hash_map_order(names)[:3] == ["a", "A", "b"]
        assert hash_map_order(["x", "x", "y"]) == ["x", "y"]
        assert hash_map_order([]) == []

    def test_parse_properties(self) -> None:
        text = (
            "# a comment\n! another\n\n  brokerName = broker-a  \nlisten:10911\nflag\nempty=\n"
            "path = a,\\\n    b,\\\r\n  c\nkey\\ with\\=signs : \\u4e2d\\t\\q\\\\\nlast=1\nlast=2\nspace value\nend=\\"
        )
        assert parse_properties(text) == {
            "brokerName": "broker-a  ",
            "listen": "10911",
            "flag": "",
            "empty": "",
            "path": "a,b,c",
            "key with=signs": "中\tq\\",
            "last": "2",
            "space": "value",
            "end": "",
        }

    def test_bad_escape(self) -> None:
        for text in ("a=\\u12", "a=\\u12x4", "a=\\u١٢٣٤"):
            with pytest.raises(ValueError, match="hexadecimal"):
                parse_properties(text)

    @given(st.dictionaries(st.text(max_size=8), st.text(max_size=8)))
    def test_properties_round_trip(self, properties: dict[str, str]) -> None:
        assert parse_properties(format_properties(properties)) == properties


class TestHosts:
    @pytest.mark.parametrize(
        ("address", "port", "raw", "text"),
        [
            ("192.168.1.10", 54321, "c0a8010a0000d431", "192.168.1.10:54321"),
            ("10.0.0.5", 10911, "0a00000500002a9f", "10.0.0.5:10911"),
            ("::1", 0, "00" * 15 + "0100000000", "[::1]:0"),
            ("fe80::1", 65535, "fe80" + "00" * 13 + "010000ffff", "[fe80::1]:65535"),
        ],
    )
    def test_both_directions(self, address: str, port: int, raw: str, text: str) -> None:
        host = bytes.fromhex(raw)
        assert host_bytes(address, port) == host
        assert host_parts(host) == (address, port)
        assert host_text(host) == text

    def test_oddities(self) -> None:
        assert host_bytes("fe80::1%eth0", 1) == host_bytes("fe80::1", 1)
        assert host_parts(bytes.fromhex("00000000ffffffff")) == ("0.0.0.0", -1)
        for address, port in (("localhost", 1), ("1.2.3.4", -1), ("1.2.3.4", 65536), ("", 1)):
            with pytest.raises(ValueError, match=r"port|address"):
                host_bytes(address, port)
        for size in (0, 4, 7, 9, 16, 21):
            with pytest.raises(ValueError, match="8 or 20"):
                host_text(bytes(size))

    def test_addresses(self) -> None:
        assert split_address("localhost:9876") == ("localhost", 9876)
        assert split_address("[::1]:80") == split_address("::1:80") == ("::1", 80)
        assert join_address("::1", 80) == "[::1]:80" and join_address("h", 1) == "h:1"
        for text in ("", "host", "host:", ":80", "host:x", "host:65536", "host:-1", "host:١"):
            with pytest.raises(ValueError, match="host:port"):
                split_address(text)


class TestMessage:
    def test_properties_by_name(self) -> None:
        message = Message("T", b"body", "TagA", ["k1", "k2"], flag=3, delay_level=5, properties={"x": "y"})
        assert message.properties == {"x": "y", "TAGS": "TagA", "KEYS": "k1 k2", "DELAY": "5"}
        assert (message.tags, message.keys, message.delay_level, message.uniq_key) == ("TagA", "k1 k2", 5, None)
        message.tags = None
        message.uniq_key = "U"
        message.keys = "k"
        assert message.properties == {"x": "y", "KEYS": "k", "DELAY": "5", "UNIQ_KEY": "U"}
        assert "k" in repr(message)

    def test_the_caller_keeps_its_own_properties(self) -> None:
        properties = {"x": "y"}
        Message("T", tags="A", properties=properties).delay_level = 1
        assert properties == {"x": "y"}

    @pytest.mark.parametrize(("text", "expected"), [(None, True), ("true", True), ("TRUE", True), ("false", False)])
    def test_wait_store_ok(self, text: str | None, expected: bool) -> None:
        message = Message("T", properties={} if text is None else {"WAIT": text})
        assert message.wait_store_ok is expected
        message.wait_store_ok = not expected
        assert message.wait_store_ok is not expected

    def test_a_delay_that_is_no_number_is_none(self) -> None:
        assert Message("T", properties={"DELAY": "x"}).delay_level == 0
        assert Message("T", properties={"DELAY": "-1"}).delay_level == -1

    def test_message_ext(self) -> None:
        message = MessageExt(
            "T",
            b"",
            flag=0,
            properties={},
            queue_id=1,
            queue_offset=2,
            physical_offset=176,
            store_size=3,
            body_crc=0,
            sys_flag=0,
            born_timestamp_ms=4,
            born_host=host_bytes("1.2.3.4", 5),
            store_timestamp_ms=6,
            store_host=host_bytes("10.0.0.5", 10911),
            reconsume_times=7,
            prepared_transaction_offset=8,
        )
        assert message.msg_id == message.offset_msg_id == "0A00000500002A9F00000000000000B0"
        message.uniq_key = "U"
        assert message.msg_id == "U"
        assert "1.2.3.4:5" in repr(message)

    def test_queues_sort_by_topic_broker_and_number(self) -> None:
        queues = [
            MessageQueue("b", "x", 0),
            MessageQueue("a", "y", 10),
            MessageQueue("a", "y", 9),
            MessageQueue("a", "x", 11),
        ]
        assert sorted(queues) == [queues[3], queues[2], queues[1], queues[0]]
        assert len({*queues, MessageQueue("b", "x", 0)}) == 4


class TestConfiguration:
    def test_topic_config(self) -> None:
        config = TopicConfig("T", attributes={"a": "b"}, topic_filter_type=TopicFilterType.MULTI_TAG)
        data = config.to_dict()
        assert list(data) == sorted(data)
        assert TopicConfig.from_dict(data) == config
        assert TopicConfig.from_dict({"topicName": "T", "unknown": 1}) == TopicConfig("T", 16, 16, 6)
        assert TopicConfig.from_dict({"topicName": None}).topic_name == ""
        for changed in ({"perm": "6"}, {"perm": 6.0}, {"order": 0}, {"attributes": None}, {"topicName": None}):
            lenient = {key: value for key, value in (data | changed).items() if key != "topicSysFlag"}
            assert TopicConfig.from_dict(data | changed) == TopicConfig.from_dict(lenient)
        for wrong in ({"perm": 1 << 31}, {"topicFilterType": "NO_TAG"}, {"topicFilterType": []}):
            with pytest.raises(ValueError):
                TopicConfig.from_dict(data | wrong)

    def test_subscription_group(self) -> None:
        config = SubscriptionGroupConfig("g", consume_enable=False, subscription_data_set=[{"topic": "T"}])
        data = config.to_dict()
        assert list(data) == sorted(data)
        assert SubscriptionGroupConfig.from_dict(data) == config
        assert SubscriptionGroupConfig.from_dict({"groupName": "g"}) == SubscriptionGroupConfig("g")
        assert SubscriptionGroupConfig.from_dict({"groupName": None}).group_name == ""
        assert "subscriptionDataSet" not in SubscriptionGroupConfig("g").to_dict()

    def test_data_version(self) -> None:
        version = DataVersion(0, 5, 1).next(9)
        assert version == DataVersion(0, 9, 2)
        assert DataVersion.from_dict(version.to_dict()) == version
        assert DataVersion.from_dict({"counter": 3, "timestamp": 4}) == DataVersion(0, 4, 3)


def test_versions() -> None:
    assert CURRENT_VERSION == MQVersion.V5_3_3 == 479
    assert version_name(479) == "V5_3_3"
    assert version_name(480) == "V5_3_3+"
    assert version_name(0) == "0"


def test_key_builder() -> None:
    assert key_builder.retry_topic("g") == "%RETRY%g" and key_builder.is_retry_topic("%RETRY%g")
    assert key_builder.dlq_topic("g") == "%DLQ%g" and key_builder.is_dlq_topic("%DLQ%g")
    assert not key_builder.is_retry_topic("%DLQ%g") and not key_builder.is_dlq_topic("g")
    assert [key_builder.group_of(topic) for topic in ("%RETRY%g", "%DLQ%g", "T")] == ["g", "g", "T"]
    assert key_builder.is_light_queue("%LMQ%x") and not key_builder.is_light_queue("x")
    assert key_builder.topic_at_group("T", "g") == "T@g"
