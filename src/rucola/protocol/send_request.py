"""The producer's side of sends, without header objects: encodes requests as bytes and reads the results in the
responses.

The parts that do not change from message to message are prepared once per queue. The frames have the same content
as those that ``protocol.command`` encodes; a test compares the decoded frames.

Source: protocol.md 1.2, 1.13, 2.2; RocketMQ 5.3.3, SendMessageRequestHeaderV2 and MessageDecoder.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from rucola.common import message_const
from rucola.common.json_library import orjson
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
    "retry_head",
    "send_answers",
    "unusual_properties",
]

EncodedMessage = tuple[bytes, int, int, bytes]
"""The encoded parts of a message: the body as sent, sysFlag, the application's flag, and the properties as a JSON
string.
"""

PROPERTIES_BYTES_MAX = 32767

_BATCH_HEAD = struct.Struct(">iiiii")  # total, magic 0, crc 0, flag, body length
_SHORT = struct.Struct(">h")
_ITEM_BYTES = 22  # size of a batch member, not counting body and properties
_WAIT = "WAIT\x01true\x02"


def header_head(
    code: RequestCode, group: str, queue: MessageQueue, create_topic_key: str, default_topic_queue_nums: int
) -> bytes:
    """Returns the part of the header that is the same in every send to ``queue``: everything up to the value of
    sysFlag.
    """
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


def retry_head(head: bytes, reconsume_times: str, reconsume_times_max: str | None) -> bytes:
    """Sets the redelivery counts in ``head``, for a message that a consumer failed to consume.

    Args:
        head: result of ``header_head``.
        reconsume_times: number of redeliveries of the message, the next one included.
        reconsume_times_max: number of redeliveries after which the message becomes a dead letter; None for the group's
            own limit.
    """
    fields = {"j": reconsume_times} | ({} if reconsume_times_max is None else {"l": reconsume_times_max})
    return head.replace(b'"j":"0"', orjson.dumps(fields)[1:-1], 1)


def unusual_properties(properties: Mapping[str, str]) -> bytes:
    """Encodes properties that ``encode_properties`` does not handle.

    Raises:
        ClientError: the properties cannot be sent.
    """
    text = properties_text(properties)
    if message_const.WAIT not in properties:
        text += _WAIT  # every message from RocketMQ's clients has this property
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ClientError(_problem(properties)) from None
    return properties_json(text)


def properties_text(properties: Mapping[str, str]) -> str:
    """Returns the properties as one string: ``name U+0001 value U+0002`` for each property.

    Raises:
        ClientError: a name or value is not a string, is empty or contains a separator. Readers ignore a property
            without a value, so it would be lost.
    """
    count = len(properties)
    try:
        text = "\x02".join(map("\x01".join, properties.items())) + "\x02" if count else ""
    except TypeError:
        raise ClientError(_problem(properties)) from None
    if text.count("\x01") != count or text.count("\x02") != count or "\x01\x02" in text or "" in properties:
        raise ClientError(_problem(properties))
    return text


def _problem(properties: Mapping[str, str]) -> str:
    """Returns the error text for the first property that cannot be sent."""
    pairs: Iterable[tuple[object, object]] = properties.items()
    for name, value in pairs:
        for part, text in (("name", name), ("value", value)):
            if not isinstance(text, str):
                return f"property {name!r}: its {part} must be a str, not {type(text).__name__} ({text!r})"
            if not text:
                return f"property {name!r}: its {part} is empty; names and values must not be empty"
            if "\x01" in text or "\x02" in text:
                return f"property {name!r}: its {part} must not hold U+0001 or U+0002: {text!r}"
            if any("\ud800" <= character <= "\udfff" for character in text):
                return f"property {name!r}: its {part} is not valid text, because it holds a lone surrogate: {text!r}"
    raise AssertionError("unreachable: one of the properties cannot be sent")


def properties_json(text: str) -> bytes:
    """Returns the properties text, which must be valid text, as a JSON string.

    Raises:
        ClientError: the text is longer than 32,767 bytes.
    """
    if len(text) * 4 > PROPERTIES_BYTES_MAX and len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise ClientError(f"properties take {len(text.encode())} bytes, the limit is {PROPERTIES_BYTES_MAX}")
    return orjson.dumps(text)


def batch_member(body: bytes, flag: int, properties: Mapping[str, str]) -> bytes:
    """Encodes one message for the body of a SEND_BATCH_MESSAGE request.

    Raises:
        ClientError: the message's properties cannot be encoded.
    """
    try:
        text = properties_text(properties).encode()
    except UnicodeEncodeError:
        raise ClientError(_problem(properties)) from None
    if len(text) > PROPERTIES_BYTES_MAX:
        raise ClientError(f"properties take {len(text)} bytes, the limit is {PROPERTIES_BYTES_MAX}")
    head = _BATCH_HEAD.pack(_ITEM_BYTES + len(body) + len(text), 0, 0, flag, len(body))
    return b"".join((head, body, _SHORT.pack(len(text)), text))


def send_answers(batch: FrameBatch) -> list[SendAnswer | None]:
    """Returns one item per frame of ``batch``: the send result in the frame. The first call decodes all frames.

    The item is None if the frame has no send result, or if only ``FrameBatch.command`` can read the frame.
    """
    if batch.send_answers is not None:
        return batch.send_answers
    return batch.keep_answers(read_send_answers(batch.source, batch.table, batch.count))
