"""The kernel for deliveries: what it takes, it delivers as the general path does."""

from __future__ import annotations

import hashlib
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import FORMS, kernel

from rucola.common.columns import ROW_WIDTH, RecordColumn, new_table
from rucola.common.hosts import host_bytes
from rucola.common.message import StoreMessage
from rucola.common.numbers import INT32_MAX
from rucola.errors import UnreadableBodyError
from rucola.formats._message_cy import walk_records
from rucola.formats.checksum import crc32
from rucola.formats.message import decode_message, encode_message
from rucola.proxy import messages
from rucola.proxy.delivery import delivered_body, delivered_message
from rucola.proxy.property_keys import RESERVED_KEYS

RECEIPT = "7 1700000000000 30000 3 0 broker-a 3 11"
BORN, STORED = host_bytes("10.0.0.7", 1234), host_bytes("255.254.0.1", 10911)
BORN_V6, STORED_V6 = 0x10, 0x20
BEFORE = 5
"""Bytes before the record."""


def record(
    properties: str | bytes = "UNIQ_KEY\1id\2", body: bytes = b"body", topic: bytes = b"t", **changes: object
) -> bytes:
    text = properties.encode() if isinstance(properties, str) else properties
    fields = {"queue_id": 3, "born_timestamp_ms": 1_700_000_000_123, "born_host": BORN, "store_host": STORED}
    message = StoreMessage(topic=topic, body=body, properties=text, **(fields | changes))  # type: ignore[arg-type]
    return encode_message(message, 4096, 11, 1_700_000_000_456, STORED)


def row_of(content: bytes) -> tuple[bytes, array[int]]:
    """A segment with the record, and a table whose second row describes it."""
    segment = b"?" * BEFORE + content
    table = new_table(1)
    rows, _, _ = walk_records(segment, memoryview(segment), BEFORE, len(segment), 4096 - BEFORE, table, 1, crc32, 0)
    assert rows == 1
    return segment, new_table(1) + table


def fast(form: str, content: bytes, times: int = 0) -> messages.ReceiveMessageResponse | None:
    """What the kernel makes of a record; None if it leaves it to the general path."""
    module = kernel("proxy._delivery_cy", form)
    segment, table = row_of(content)
    at, size = (table[ROW_WIDTH + column] for column in (RecordColumn.BODY_POS, RecordColumn.BODY_LEN))
    checksum = hashlib.md5(segment[at : at + size]).hexdigest().upper().encode()
    handle = f"{RECEIPT} 4096".encode()
    scratch = bytearray(b"\xee" * module.delivery_bytes(len(content), len(handle)))
    begin = module.write_delivery(segment, table, 1, scratch, handle, checksum, times)
    if begin == -1:
        return None
    assert scratch[:begin] == b"\xee" * begin
    return messages.ReceiveMessageResponse.FromString(bytes(scratch[begin:]))


def general(content: bytes, times: int = 0) -> messages.ReceiveMessageResponse | None:
    message = decode_message(content, unpack=False)
    message.properties["POP_CK"] = RECEIPT
    message.reconsume_times = times
    try:
        return messages.ReceiveMessageResponse(message=delivered_message(message, delivered_body(message)))
    except UnreadableBodyError:
        return None


def assert_equal(content: bytes, times: int = 0) -> bool:
    """Asserts that both forms agree, and that what they take is what the general path makes. Returns whether they take
    it.
    """
    made = [fast(form, content, times) for form in FORMS]
    assert all(one == made[0] for one in made)
    if made[0] is None:
        return False
    assert made[0] == general(content, times)
    return True


def text(**properties: str) -> str:
    return "".join(f"{name}\1{value}\2" for name, value in ({"UNIQ_KEY": "id"} | properties).items())


LONG = "v" * 20_000
TAKEN = {
    "plain": record(),
    "everything": record(
        text(
            TAGS="TagA",
            KEYS=" k1  k2 ",
            __SHARDINGKEY="group",
            TRACE_CONTEXT="00-1",
            __BORNHOST="client ü",
            zoo="Zürich \U0001f33f",
            a="東京",
            RECONSUME_TIME="0",
            PGROUP="t",
            BORN_TIMESTAMP="1",
            CLUSTER="c",
            __RUCOLA_SENDER="alice",
        ),
        bytes(range(256)),
        b"rmq_sys_topic|-",
        queue_id=70000,
        sys_flag=0x301,
    ),
    "zlib of old clients": record(sys_flag=1),
    "a type without the flag": record(sys_flag=0x200),
    "multiple tags": record(sys_flag=2),
    "equal names": record("UNIQ_KEY\1a\2k\0011\2TAGS\1a\2k\0012\2UNIQ_KEY\1b\2TAGS\1b\2KEYS\1x\2KEYS\1y z\2"),
    "without values": record("\1\1\2\2x\2a\1\2\1b\2UNIQ_KEY\1id\2TAGS\1\2KEYS\1\2TRAN_MSG\1\2q\1\1\2"),
    "names without a value": record("name\2UNIQ_KEY\1id\2name\2k\1v\2"),
    "no last separator": record("UNIQ_KEY\1id\2last\1v"),
    "only separators as keys": record(text(KEYS="   ")),
    "64 keys": record(text(KEYS=" ".join("k" * 64))),
    "64 properties": record(text(**{f"k{number}": "v" for number in range(64)})),
    "long texts twice": record(text(__SHARDINGKEY=LONG[:16000], TRACE_CONTEXT=LONG[:16000])),
    "long body": record(body=b"x" * 70_000),
    "longest topic": record(topic=b"t" * 127),
    "born 1970": record(born_timestamp_ms=0),
    "born last": record(born_timestamp_ms=253402300799999),
    "bad text that nobody sees": record(b"UNIQ_KEY\1id\2PGROUP\1\xff\2"),
    "ports": record(born_host=b"\0\0\0\0\xff\xff\xff\xff", store_host=b"\1\2\3\4\x80\0\0\0"),
}


@pytest.mark.few
@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("times", [0, 126, 127, INT32_MAX - 1])
def test_records_that_it_takes(name, times):
    assert assert_equal(TAKEN[name], times)


LEFT = {
    "retry topic": record(topic=b"%RETRY%g"),
    "namespace": record(topic=b"ns%t"),
    "wide topic": record(topic="é".encode()),
    "no body": record(body=b""),
    "LZ4": record(sys_flag=0x101),
    "ZSTD": record(sys_flag=0x201),
    "unknown compression": record(sys_flag=0x401),
    "IPv6 client": record(born_host=host_bytes("::1", 1), sys_flag=BORN_V6),
    "IPv6 broker": record(store_host=host_bytes("::1", 1), sys_flag=STORED_V6),
    "no id": record(""),
    "blank host": record(text(__BORNHOST=" ")),
    "65 keys": record(text(KEYS=" ".join("k" * 65))),
    "65 properties": record(text(**{f"k{number}": "v" for number in range(65)})),
    "born before 1970": record(born_timestamp_ms=-1),
    "born too late": record(born_timestamp_ms=253402300800000),
    "bad name": record(b"UNIQ_KEY\1id\2\xff\1v\2"),
    "bad value": record(b"UNIQ_KEY\1id\2k\1\xe4\xb8\2"),
    "bad id": record(b"UNIQ_KEY\1\xed\xa0\x80\2"),
    "zero in a name": record(b"UNIQ_KEY\1id\2a\0b\1v\2"),
} | {
    name: record(text(**{name: "1"}))
    for name in (
        *("TRAN_MSG", "DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "POP_CK", "DLQ_ORIGIN_TOPIC"),
        *("DLQ_ORIGIN_MESSAGE_ID", "_SYS_MSG_PRIORITY_", "__LITE_TOPIC"),
    )
}


@pytest.mark.parametrize("name", LEFT)
def test_records_that_it_leaves(name):
    assert not assert_equal(LEFT[name])


@pytest.mark.parametrize("times", [-1, INT32_MAX])
def test_counts_of_deliveries_that_it_leaves(times):
    assert all(fast(form, record(), times) is None for form in FORMS)


@pytest.mark.parametrize("key", sorted(RESERVED_KEYS))
def test_reserved_keys(key):
    assert assert_equal(record(text(**{key: "id"}))) is (key not in LEFT)


# -- calls that are wrong ----------------------------------------------------------------------------------------------


def write(form: str, changes: dict[RecordColumn, int], row: int = 1, room: int = 0, checksum: bytes = b"A" * 32) -> int:
    segment, table = row_of(record(body=b"x" * 100))
    for column, value in changes.items():
        table[ROW_WIDTH + column] = value
    module = kernel("proxy._delivery_cy", form)
    room_of_kernel = kernel("proxy._delivery_cy", "interpreted").DELIVERY_ROOM
    least = 1 + 100 + 2 * len("UNIQ_KEY\1id\2") + 3 + room_of_kernel
    return module.write_delivery(segment, table, row, bytearray(least + room), b"abc", checksum, 0)


def test_the_least_room(form):
    assert write(form, {}) > 0
    with pytest.raises(ValueError, match="too few"):
        write(form, {}, room=-1)


@pytest.mark.parametrize("checksum", [b"", b"A" * 31, b"A" * 33])
def test_a_checksum_of_another_length(form, checksum):
    with pytest.raises(ValueError, match="no MD5"):
        write(form, {}, room=100, checksum=checksum)


@pytest.mark.parametrize("row", [-1, 2, 1 << 40])
def test_a_row_outside_the_table(form, row):
    with pytest.raises(ValueError, match="lies outside"):
        write(form, {}, row)


@pytest.mark.parametrize("place", ["RECORD", "TOPIC", "BODY", "PROPERTIES"])
@pytest.mark.parametrize("value", [-1, 10_000, (1 << 63) - 1, -(1 << 63)])
def test_spans_outside_the_segment(form, place, value):
    for part in (f"{place}_POS", "RECORD_SIZE" if place == "RECORD" else f"{place}_LEN"):
        with pytest.raises(ValueError, match="outside the segment"):
            write(form, {RecordColumn[part]: value})


@pytest.mark.parametrize("host", [RecordColumn.BORN_HOST_POS, RecordColumn.STORE_HOST_POS])
def test_hosts_outside_the_segment(form, host):
    size = BEFORE + len(record(body=b"x" * 100))
    assert write(form, {host: size - 8}) > 0
    for value in (-1, size - 7):
        with pytest.raises(ValueError, match="outside the segment"):
            write(form, {host: value})


# -- any record --------------------------------------------------------------------------------------------------------

_bits = st.sampled_from(
    [
        *(
            "UNIQ_KEY\1id\2",
            "TAGS\1",
            "KEYS\1",
            "__BORNHOST\1",
            "__SHARDINGKEY\1",
            "TRACE_CONTEXT\1",
            "PGROUP\1",
            "k\1",
        ),
        *("a b", " ", "\1", "\2", "\2", "\2", "ü", "京", "\U0001f33f", "\0", "TIMER_DELAY_MS\1", "WAIT\1true\2"),
    ]
).map(str.encode)
_properties = st.lists(_bits | st.binary(max_size=2), max_size=20).map(b"".join)


@given(
    _properties.map(lambda text: b"UNIQ_KEY\1id\2" + text) | _properties,
    st.binary(max_size=5),
    st.sampled_from([b"t", b"topic", b"%RETRY%g", b"ns%t"]),
    st.integers(0, 100_000),
    st.sampled_from([0, 1, 2, 0x101, 0x301]),
    st.integers(0, 1 << 50),
    st.integers(0, INT32_MAX),
)
def test_any_record(properties, body, topic, queue_id, sys_flag, born_ms, times):
    content = record(properties, body, topic, queue_id=queue_id, sys_flag=sys_flag, born_timestamp_ms=born_ms)
    assert_equal(content, times)
