"""The client's end of a send, without header objects: requests as bytes, and what their answers say.

What does not change from message to message is prepared once per queue. The frames equal those of ``protocol.command``
(a test holds them against each other).

Source: protocol.md 1.2, 1.13, 2.2; RocketMQ 5.3.3, SendMessageRequestHeaderV2 and MessageDecoder.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import orjson

from rucola.common import message_const
from rucola.common.message_queue import MessageQueue
from rucola.errors import ClientError
from rucola.protocol._send_request_cy import encode_properties, encode_send_head, read_send_answers
from rucola.protocol.codes import RequestCode
from rucola.protocol.frame import FrameBatch, SendAnswer

__all__ = [
    "EncodedMessage",
    "batch_member",
    "encode_properties",
    "encode_send_head",
    "header_head",
    "properties_json",
    "properties_text",
    "send_answers",
    "send_frame",
    "unusual_properties",
]

EncodedMessage = tuple[bytes, int, int, bytes]
"""A message ready for its header: body as transferred, sysFlag, the application's flag, properties as a JSON string."""

PROPERTIES_BYTES_MAX = 32767

_BATCH_HEAD = struct.Struct(">iiiii")  # total, magic 0, crc 0, flag, body length
_SHORT = struct.Struct(">h")
_ITEM_BYTES = 22  # of a batch member, besides body and properties
_WAIT = "WAIT\x01true\x02"


def header_head(
    code: RequestCode, group: str, queue: MessageQueue, create_topic_key: str, default_topic_queue_nums: int
) -> bytes:
    """The beginning of the header of every send to ``queue``, up to the value of sysFlag."""
    fields = {
        "a": group,
        "b": queue.topic,
        "c": create_topic_key,
        "d": str(default_topic_queue_nums),
        "e": str(queue.queue_id),
        "j": "0",
        "k": "false",
        "m": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
        "n": queue.broker_name,
        "f": "",
    }
    return b'{"code":%d,"extFields":%b' % (code, orjson.dumps(fields)[:-2])


def send_frame(
    head: bytes,
    sys_flag: int,
    born_timestamp_ms: int,
    message_flag: int,
    properties: bytes,
    frame_flag: int,
    opaque: int,
    body: bytes,
) -> bytes:
    """A whole send request.

    Args:
        head: from ``header_head``.
        sys_flag: bits of ``MessageSysFlag``.
        born_timestamp_ms: when it is sent.
        message_flag: the application's flag.
        properties: from ``encode_properties`` or ``properties_json``.
        frame_flag: 0, or 2 for oneway.
        opaque: correlation id.
        body: as transferred, compressed or not.
    """
    return (
        encode_send_head(head, sys_flag, born_timestamp_ms, message_flag, properties, frame_flag, opaque, len(body))
        + body
    )


def unusual_properties(properties: Mapping[str, str]) -> bytes:
    """``encode_properties`` for those that it leaves.

    Raises:
        ClientError: they cannot be sent.
    """
    text = properties_text(properties)
    if message_const.WAIT not in properties:
        text += _WAIT  # the reference's messages have it from the start
    return properties_json(text)


def properties_text(properties: Mapping[str, str]) -> str:
    """Properties as one text: ``name U+0001 value U+0002`` for each.

    Raises:
        ClientError: a name or value is no text or holds one of the separators, or a name is empty.
    """
    count = len(properties)
    try:
        text = "\x02".join(map("\x01".join, properties.items())) + "\x02" if count else ""
    except TypeError:
        raise ClientError(_not_text(properties)) from None
    if text.count("\x01") != count or text.count("\x02") != count or "" in properties:
        raise ClientError("a property name is empty, or a name or value holds U+0001 or U+0002")
    return text


def _not_text(properties: Mapping[str, str]) -> str:
    """What is wrong with properties of which a name or a value is no text."""
    pairs: Iterable[tuple[object, object]] = properties.items()
    for name, value in pairs:
        if not isinstance(name, str):
            return f"property {name!r}: its name must be a str, not {type(name).__name__}"
        if not isinstance(value, str):
            return f"property {name!r}: its value must be a str, not {type(value).__name__} ({value!r})"
    raise AssertionError("one of them is no text")


def properties_json(text: str) -> bytes:
    """The properties text as a JSON string.

    Raises:
        ClientError: longer than 32,767 bytes, or not text (a lone surrogate).
    """
    try:
        if len(text) * 4 > PROPERTIES_BYTES_MAX and len(text.encode()) > PROPERTIES_BYTES_MAX:
            raise ClientError(f"properties take {len(text.encode())} bytes, the limit is {PROPERTIES_BYTES_MAX}")
        return orjson.dumps(text)
    except (UnicodeEncodeError, orjson.JSONEncodeError) as error:
        raise ClientError(f"properties are not valid text: {error}") from error


def batch_member(body: bytes, flag: int, properties: Mapping[str, str]) -> bytes:
    """One message in the body of a SEND_BATCH_MESSAGE request.

    Raises:
        ClientError: its properties cannot be encoded.
    """
    try:
        text = properties_text(properties).encode()
    except UnicodeEncodeError as error:
        raise ClientError(f"properties are not valid text: {error}") from error
    if len(text) > PROPERTIES_BYTES_MAX:
        raise ClientError(f"properties take {len(text)} bytes, the limit is {PROPERTIES_BYTES_MAX}")
    head = _BATCH_HEAD.pack(_ITEM_BYTES + len(body) + len(text), 0, 0, flag, len(body))
    return b"".join((head, body, _SHORT.pack(len(text)), text))


def send_answers(batch: FrameBatch) -> list[SendAnswer | None]:
    """What all frames of a read say of messages that were sent, read when the first is asked for.

    None for frames that are something else, and for answers that only ``FrameBatch.command`` can read.
    """
    if batch.send_answers is None:
        batch.send_answers = read_send_answers(batch.source, batch.table, batch.count)
    return batch.send_answers
