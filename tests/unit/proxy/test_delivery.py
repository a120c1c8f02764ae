"""Stored messages as consumers receive them."""

from __future__ import annotations

import hashlib
import zlib

import pytest

from rucola.common.hosts import host_bytes
from rucola.common.message import MessageExt
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import UnreadableBodyError
from rucola.formats.compression import CompressionType, compress
from rucola.proxy import messages
from rucola.proxy.delivery import delivered_body, delivered_message
from rucola.proxy.message_kind import kind_of
from rucola.proxy.property_keys import RESERVED_KEYS

BORN, STORED = host_bytes("10.0.0.7", 1234), host_bytes("fd00::1", 10911)


def message_ext(body: bytes = b"body", **changes: object) -> MessageExt:
    fields: dict[str, object] = {
        "topic": "t",
        "flag": 0,
        "properties": {"UNIQ_KEY": "id"},
        "queue_id": 3,
        "queue_offset": 11,
        "physical_offset": 4096,
        "store_size": 200,
        "body_crc": 0,
        "sys_flag": 0,
        "born_timestamp_ms": 1_700_000_000_123,
        "born_host": BORN,
        "store_timestamp_ms": 1_700_000_000_456,
        "store_host": STORED,
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
    }
    topic = str(changes.pop("topic", fields.pop("topic")))
    return MessageExt(topic, body, **(fields | changes))  # type: ignore[arg-type]


def delivered(message: MessageExt, subscribed: str | None = None) -> messages.Message:
    return delivered_message(message, delivered_body(message), subscribed)


def with_properties(**properties: str) -> messages.SystemProperties:
    return delivered(message_ext(properties={"UNIQ_KEY": "id"} | properties)).system_properties


def test_every_field():
    properties = {
        "UNIQ_KEY": "id",
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "group",
        "TRACE_CONTEXT": "00-1",
        "TIMER_DELIVER_MS": "1700000005007",
        "_SYS_MSG_PRIORITY_": "4",
        "__LITE_TOPIC": "lite",
        "DLQ_ORIGIN_TOPIC": "before",
        "DLQ_ORIGIN_MESSAGE_ID": "id-before",
        "POP_CK": "7 1700000000000 30000 3 0 broker-a 3 11",
        "__BORNHOST": "client-7",
        "__RUCOLA_SENDER": "alice",
        "colour": "blue",
    }
    assert delivered(message_ext(topic="ns%t", properties=properties, reconsume_times=2)) == messages.Message(
        topic=messages.Resource(resource_namespace="ns", name="t"),
        user_properties={"colour": "blue", "__SHARDINGKEY": "group", "TRACE_CONTEXT": "00-1"},
        body=b"body",
        system_properties=messages.SystemProperties(
            tag="TagA",
            keys=["k1", "k2"],
            message_id="id",
            body_digest=messages.Digest(type=messages.MD5, checksum="841A2D689AD86BD1611447453C22C6FC"),
            body_encoding=messages.IDENTITY,
            message_type=messages.DELAY,
            born_timestamp={"seconds": 1_700_000_000, "nanos": 123_000_000},
            born_host="client-7",
            store_timestamp={"seconds": 1_700_000_000, "nanos": 456_000_000},
            store_host="[fd00::1]:10911",
            delivery_timestamp={"seconds": 1_700_000_005, "nanos": 7_000_000},
            receipt_handle="7 1700000000000 30000 3 0 broker-a 3 11 4096",
            queue_id=3,
            queue_offset=11,
            delivery_attempt=3,
            message_group="group",
            trace_context="00-1",
            dead_letter_queue={"topic": "before", "message_id": "id-before"},
            lite_topic="lite",
            priority=4,
        ),
    )


def test_what_is_absent_stays_absent():
    message = delivered(message_ext(properties={}))
    system = message.system_properties
    assert not message.user_properties
    assert not system.keys
    for field in (
        *("tag", "delivery_timestamp", "receipt_handle", "message_group", "trace_context", "dead_letter_queue"),
        *("lite_topic", "priority", "invisible_duration", "orphaned_transaction_recovery_duration"),
    ):
        assert not system.HasField(field), field
    assert system.born_host == "10.0.0.7"
    assert system.delivery_attempt == 1
    assert system.message_type == messages.NORMAL
    assert system.message_id == (STORED + (4096).to_bytes(8, "big")).hex().upper()


def test_reserved_keys_are_left_out():
    properties = dict.fromkeys([*RESERVED_KEYS, "__RUCOLA_SENDER"], "1") | {"WAITS": "own"}
    assert dict(delivered(message_ext(properties=properties)).user_properties) == {"WAITS": "own"}


@pytest.mark.parametrize(
    ("topic", "properties", "subscribed", "shown"),
    [
        ("t", {}, None, "t"),
        ("t", {"RETRY_TOPIC": "other"}, "subscribed", "t"),
        ("%RETRY%g_t", {}, "t", "t"),
        ("%RETRY%g+t", {}, "t", "t"),
        ("%RETRY%g", {"RETRY_TOPIC": "t"}, None, "t"),
        ("%RETRY%g", {"RETRY_TOPIC": "before"}, "t", "t"),
        ("%RETRY%g", {}, None, "%RETRY%g"),
        ("%DLQ%g", {"RETRY_TOPIC": "t"}, None, "%DLQ%g"),
    ],
)
def test_retried_messages_have_the_topic_of_the_consumer(topic, properties, subscribed, shown):
    message = delivered(message_ext(topic=topic, properties=properties), subscribed)
    assert message.topic == messages.Resource(name=shown)


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({}, "NORMAL"),
        ({"TRAN_MSG": "true", "DELAY": "1", "__SHARDINGKEY": "g"}, "TRANSACTION"),
        ({"TRAN_MSG": "false"}, "NORMAL"),
        ({"TRAN_MSG": "TRUE"}, "NORMAL"),
        ({"DELAY": "1", "__SHARDINGKEY": "g"}, "DELAY"),
        ({"TIMER_DELIVER_MS": "1"}, "DELAY"),
        ({"TIMER_DELAY_SEC": "1"}, "DELAY"),
        ({"TIMER_DELAY_MS": "1"}, "DELAY"),
        ({"TIMER_OUT_MS": "1"}, "NORMAL"),
        ({"__SHARDINGKEY": "g", "_SYS_MSG_PRIORITY_": "1"}, "FIFO"),
        ({"_SYS_MSG_PRIORITY_": "1", "__LITE_TOPIC": "l"}, "PRIORITY"),
        ({"__LITE_TOPIC": "l"}, "LITE"),
    ],
)
def test_the_type_of_a_message(properties, kind):
    assert kind_of(properties).number == getattr(messages, kind)
    assert with_properties(**properties).message_type == getattr(messages, kind)


@pytest.mark.parametrize(("keys", "split"), [("a", ["a"]), (" a  b ", ["a", "b"]), (" ", [])])
def test_keys(keys, split):
    assert list(with_properties(KEYS=keys).keys) == split


@pytest.mark.parametrize(("host", "shown"), [(BORN, "10.0.0.7"), (STORED, "fd00::1")])
def test_a_blank_born_host_is_that_of_the_record(host, shown):
    message = message_ext(properties={"__BORNHOST": " "}, born_host=host)
    assert delivered(message).system_properties.born_host == shown


@pytest.mark.parametrize("text", ["x", "-1", "253402300800000", "9" * 30])
def test_a_delivery_time_that_is_none(text):
    assert not with_properties(TIMER_DELIVER_MS=text).HasField("delivery_timestamp")


def test_the_last_delivery_time():
    time = with_properties(TIMER_DELIVER_MS="253402300799999").delivery_timestamp
    assert (time.seconds, time.nanos) == (253402300799, 999_000_000)


@pytest.mark.parametrize(
    ("text", "priority"), [("2147483647", 2147483647), ("2147483648", None), ("-1", None), ("x", None)]
)
def test_priorities(text, priority):
    system = with_properties(_SYS_MSG_PRIORITY_=text)
    assert (system.priority if system.HasField("priority") else None) == priority


@pytest.mark.parametrize(
    ("born_ms", "seconds"), [((1 << 63) - 1, 253402300799), (-(1 << 63), -62135596800), (-1, -1), (0, 0)]
)
def test_a_born_time_is_one_that_clients_can_read(born_ms, seconds):
    assert delivered(message_ext(born_timestamp_ms=born_ms)).system_properties.born_timestamp.seconds == seconds


@pytest.mark.parametrize(("times", "attempt"), [(0, 1), (2**31 - 2, 2**31 - 1), (2**31 - 1, 2**31 - 1)])
def test_the_delivery_attempt(times, attempt):
    assert delivered(message_ext(reconsume_times=times)).system_properties.delivery_attempt == attempt


def test_half_of_an_origin_is_none():
    assert not with_properties(DLQ_ORIGIN_TOPIC="t").HasField("dead_letter_queue")
    assert not with_properties(DLQ_ORIGIN_MESSAGE_ID="i").HasField("dead_letter_queue")


# -- bodies ------------------------------------------------------------------------------------------------------------

TEXT = b"all work and no play " * 40
_COMPRESSED = int(MessageSysFlag.COMPRESSED)


@pytest.mark.parametrize("sys_flag", [_COMPRESSED, int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB)])
def test_a_zlib_body_is_sent_as_stored(sys_flag):
    packed = zlib.compress(TEXT)
    body = delivered_body(message_ext(packed, sys_flag=sys_flag))
    assert body == (packed, messages.GZIP, hashlib.md5(packed).hexdigest().upper())


def test_the_compression_type_alone_means_nothing():
    body = delivered_body(message_ext(TEXT, sys_flag=int(MessageSysFlag.COMPRESSION_LZ4)))
    assert body == (TEXT, messages.IDENTITY, hashlib.md5(TEXT).hexdigest().upper())


@pytest.mark.parametrize("kind", [CompressionType.LZ4, CompressionType.ZSTD])
def test_other_compressed_bodies_are_sent_inflated(kind):
    packed, sys_flag = compress(TEXT, kind=kind)
    message = message_ext(packed, sys_flag=sys_flag)
    assert delivered_body(message) == (TEXT, messages.IDENTITY, hashlib.md5(TEXT).hexdigest().upper())
    assert delivered_body(message, len(TEXT)).content == TEXT
    with pytest.raises(UnreadableBodyError, match=f"more than {len(TEXT) - 1}"):
        delivered_body(message, len(TEXT) - 1)
    with pytest.raises(UnreadableBodyError):
        delivered_body(message_ext(packed[:-5], sys_flag=sys_flag))


def test_a_compression_that_nobody_knows():
    with pytest.raises(UnreadableBodyError, match="type 4") as unreadable:
        delivered_body(message_ext(TEXT, sys_flag=_COMPRESSED | 0x400))
    assert (unreadable.value.topic, unreadable.value.queue_id, unreadable.value.queue_offset) == ("t", 3, 11)


def test_the_checksum_has_upper_case():
    assert delivered_body(message_ext(b"")).checksum == "D41D8CD98F00B204E9800998ECF8427E"
