"""Records for tests of readers: a log with every feature that a record can have, and its rows as plain Python
values.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import pyarrow as pa

from rucola.common.hosts import host_bytes, host_text
from rucola.common.message import MessageExt, StoreMessage
from rucola.formats.message import decode_messages, encode_message
from rucola.formats.properties import encode_properties

STORE_HOST = host_bytes("10.0.0.5", 10911)
STORE_HOST_V6 = host_bytes("2001:db8::5", 10911)
TOPICS = (b"flights", b"other", "größe".encode(), b"%RETRY%" + b"x" * 130)

SYS_FLAGS = {"": 0, "old": 0x1, "lz4": 0x101, "zstd": 0x201, "zlib": 0x301}
"""System flags by kind of compression. "old" has the flags of clients before 5.0, which name no kind and mean zlib."""


def properties_of(number: int) -> bytes:
    """Returns a property text; the texts have many shapes."""
    pairs = {
        "TAGS": "AA" if number % 3 else "UA",
        "KEYS": f"k{number}",
        "UNIQ_KEY": f"{number:032X}",
        "größe": 'a"\\\n',
    }
    text = encode_properties(pairs)
    return (
        text,
        b"",
        text[:-1],
        encode_properties({"KEYS": f"k{number}"}) + b"x\x01\x02\x01y\x02noise\x02",
        encode_properties({"dup": "first", "a": "1\x01b".replace("\x01", "=")}) + b"dup\x01last\x02",
        b"bin\x01\xff\xfe\x02" + text,
        b"v\x01one\x01two\x02",
    )[number % 7]


def message(number: int, topic: bytes | None = None) -> StoreMessage:
    """Returns message ``number`` of a series that varies every field."""
    chosen = TOPICS[number % len(TOPICS)] if topic is None else topic
    v6 = number % 5 == 0
    return StoreMessage(
        topic=chosen,
        queue_id=number % 3,
        body=bytes([number % 256]) * (number % 40),
        properties=properties_of(number),
        born_timestamp_ms=1_700_000_000_000 + number,
        born_host=host_bytes("2001:db8::7", 5000 + number % 2) if v6 else host_bytes("192.168.1.10", 5000 + number % 3),
        flag=number * 7919,
        sys_flag=0,
        reconsume_times=number % 4,
    )


def log_of(count: int, topic: bytes | None = None, base_offset: int = 0) -> bytes:
    """Returns ``count`` consecutive records; queue offsets count up separately in each queue."""
    log = bytearray()
    queue_offsets: dict[tuple[bytes, int], int] = {}
    for number in range(count):
        one = message(number, topic)
        key = (one.topic, one.queue_id)
        queue_offset = queue_offsets.get(key, 0)
        queue_offsets[key] = queue_offset + 1
        host = STORE_HOST_V6 if number % 6 == 0 else STORE_HOST
        log += encode_message(one, base_offset + len(log), queue_offset, 1_700_000_001_000 + number, host)
    return bytes(log)


def starts_of(log: bytes) -> list[int]:
    """Returns the positions at which the records of a log begin."""
    starts = [0]
    while starts[-1] < len(log):
        starts.append(starts[-1] + int.from_bytes(log[starts[-1] : starts[-1] + 4], "big"))
    return starts[:-1]


def expected_rows(log: bytes, broker_name: str) -> list[dict[str, object]]:
    """Returns the RocketMQ columns as rows of the plain decoder, with properties as a dict and times in
    microseconds.
    """
    return [expected_row(one, broker_name, 1000) for one in decode_messages(log)]


def expected_row(one: MessageExt, broker_name: str, units_per_ms: int) -> dict[str, object]:
    """Returns the RocketMQ columns of one message, with times in units of 1 / ``units_per_ms`` milliseconds."""
    return {
        "topic": one.topic,
        "flag": one.flag,
        "body": one.body,
        "properties": one.properties,
        "brokerName": broker_name,
        "queueId": one.queue_id,
        "queueOffset": one.queue_offset,
        "bornTimestamp": one.born_timestamp_ms * units_per_ms,
        "storeTimestamp": one.store_timestamp_ms * units_per_ms,
        "msgId": one.msg_id,
        "tags": one.tags,
        "keys": one.keys,
        "sysFlag": one.sys_flag,
        "reconsumeTimes": one.reconsume_times,
        "bornHost": host_text(one.born_host),
        "storeHost": host_text(one.store_host),
        "bodyCrc": one.body_crc,
        "physicalOffset": one.physical_offset,
        "storeSize": one.store_size,
        "preparedTransactionOffset": one.prepared_transaction_offset,
    }


def packed(body: bytes, codec: str) -> bytes:
    """Returns ``body`` as a client stores it after compression with ``codec``, a key of ``SYS_FLAGS``."""
    if codec in ("old", "zlib"):
        return zlib.compress(body)
    compressed: bytes = pa.compress(body, codec=codec, asbytes=True) if codec else body
    return compressed


def log_of_bodies(stored: list[tuple[bytes, int]]) -> bytes:
    """Returns records of topic flights with these bodies and sysFlags; queue offsets count up."""
    log = bytearray()
    for number, (body, sys_flag) in enumerate(stored):
        one = replace(message(number, b"flights"), queue_id=0, body=body, sys_flag=sys_flag)
        log += encode_message(one, len(log), number, 1_700_000_001_000, STORE_HOST)
    return bytes(log)
