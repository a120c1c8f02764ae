"""Encodes the responses to sends. A Cython kernel encodes the responses to a whole run together. Refusals, and the
responses to batches and to messages that can be recalled, are encoded one by one.
"""

from __future__ import annotations

import sys
from array import array

from rucola.broker.config import BrokerConfig
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.errors import BrokerError
from rucola.protocol.answers import SendAnswers
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand, decode_frame
from rucola.remoting.server import Channel


class SendResponses:
    """Encodes responses for producers. ``store_host`` is part of every message id."""

    def __init__(self, config: BrokerConfig, store_host: bytes) -> None:
        self._fields = {"MSG_REGION": config.region_id, "TRACE_ON": "true" if config.trace_on else "false"}
        self._host_text = store_host.hex().upper()
        self.encode = SendAnswers(store_host, config.region_id, config.trace_on).encode
        """``(source, table, first, last) -> bytearray``: the responses to stored rows."""

    def encode_batch(self, source: bytearray, table: array[int], row: int, members: array[int], count: int) -> bytes:
        """The response to batch ``row`` whose ``count`` members were stored; empty for a oneway request."""
        base = row * ROW_WIDTH
        if table[base + FrameColumn.FLAG] & FLAG_ONEWAY:
            return b""
        offsets = members[FrameColumn.PHYSICAL_OFFSET : count * ROW_WIDTH : ROW_WIDTH]
        if sys.byteorder == "little":
            offsets.byteswap()
        hexes = offsets.tobytes().hex(",", offsets.itemsize).upper()
        fields = {
            **self._fields,
            "msgId": self._host_text + hexes.replace(",", f",{self._host_text}"),
            "queueId": str(members[FrameColumn.QUEUE_ID]),
            "queueOffset": str(members[FrameColumn.QUEUE_OFFSET]),
        }
        key_length = table[base + FrameColumn.UNIQ_KEY_LEN]
        if key_length > 0:
            position = table[base + FrameColumn.UNIQ_KEY_POS]
            fields["transactionId"] = str(source[position : position + key_length], "utf-8", "replace")
        return self._answer(table, base, ResponseCode.SUCCESS, "", fields)

    def encode_inner_batch(self, source: bytearray, table: array[int], row: int) -> bytes:
        """The response to batch ``row`` that was stored as one record; empty for a oneway request."""
        base = row * ROW_WIDTH
        if table[base + FrameColumn.FLAG] & FLAG_ONEWAY:
            return b""
        fields = self._stored_fields(source, table, base)
        return self._answer(table, base, ResponseCode.SUCCESS, "", {**fields, "batchUniqId": fields["transactionId"]})

    def encode_recallable(self, source: bytearray, table: array[int], row: int, handle: str) -> bytes:
        """The response to a message that its producer may recall with ``handle``; empty for a oneway request."""
        base = row * ROW_WIDTH
        if table[base + FrameColumn.FLAG] & FLAG_ONEWAY:
            return b""
        fields = self._stored_fields(source, table, base)
        return self._answer(table, base, ResponseCode.SUCCESS, "", {**fields, "recallHandle": handle})

    def refuse(self, channel: Channel, table: array[int], row: int, refusal: BrokerError) -> None:
        """Tells the producer of row ``row`` why the row was not stored; a oneway request gets no response."""
        base = row * ROW_WIDTH
        if not table[base + FrameColumn.FLAG] & FLAG_ONEWAY:
            channel.send(self._answer(table, base, refusal.code, refusal.remark, self._fields))

    def _stored_fields(self, source: bytearray, table: array[int], base: int) -> dict[str, str]:
        """The fields of a response about one record."""
        key = table[base + FrameColumn.UNIQ_KEY_POS]
        return {
            **self._fields,
            "msgId": f"{self._host_text}{table[base + FrameColumn.PHYSICAL_OFFSET]:016X}",
            "queueId": str(table[base + FrameColumn.QUEUE_ID]),
            "queueOffset": str(table[base + FrameColumn.QUEUE_OFFSET]),
            "transactionId": str(source[key : key + table[base + FrameColumn.UNIQ_KEY_LEN]], "utf-8", "replace"),
        }

    @staticmethod
    def _answer(table: array[int], base: int, code: int, remark: str, fields: dict[str, str]) -> bytes:
        opaque, serialize = table[base + FrameColumn.OPAQUE], table[base + FrameColumn.SERIALIZE]
        return RemotingCommand(code, opaque, FLAG_RESPONSE, remark, fields, serialize=serialize).encode()


def flush_not_confirmed(answers: bytes | bytearray, remark: str) -> bytes:
    """Returns ``answers`` with FLUSH_DISK_TIMEOUT: the messages are stored, but not known to be synced."""
    return not_confirmed(answers, ResponseCode.FLUSH_DISK_TIMEOUT, remark)


def not_confirmed(answers: bytes | bytearray, code: ResponseCode, remark: str) -> bytes:
    """Returns ``answers`` with ``code`` and ``remark``: the messages are stored, but not as safely as was asked for.
    Such responses are rare, so decoding the frames may take time.
    """
    changed = []
    position = 0
    while position < len(answers):
        end = position + 4 + int.from_bytes(answers[position : position + 4], "big")
        command = decode_frame(bytes(answers[position:end]))
        command.code, command.remark = code, remark
        changed.append(command.encode())
        position = end
    return b"".join(changed)
