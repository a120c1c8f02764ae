"""The kernel for sends: what it takes, it stores as the general path does; everything else it leaves to that path."""

from __future__ import annotations

from types import ModuleType

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from tests.kernels import FORMS, kernel

from rucola.common.columns import ROW_WIDTH, FrameColumn, FrameKind, new_table
from rucola.common.kernel_records import PROPERTIES_BYTES_MAX, SUFFIX_BYTES_MAX
from rucola.common.key_builder import SYSTEM_TOPICS
from rucola.common.numbers import INT32_MAX
from rucola.formats._send_cy import inspect_rows
from rucola.protocol.codes import RequestCode
from rucola.proxy import messages, sending, timestamps
from rucola.proxy.message_kind import MessageKind
from rucola.proxy.names import TOPIC_CHARACTERS_MAX
from rucola.proxy.property_keys import RESERVED_KEYS, TRACE_CONTEXT
from rucola.proxy.refusal import RefusedError
from rucola.proxy.sending import Arrival, SentMessage, read_request

ARRIVAL = Arrival(1_700_000_000_000, "10.0.0.7", 100_000)
SYSTEM = {
    "message_id": "01ABCDEF",
    "message_type": messages.NORMAL,
    "born_timestamp": {"seconds": 1_700_000_000, "nanos": 123_456_789},
}


def request(
    body: bytes = b"body", topic: str = "topic", user: dict[str, str] | None = None, **system: object
) -> messages.SendMessageRequest:
    """A request that the kernel takes, with changes."""
    properties = messages.SystemProperties(**(SYSTEM | system))
    resource = messages.Resource(name=topic)
    sent = messages.Message(topic=resource, user_properties=user or {}, system_properties=properties, body=body)
    return messages.SendMessageRequest(messages=[sent])


START = 42
"""Where the rows of these tests begin."""


@pytest.fixture
def module(form: str) -> ModuleType:
    return kernel("proxy._send_cy", form)


def fast(module: ModuleType, data: bytes, arrival: Arrival = ARRIVAL) -> SentMessage | None:
    """What the kernel has made of a request; None if it leaves it to the general path."""
    host = arrival.host.encode()
    scratch = bytearray(b"\xee" * (START + module.send_bytes(len(data), len(host))))
    table = new_table(2)
    table[:] = table.__class__("q", [-7]) * len(table)
    written = module.read_send(data, table, 1, scratch, START, host, arrival.body_bytes_max)
    assert list(table[:ROW_WIDTH]) == [-7] * ROW_WIDTH
    assert scratch[:START] == b"\xee" * START
    row = table[ROW_WIDTH:]
    if not written:
        assert list(row) == [-7] * ROW_WIDTH
        return None

    def text(position: FrameColumn, length: FrameColumn) -> bytes:
        assert START <= row[position] <= row[position] + row[length] <= START + written
        return bytes(scratch[row[position] : row[position] + row[length]])

    topic = text(FrameColumn.TOPIC_POS, FrameColumn.TOPIC_LEN)
    assert text(FrameColumn.GROUP_POS, FrameColumn.GROUP_LEN) == topic
    properties = text(FrameColumn.PROPERTIES_POS, FrameColumn.PROPERTIES_LEN)
    fixed = (FrameColumn.KIND, FrameColumn.CODE, FrameColumn.OPAQUE, FrameColumn.QUEUE_ID, FrameColumn.MESSAGE_FLAG)
    assert [row[column] for column in fixed] == [FrameKind.SEND, RequestCode.SEND_MESSAGE_V2, 0, -1, 0]
    inspect_rows(scratch, table, 1, 2, arrival.body_bytes_max, 4)
    row = table[ROW_WIDTH:]
    return SentMessage(
        topic.decode(),
        text(FrameColumn.BODY_POS, FrameColumn.BODY_LEN),
        properties,
        row[FrameColumn.SYS_FLAG],
        row[FrameColumn.BORN_TIMESTAMP],
        text(FrameColumn.UNIQ_KEY_POS, FrameColumn.UNIQ_KEY_LEN).decode(),
        None,
        None,
        MessageKind.NORMAL,
        None,
        None,
        row[FrameColumn.RECONSUME_TIMES],
    )


def general(data: bytes, arrival: Arrival = ARRIVAL) -> list[SentMessage] | None:
    """What the general path makes of a request; None if it refuses it."""
    try:
        return read_request(messages.SendMessageRequest.FromString(data), arrival)
    except (DecodeError, RefusedError):
        return None


def assert_equal(data: bytes, arrival: Arrival = ARRIVAL) -> bool:
    """Asserts that both forms agree, and that what they take is what the general path makes. Returns whether they take
    it.
    """
    taken = [fast(kernel("proxy._send_cy", form), data, arrival) for form in FORMS]
    assert all(sent == taken[0] for sent in taken)
    if taken[0] is None:
        return False
    assert general(data, arrival) == [taken[0]]
    return True


# -- what it takes -----------------------------------------------------------------------------------------------------

TAKEN = {
    "plain": request(),
    "everything": request(
        b"\0" * 500,
        "t|-_aZ09%x",
        {"zoo": "1", "a b": "Zürich \U0001f33f", "A": "東京", "zo": " ", "zooo": "|", "Keys": "k"},
        tag="TagA",
        keys=["k1", "k2 k3", "ü!"],
        born_host="host",
        trace_context=" ",
        queue_id=7,
        delivery_attempt=INT32_MAX,
        body_encoding=messages.GZIP,
        body_digest=messages.Digest(type=messages.MD5, checksum="ABC"),
    ),
    "empty texts": request(tag="", born_host="", trace_context="", body_digest={}, body_encoding=0),
    "identity": request(body_encoding=messages.IDENTITY, delivery_attempt=0),
    "born 1970": request(born_timestamp={}),
    "born last": request(born_timestamp={"seconds": 253402300799, "nanos": 999_999_999}),
    "longest topic": request(topic="t" * 127),
    "128 properties": request(user={str(number): "v" for number in range(128)}),
    "16 KiB": request(user={"k": "v" * 16380}, tag="T", keys=["K", "L"]),
    "32 keys": request(keys=[f"k{number}" for number in range(32)]),
    "largest body": request(b"x" * 100_000),
    "no control": request(user={"k\xa0\u0800\ud7ff\ue000\U00010000\U0010ffff": "\xa0"}, tag="~"),
    "like reserved keys": request(user={"keys": "1", "KEY": "2", "KEYSX": "3", "x" * 40: "4"}),
    "like system topics": request(topic="rmq_sys"),
}


@pytest.mark.parametrize("name", TAKEN)
def test_requests_that_it_takes(name):
    assert assert_equal(TAKEN[name].SerializeToString())


def test_the_namespace_is_not_looked_at():
    sent = request()
    sent.messages[0].topic.resource_namespace = "ns"
    assert assert_equal(sent.SerializeToString())


def test_without_a_host():
    assert assert_equal(request().SerializeToString(), Arrival(0))
    assert assert_equal(request(born_host="own").SerializeToString(), Arrival(0))


def test_properties_at_the_limit():
    plain = len(read_request(request(message_id="x"), ARRIVAL)[0].properties) - 1
    room = PROPERTIES_BYTES_MAX - SUFFIX_BYTES_MAX - plain
    assert assert_equal(request(message_id="i" * room).SerializeToString())
    assert not assert_equal(request(message_id="i" * (room + 1)).SerializeToString())


# -- what it leaves to the general path --------------------------------------------------------------------------------

LEFT = {
    "nothing": messages.SendMessageRequest(),
    "two messages": messages.SendMessageRequest(messages=[request().messages[0], request().messages[0]]),
    "no topic": request(topic=""),
    "topic too long": request(topic="t" * 128),
    "retry topic": request(topic="%RETRY%g"),
    "other characters": request(topic="a.b"),
    "wide topic": request(topic="é"),
    "system prefix": request(topic="rmq_sys_"),
    "no body": request(b""),
    "body too large": request(b"x" * 100_001),
    "129 properties": request(user={str(number): "v" for number in range(129)}),
    "empty key": request(user={"": "v"}),
    "empty value": request(user={"k": ""}),
    "16 KiB and one": request(user={"k": "v" * 16380}, tag="TT", keys=["K", "L"]),
    "blank tag": request(tag=" "),
    "wide blank tag": request(tag="\u3000"),
    "bar": request(tag="a|b"),
    "empty key text": request(keys=[""]),
    "blank key text": request(keys=[" "]),
    "33 keys": request(keys=["k"] * 33),
    "no id": request(message_id=""),
    "blank id": request(message_id=" "),
    "unspecified": request(message_type=0),
    "fifo": request(message_type=messages.FIFO, message_group="g"),
    "group": request(message_group="g"),
    "delay": request(delivery_timestamp={"seconds": 1}),
    "transaction": request(message_type=messages.TRANSACTION),
    "lite": request(lite_topic="l"),
    "priority": request(priority=1),
    "unknown encoding": request(body_encoding=3),
    "negative attempt": request(delivery_attempt=-1),
    "no born time": request(born_timestamp=None),
    "born before 1970": request(born_timestamp={"seconds": -1}),
    "born too late": request(born_timestamp={"seconds": 253402300800}),
    "too many nanos": request(born_timestamp={"nanos": 1_000_000_000}),
    "blank host": request(born_host=" "),
    "stored already": request(queue_offset=1),
}


@pytest.mark.parametrize("name", LEFT)
def test_requests_that_it_leaves(name):
    assert not assert_equal(LEFT[name].SerializeToString())


@pytest.mark.parametrize(
    "key", sorted(RESERVED_KEYS | {"__SHARDINGKEY", TRACE_CONTEXT, "CHECK_IMMUNITY_TIME_IN_SECONDS"})
)
def test_keys_that_it_leaves(key):
    assert not assert_equal(request(user={key: "v"}).SerializeToString())


@pytest.mark.parametrize("topic", sorted(SYSTEM_TOPICS))
def test_topics_that_it_leaves(topic):
    assert not assert_equal(request(topic=topic).SerializeToString())


@pytest.mark.parametrize("control", ["\0", "\1", "\2", "\x1f", "\x7f", "\x80", "\x9f"])
@pytest.mark.parametrize("place", ["key", "value", "tag", "keys", "message_id", "trace_context", "born_host"])
def test_control_characters(place, control):
    text = f"a{control}b"
    if place in ("key", "value"):
        sent = request(user={text: "v"} if place == "key" else {"k": text})
    else:
        sent = request(**{place: [text] if place == "keys" else text})
    assert not assert_equal(sent.SerializeToString())


BAD_TEXTS = [
    *(b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc3", b"\xc3\x28", b"\xe0\x9f\xbf", b"\xe4\xb8", b"\xed\xa0\x80"),
    *(
        b"\xed\xbf\xbf",
        b"\xf0\x8f\xbf\xbf",
        b"\xf0\x9f\x8c",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\xff",
        b"\xe4\x28\xad",
    ),
]


@pytest.mark.parametrize("place", ["namespace", "key", "value", "tag", "keys", "message_id", "born_host", "checksum"])
def test_texts_that_are_not_utf_8(place):
    for bad in BAD_TEXTS:
        check_bad_text(place, bad)


def check_bad_text(place, bad):
    marked = "a" + "m" * len(bad) + "z"
    sent = request(user={marked if place == "key" else "k": marked if place == "value" else "v"})
    if place == "namespace":
        sent.messages[0].topic.resource_namespace = marked
    elif place == "checksum":
        sent.messages[0].system_properties.body_digest.checksum = marked
    elif place == "keys":
        sent.messages[0].system_properties.keys.append(marked)
    elif place not in ("key", "value"):
        setattr(sent.messages[0].system_properties, place, marked)
    data = sent.SerializeToString()
    assert assert_equal(data)
    damaged = data.replace(marked.encode(), b"a" + bad + b"z")
    assert damaged != data
    assert not assert_equal(damaged), bad


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


TOPIC = field(1, field(2, b"t"))
PAIR = field(2, field(1, b"k") + field(2, b"v"))
TYPED = field(3, field(3, b"id") + b"\x30\1" + field(7, b""))
BODY = field(4, b"x")


@pytest.mark.parametrize(
    ("content", "taken"),
    [
        (TOPIC + PAIR + TYPED + BODY, True),
        (BODY + TYPED + PAIR + TOPIC, True),
        (TOPIC + PAIR + PAIR + TYPED + BODY, False),
        (TOPIC + TOPIC + TYPED + BODY, False),
        (TOPIC + TYPED + TYPED + BODY, False),
        (TOPIC + TYPED + BODY + BODY, False),
        (TOPIC + TYPED + BODY + field(5, b"x"), False),
        (TOPIC + TYPED + BODY + b"\0", False),
        (TOPIC + TYPED + BODY + b"\x22", False),
        (TOPIC + TYPED + BODY + b"\x22\5x", False),
        (TOPIC + field(2, field(2, b"v") + field(1, b"k")) + TYPED + BODY, False),
        (TOPIC + field(2, field(1, b"k")) + TYPED + BODY, False),
        (TOPIC + field(2, field(1, b"k") + field(2, b"v") + field(2, b"w")) + TYPED + BODY, False),
        (field(1, field(2, b"t") + field(2, b"u")) + TYPED + BODY, False),
        (field(1, field(2, b"t") + field(3, b"u")) + TYPED + BODY, False),
        (TOPIC + field(3, field(3, b"id") + field(3, b"id") + b"\x30\1" + field(7, b"")) + BODY, False),
        (TOPIC + field(3, field(3, b"id") + b"\x30\1" + field(7, b"\x08\1\x08\2")) + BODY, False),
        (TOPIC + field(3, field(3, b"id") + b"\x30\1" + field(7, b"\x10\1\x08\2")) + BODY, False),
        (TOPIC + field(3, field(3, b"id") + b"\x30\1" + field(7, b"\x08\2\x10\1")) + BODY, True),
        (TOPIC + field(3, field(3, b"id") + b"\x30\x81\0" + field(7, b"")) + BODY, True),
        (TOPIC + field(3, field(3, b"id") + b"\x30" + b"\x81" * 9 + b"\0" + field(7, b"")) + BODY, False),
        (TOPIC + field(3, field(3, b"id") + b"\x30\1" + field(7, b"") + b"\xfa\1\0") + BODY, False),
        (TOPIC + field(3, field(3, b"id") + b"\x30\1" + field(7, b"") + b"\x92\1\0") + BODY, True),
        (TOPIC + field(3, field(3, b"id") + b"\x30\1" + field(7, b"") + b"\x92\x81\0\0") + BODY, False),
        (TOPIC + field(3, field(3, b"id") + b"\x30\1" + field(7, b"") + field(4, b"\x18\1")) + BODY, False),
        (TOPIC + field(3, field(3, b"id") + b"\x30\1" + field(7, b"") + b"\x80\1\xff\xff\xff\xff\7") + BODY, True),
        (TOPIC + field(3, field(3, b"id") + b"\x30\1" + field(7, b"") + b"\x80\1\x80\x80\x80\x80\x08") + BODY, False),
        (TOPIC + TYPED + field(4, b""), False),
        (TOPIC + field(3, field(3, b"id") + b"\x30\1" + field(7, b"") + b"\x92\0\1k") + BODY, False),
        # the text ends within a character, and the next field begins like the rest of it
        (TOPIC + field(3, b"\x30\1" + field(7, b"") + field(3, b"id\xc3") + b"\x92\1\0") + BODY, False),
    ],
)
def test_bytes_of_a_request(content, taken):
    assert assert_equal(field(1, content)) is taken


def test_bytes_after_the_message():
    data = request().SerializeToString()
    for more in (b"\0", b"\x0a", b"\x0a\0", b"\x10\1", b"\x12\1x"):
        assert not assert_equal(data + more)


# -- calls that are wrong ----------------------------------------------------------------------------------------------


def test_a_row_outside_the_table(module):
    data = request().SerializeToString()
    for row in (-1, 1):
        with pytest.raises(ValueError, match=f"row {row} lies outside"):
            module.read_send(data, new_table(1), row, bytearray(5000), 0, b"", 1000)


def test_too_little_room(module):
    data = request().SerializeToString()
    size = module.send_bytes(len(data), 3)
    assert module.read_send(data, new_table(1), 0, bytearray(size), 0, b"abc", 1000) > 0
    with pytest.raises(ValueError, match="too few"):
        module.read_send(data, new_table(1), 0, bytearray(size - 1), 0, b"abc", 1000)
    for start in (-1, 1, size + 1):
        with pytest.raises(ValueError, match=f"from {start} on"):
            module.read_send(data, new_table(1), 0, bytearray(size), start, b"abc", 1000)


def test_the_room_suffices_for_the_longest_texts(module):
    sent = request(
        topic="t" * 127, born_timestamp={"seconds": 253402300799}, delivery_attempt=INT32_MAX, tag="T", keys=["K"]
    )
    data = sent.SerializeToString()
    host = b"h" * 500
    scratch = bytearray(module.send_bytes(len(data), len(host)))
    assert 0 < module.read_send(data, new_table(1), 0, scratch, 0, host, 1000) <= len(scratch)


def test_the_numbers_of_the_kernel_are_those_of_the_general_path():
    module = kernel("proxy._send_cy", "interpreted")
    assert module.SEND_CODE == RequestCode.SEND_MESSAGE_V2
    assert module.TOPIC_BYTES_MAX == TOPIC_CHARACTERS_MAX
    assert module.PAIRS_MAX == sending.USER_PROPERTIES_MAX
    assert module.USER_BYTES_MAX == sending.USER_PROPERTIES_BYTES_MAX
    assert (module.SECONDS_MAX, module.NANOS_MAX) == (timestamps.SECONDS_MAX, timestamps.NANOS_MAX)
    assert max(map(len, RESERVED_KEYS | SYSTEM_TOPICS)) <= module._NAME_BYTES_MAX


# -- any request -------------------------------------------------------------------------------------------------------

_texts = st.text("ab|ü京\U0001f33f ", max_size=6) | st.text(max_size=8) | st.sampled_from(["KEYS", "a\x85", "\u3000"])
_names = st.sampled_from(["t", "topic-1", "%RETRY%g", "TBW102", "a.b"]) | st.text("aZ09%|_-", min_size=1, max_size=130)
_times = st.fixed_dictionaries(
    {
        "seconds": st.integers(0, 253402300799) | st.integers(-(1 << 40), 1 << 40),
        "nanos": st.integers(0, 999_999_999) | st.integers(-1, 1 << 30),
    }
)
_system = st.fixed_dictionaries(
    {"message_id": st.text("0Ax", min_size=1) | _texts, "born_timestamp": _times | st.none()},
    optional={
        "message_type": st.sampled_from([0, 1, 1, 1, 1, 1, 2, 3, 4, 5, 6]),
        "tag": _texts,
        "keys": st.lists(_texts, max_size=4),
        "body_encoding": st.integers(0, 3),
        "body_digest": st.fixed_dictionaries({"type": st.integers(0, 3), "checksum": _texts}),
        "born_host": _texts,
        "queue_id": st.integers(-1, 100),
        "delivery_attempt": st.integers(-1, INT32_MAX),
        "trace_context": _texts,
        "message_group": st.just("") | _texts,
        "priority": st.just(1),
    },
)
_requests = st.builds(
    lambda body, topic, user, system: request(body, topic, user, **system),
    st.binary(max_size=20),
    _names,
    st.dictionaries(_texts, _texts, max_size=5),
    _system,
)
_arrivals = st.builds(
    Arrival, st.just(ARRIVAL.now_ms), st.sampled_from(["", "10.0.0.7", "[fd00::1]:5"]), st.integers(0, 30)
)


@given(_requests, _arrivals)
@example(TAKEN["everything"], ARRIVAL)
def test_any_request(sent, arrival):
    assert_equal(sent.SerializeToString(), arrival)


@given(_requests | st.sampled_from(list(TAKEN.values())), st.data())
def test_any_mutated_request(sent, data):
    content = bytearray(sent.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(content) - 1, 0)))
        step = data.draw(st.sampled_from(["set", "flip", "cut", "insert", "double"]))
        if step == "set":
            content[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
        elif step == "flip":
            content[at : at + 1] = bytes(byte ^ 1 << data.draw(st.integers(0, 7)) for byte in content[at : at + 1])
        elif step == "cut":
            del content[at : at + data.draw(st.integers(1, 9))]
        elif step == "insert":
            content[at:at] = data.draw(st.binary(max_size=9))
        else:
            content[at:at] = content[at : at + data.draw(st.integers(1, 30))]
    assert_equal(bytes(content))


@given(st.binary(max_size=60))
def test_any_bytes(data):
    assert_equal(data)


@pytest.mark.parametrize("name", ["everything", "plain"])
def test_every_beginning_and_every_changed_byte(name):
    data = TAKEN[name].SerializeToString()[:400]
    for end in range(len(data)):
        assert_equal(data[:end])
    for at in range(len(data)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 0x08, data[at] + 1 & 0xFF):
            assert_equal(data[:at] + bytes([value]) + data[at + 1 :])
