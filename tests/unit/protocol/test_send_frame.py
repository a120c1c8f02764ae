"""Compares prepared send frames with the plain encoder, which writes the same request field by field."""

from __future__ import annotations

import orjson
import pytest

from rucola.common.columns import FrameColumn, FrameKind
from rucola.common.message_queue import MessageQueue
from rucola.errors import ClientError
from rucola.formats.properties import encode_properties
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand, decode_frame
from rucola.protocol.frame import FrameReader
from rucola.protocol.headers.send import SendMessageRequestHeaderV2
from rucola.protocol.send_request import batch_member, encode_send_head, header_head, properties_json, properties_text

QUEUE = MessageQueue("TopicTest", "broker-a", 11)
PROPERTIES = {"UNIQ_KEY": "C0A8010A", "TAGS": 'A"\\', "Stadt": "Zürich 🌿", "WAIT": "true"}


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
@pytest.mark.parametrize("flag", [0, 2])
@pytest.mark.parametrize("properties", [PROPERTIES, {}])
def test_frame_equals_that_of_the_plain_encoder(code, flag, properties):
    head = header_head(code, "pg", QUEUE, "TBW102", 4)
    text = properties_text(properties)
    start = encode_send_head(head, 0x301, 1_700_000_000_123, -7, properties_json(text), flag, 2**31 - 1, 4)
    frame = start + b"body"
    header = SendMessageRequestHeaderV2(
        "pg",
        "TopicTest",
        "TBW102",
        4,
        11,
        0x301,
        1_700_000_000_123,
        -7,
        text,
        0,
        False,
        None,
        code == RequestCode.SEND_BATCH_MESSAGE,
        "broker-a",
    )
    assert decode_frame(frame) == RemotingCommand(code, 2**31 - 1, flag, "", header.to_ext_fields(), b"body")
    assert text.encode() == encode_properties(properties)


def test_the_broker_reads_it_on_its_fast_road():
    head = header_head(RequestCode.SEND_MESSAGE_V2, "pg", QUEUE, "TBW102", 4)
    frame = encode_send_head(head, 0, 1, 0, properties_json(properties_text(PROPERTIES)), 0, 5, 4) + b"body"
    reader = FrameReader()
    reader.buffer()[: len(frame)] = frame
    batch = reader.received(len(frame))
    assert batch is not None
    assert batch.table[FrameColumn.KIND] == FrameKind.SEND
    start, length = batch.table[FrameColumn.PROPERTIES_POS], batch.table[FrameColumn.PROPERTIES_LEN]
    assert bytes(batch.view[start : start + length]) == encode_properties(PROPERTIES)


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a": "\x02"}, {"": "x"}, {"a\x02b": "c"}])
def test_separators_inside_are_refused(properties):
    with pytest.raises(ClientError):
        properties_text(properties)


@pytest.mark.parametrize(
    ("text", "fits"), [("x" * 32767, True), ("x" * 32768, False), ("ü" * 16383, True), ("ü" * 16384, False)]
)
def test_length_is_counted_in_bytes(text, fits):
    if fits:
        assert orjson.loads(properties_json(text)) == text
    else:
        with pytest.raises(ClientError, match="the limit is 32767"):
            properties_json(text)


def test_batch_member_limits():
    assert (
        batch_member(b"b", 1, {"k": "v"}).hex()
        == "0000001b" + "00" * 8 + "00000001" + "00000001" + "62" + "0004" + "6b017602"
    )
    with pytest.raises(ClientError, match="32767"):
        batch_member(b"b", 0, {"k": "v" * 32767})
    with pytest.raises(ClientError, match="not valid text"):
        batch_member(b"b", 0, {"k": "\ud800"})
