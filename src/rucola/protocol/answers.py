"""Writes the responses to the sends of one socket read, and the response to one pull up to its body. No
``RemotingCommand`` is made for them, except for a pull response with a binary header.
"""

from __future__ import annotations

from array import array
from typing import Protocol

from rucola.protocol import header_binary
from rucola.protocol._answer_cy import encode_send_answers
from rucola.protocol.codes import PROTOCOL_VERSION, LanguageCode
from rucola.protocol.command import BINARY, FLAG_RESPONSE, RemotingCommand, frame_prefix

_FIRST_BYTES = 16 * 1024
_LANGUAGE = LanguageCode.PYTHON
_JSON_TAIL = f',"serializeTypeCurrentRPC":"JSON","version":{PROTOCOL_VERSION}}}'.encode()
_JSON_MIDDLE = f'"}},"flag":{FLAG_RESPONSE},"language":"{_LANGUAGE.name}","opaque":'.encode()
_PULL_MIDDLE, _PULL_TAIL = _JSON_MIDDLE.decode(), _JSON_TAIL.decode()


class SendAnswers:
    """Responses to stored sends, with the fields of ``SendMessageResponseHeader`` of RocketMQ 5.3.3.

    Args:
        store_host: address of the broker in record form (``common.hosts``), 8 or 20 bytes; a part of ``msgId``.
        region: ``regionId`` of the broker.
        trace_on: ``traceOn`` of the broker.
        code: response code; must mean that the message is stored: 0, 10, 11 or 12.
    """

    __slots__ = ("_constants", "_out")

    def __init__(self, store_host: bytes, region: str, trace_on: bool = True, code: int = 0) -> None:
        fields = {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false", "msgId": store_host.hex().upper()}
        json_header = RemotingCommand(code, ext_fields=fields).encode_header()
        json_head = json_header[: json_header.index(b'"},"flag":')]
        # msgId ends with the 16 digits of the offset, so the length of msgId in the binary block includes them.
        ends_at = 16 + len(fields["msgId"])
        fields["msgId"] = "0" * ends_at
        block = header_binary.encode(header_binary.BinaryHeader(0, 0, 0, 0, 0, None, fields))[21:-ends_at]
        block += store_host.hex().upper().encode()
        binary_head = header_binary.FIXED.pack(code, _LANGUAGE, PROTOCOL_VERSION, 0, 0)[:5]
        self._constants = (json_head, _JSON_MIDDLE, _JSON_TAIL, binary_head, block)
        self._out = bytearray(_FIRST_BYTES)

    def encode(self, source: bytearray, table: array[int], first: int, last: int) -> bytearray:
        """Returns the response frames for rows ``first`` to ``last`` (excluded), back to back; oneway rows have none.

        The rows are of kind SEND, and their messages are stored: UNIQ_KEY, PHYSICAL_OFFSET and QUEUE_OFFSET are filled.
        """
        end = encode_send_answers(source, table, first, last, self._out, 0, *self._constants)
        if end < 0:
            self._out = bytearray(-2 * end)
            end = encode_send_answers(source, table, first, last, self._out, 0, *self._constants)
        return self._out[:end]


class PullOffsets(Protocol):
    """What the header of a response to a pull says about the queue.

    Attributes:
        next_offset: queue offset at which the next pull begins.
        min_offset: smallest queue offset in the queue.
        max_offset: queue offset of the next message to be stored.
        message_bytes: length of the body.
    """

    next_offset: int
    min_offset: int
    max_offset: int
    message_bytes: int


def encode_pull_header(
    opaque: int, serialize: int, code: int, remark: str, offsets: PullOffsets, broker_id: int = 0
) -> bytes:
    """Returns the response to a pull without its body; the body's ``message_bytes`` must follow. The sysFlags of topic
    and group are 0.

    Args:
        opaque: correlation id of the request.
        serialize: serialize type of the request.
        code: 0 with a body; 19, 20 or 21 without a body.
        remark: ASCII name of the ``GetMessageStatus``.
        broker_id: number of the broker to pull from next; 0 for the master.
    """
    if serialize == BINARY:
        fields = {
            "suggestWhichBrokerId": str(broker_id),
            "nextBeginOffset": str(offsets.next_offset),
            "minOffset": str(offsets.min_offset),
            "maxOffset": str(offsets.max_offset),
            "topicSysFlag": "0",
            "groupSysFlag": "0",
        }
        header = RemotingCommand(code, opaque, FLAG_RESPONSE, remark, fields, serialize=BINARY).encode_header()
    else:
        header = (
            f'{{"code":{code},"extFields":{{"groupSysFlag":"0","maxOffset":"{offsets.max_offset}",'
            f'"minOffset":"{offsets.min_offset}","nextBeginOffset":"{offsets.next_offset}",'
            f'"suggestWhichBrokerId":"{broker_id}","topicSysFlag":"0{_PULL_MIDDLE}{opaque},"remark":"{remark}"{_PULL_TAIL}'
        ).encode("ascii")
    return frame_prefix(len(header), offsets.message_bytes, serialize) + header
