"""Sends of the client: the compiled and the interpreted kernel write and read the same as the general path."""

from __future__ import annotations

from types import ModuleType

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels import FORMS
from tests.kernels import kernel as load_kernel

from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.common.message_queue import MessageQueue
from rucola.errors import ClientError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand, decode_frame
from rucola.protocol.frame import FrameBatch, FrameReader
from rucola.protocol.send_request import header_head, properties_json, properties_text, unusual_properties

FIELDS = {
    "MSG_REGION": "DefaultRegion",
    "TRACE_ON": "true",
    "msgId": "7F00000100002A9F00000000000A1B2C",
    "queueId": "3",
    "queueOffset": "123456789012",
    "transactionId": "7F000001ABCD010203040000123400FF",
}
READ = (0, "7F00000100002A9F00000000000A1B2C", 3, 123456789012, "7F000001ABCD010203040000123400FF", None)


@pytest.fixture
def module(form: str) -> ModuleType:
    return load_kernel("protocol._send_request_cy", form)


def plain_json(properties: dict[str, str]) -> bytes:
    text = properties_text(properties)
    return properties_json(text if "WAIT" in properties else text + "WAIT\x01true\x02")


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"WAIT": "false"},
        {"UNIQ_KEY": "7F00", "TAGS": "TagA", "KEYS": "key"},
        {"KEYS": "k", "quoted": 'a"b\\c/d', "controls": "\x00\x03\n\r\t\x1f\x7f", "Stadt": "Zürich 🌿 東京"},
        {"long": "x" * 1_300, "name" * 10: "\x1f" * 20},
    ],
)
def test_properties(module: ModuleType, properties: dict[str, str]) -> None:
    encoded = module.encode_properties(properties)
    assert encoded is not None
    assert orjson.loads(encoded) == orjson.loads(plain_json(properties))


@given(st.dictionaries(st.text(max_size=40), st.text(max_size=1_500), max_size=6))
def test_any_properties(properties: dict[str, str]) -> None:
    """Requests that the kernel leaves to the general path are sent or refused there. The compiled and the interpreted
    kernel never differ.
    """
    encoded, *others = [load_kernel("protocol._send_request_cy", form).encode_properties(properties) for form in FORMS]
    assert all(other == encoded for other in others)
    try:
        plain = orjson.loads(plain_json(properties))
    except ClientError:
        assert encoded is None
        with pytest.raises(ClientError):
            unusual_properties(properties)
    else:
        assert encoded is None or orjson.loads(encoded) == plain
        assert orjson.loads(unusual_properties(properties)) == plain


@pytest.mark.parametrize(
    "properties",
    [
        {"a\x01": "b"},
        {"a": "b\x02c"},
        {"": "b"},
        {"a": "\ud800"},
        {"a": 1},
        {1: "a"},
        {"a": "x" * 8_000},
        {"a": "x" * 1_300, "b": "y" * 1_300},
        [("a", "b")],
    ],
)
def test_properties_left_to_the_plain_road(module: ModuleType, properties: object) -> None:
    assert module.encode_properties(properties) is None


def test_room_for_properties_ends_before_the_buffer(module: ModuleType) -> None:
    """Property values of every length around the limit of the buffer are encoded completely, or left to the general
    path. Each of their characters needs the longest escape.
    """
    taken = []
    for length in range(1_340, 1_370):
        properties = {"a": "\x1f" * length, "b": "b", "c": "\x1f"}
        encoded = module.encode_properties(properties)
        if encoded is not None:
            taken.append(length)
            assert orjson.loads(encoded) == orjson.loads(plain_json(properties))
    assert taken == list(range(1_340, taken[-1] + 1)) and taken[-1] < 1_369


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
@pytest.mark.parametrize(
    ("sys_flag", "born", "flag", "frame_flag", "opaque"),
    [(0, 0, 0, 0, 0), (0x301, 1_700_000_000_123, -(1 << 31), 2, (1 << 31) - 1), (9, 10, (1 << 31) - 1, 0, 99)],
)
def test_head(
    module: ModuleType, code: RequestCode, sys_flag: int, born: int, flag: int, frame_flag: int, opaque: int
) -> None:
    queue = MessageQueue("TopicTest", "broker-a", 11)
    properties = {"TAGS": 'A"', "k": "v"}
    head = module.encode_send_head(
        header_head(code, "pg", queue, "TBW102", 4),
        sys_flag,
        born,
        flag,
        plain_json(properties),
        frame_flag,
        opaque,
        4,
    )
    assert isinstance(head, bytes)
    batch = "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false"
    fields = {"a": "pg", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "11", "f": str(sys_flag), "g": str(born)}
    fields |= {"h": str(flag), "i": 'TAGS\x01A"\x02k\x01v\x02WAIT\x01true\x02', "j": "0", "k": "false", "m": batch}
    sent = decode_frame(head + b"body")
    assert sent == RemotingCommand(code, opaque, frame_flag, "", fields | {"n": "broker-a"}, b"body")


def received(frames: bytes) -> FrameBatch:
    reader = FrameReader()
    reader.buffer()[: len(frames)] = frames
    batch = reader.received(len(frames))
    assert batch is not None
    return batch


def framed(header: bytes) -> bytes:
    return (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def read(module: ModuleType, frames: bytes) -> list[object]:
    batch = received(frames)
    answers = module.read_send_answers(batch.source, batch.table, batch.count)
    assert isinstance(answers, list)
    return answers


def test_answers(module: ModuleType) -> None:
    shuffled = dict(reversed(FIELDS.items()))
    without = {name: value for name, value in FIELDS.items() if name != "transactionId"}
    frames = [
        RemotingCommand(0, 1, 1, ext_fields=FIELDS),
        RemotingCommand(10, 2, 1, ext_fields=shuffled),
        RemotingCommand(0, 3, 1, ext_fields=without | {"batchUniqId": "A,B", "queueOffset": "-1"}, body=b"body"),
    ]
    expected = [READ, (10, *READ[1:]), (0, READ[1], 3, -1, None, "A,B")]
    assert read(module, b"".join(frame.encode() for frame in frames)) == expected


@pytest.mark.parametrize(
    "command",
    [
        RemotingCommand(0, 1, 0, ext_fields=FIELDS),
        RemotingCommand(0, 1, 1, ext_fields=FIELDS, serialize=1),
        RemotingCommand(0, 1, 1),
        RemotingCommand(1, 1, 1, remark="broker busy"),
        *(RemotingCommand(0, 1, 1, ext_fields=FIELDS | {name: "x"}) for name in ("queueId", "queueOffset")),
        *(RemotingCommand(0, 1, 1, ext_fields=FIELDS | {"queueOffset": text}) for text in ("", "-", "9" * 19, "1.0")),
        *(
            RemotingCommand(0, 1, 1, ext_fields=FIELDS | {"MSG_REGION": text})
            for text in ('"', "\\", "\n", "é", "\x7f")
        ),
        *(
            RemotingCommand(0, 1, 1, ext_fields={key: value for key, value in FIELDS.items() if key != name})
            for name in ("msgId", "queueId", "queueOffset")
        ),
    ],
)
def test_answers_left_to_the_plain_road(module: ModuleType, command: RemotingCommand) -> None:
    other = RemotingCommand(0, 2, 1, ext_fields=FIELDS)
    assert read(module, command.encode() + other.encode()) == [None, READ]


@pytest.mark.parametrize(
    "header",
    [
        b'{"flag":1,"code":0,"opaque":1,"version":1,"extFields":{"msgId":"A","queueId":"0","queueOffset":"0"}}',
        b'{"code":0,"extFields":{"msgId":"A","queueId":0,"queueOffset":"0"},"flag":1,"opaque":1,"version":1}',
        b'{"code":0,"extFields":{"msgId":"A","queueId": "0","queueOffset":"0"},"flag":1,"opaque":1,"version":1}',
        b'{"code":0, "extFields":{"msgId":"A","queueId":"0","queueOffset":"0"},"flag":1,"opaque":1,"version":1}',
        b'{"code":0,"extFields":{},"flag":1,"opaque":1,"version":1}',
        b'{"code":0,"extFields":null,"flag":1,"opaque":1,"version":1}',
        b'{"code":0,"flag":1,"opaque":1,"version":1}',
    ],
)
def test_headers_of_another_shape(module: ModuleType, header: bytes) -> None:
    assert read(module, framed(header)) == [None]


def test_every_cut_of_a_header_ends_in_its_row(module: ModuleType) -> None:
    """A header is cut off at the end of the buffer: the kernel reads no byte after it."""
    frame = RemotingCommand(0, 1, 1, ext_fields=FIELDS).encode()
    whole = received(frame)
    for length in range(1, len(frame) - 8 + 1):
        table = whole.table[:ROW_WIDTH]
        table[FrameColumn.HEADER_LEN] = length
        (answer,) = module.read_send_answers(frame[: 8 + length], table, 1)
        ends = length > frame.index(b'},"flag"') - 8
        assert answer == (READ if ends else None), length


def test_rows_outside_are_refused(module: ModuleType) -> None:
    batch = received(RemotingCommand(0, 1, 1, ext_fields=FIELDS).encode())
    with pytest.raises(ValueError, match="outside the table"):
        module.read_send_answers(batch.source, batch.table[:ROW_WIDTH], 2)
    with pytest.raises(ValueError, match="outside the source"):
        module.read_send_answers(batch.source[:20], batch.table, 1)
    assert module.read_send_answers(batch.source, batch.table, 0) == []
