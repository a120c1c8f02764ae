"""Rows made by the broker: of requests whose header took the plain road, and of messages whose properties it changes.

A made row lives in a one-row table with its own buffer and is then treated like any row the frame scanner filled.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple

from rucola.common.columns import ROW_WIDTH, FrameColumn, FrameKind, new_table
from rucola.common.message_const import CLUSTER, MSG_REGION, POP_CK, TRACE_ON, UNIQ_KEY
from rucola.errors import BrokerError
from rucola.formats.properties import decode_properties, encode_properties
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.send import SendMessageRequestHeader, SendMessageRequestHeaderV2

_WRITTEN_BY_BROKER = (MSG_REGION, TRACE_ON, CLUSTER, POP_CK)
_UNSUPPORTED_PREFIXES = ("TIMER_", "INNER_")
_UNSUPPORTED = frozenset({"DELAY", "TRAN_MSG", "DUP_INFO", "__CRC32#"})


class MadeRow(NamedTuple):
    """One row and the bytes it points into."""

    source: bytearray
    view: memoryview
    table: array[int]


def row_of_command(command: RemotingCommand) -> MadeRow:
    """The row of a send request (10, 310, 320) that came with an unusual header.

    Raises:
        FormatError: a required field is missing or no number.
    """
    v1 = command.code == RequestCode.SEND_MESSAGE
    header = (SendMessageRequestHeader if v1 else SendMessageRequestHeaderV2).from_ext_fields(command.ext_fields)
    table = new_table(1)
    for column, value in (
        (FrameColumn.KIND, FrameKind.BATCH if header.batch else FrameKind.SEND),
        (FrameColumn.CODE, command.code),
        (FrameColumn.OPAQUE, command.opaque),
        (FrameColumn.FLAG, command.flag),
        (FrameColumn.VERSION, command.version),
        (FrameColumn.SERIALIZE, command.serialize),
        (FrameColumn.DEFAULT_TOPIC_QUEUES, header.default_topic_queue_nums),
        (FrameColumn.QUEUE_ID, header.queue_id),
        (FrameColumn.SYS_FLAG, header.sys_flag),
        (FrameColumn.BORN_TIMESTAMP, header.born_timestamp),
        (FrameColumn.MESSAGE_FLAG, header.flag),
        (FrameColumn.RECONSUME_TIMES, header.reconsume_times or 0),
    ):
        table[column] = value
    return _place(
        table,
        {
            FrameColumn.GROUP_POS: header.producer_group.encode(),
            FrameColumn.TOPIC_POS: header.topic.encode(),
            FrameColumn.DEFAULT_TOPIC_POS: header.default_topic.encode(),
            FrameColumn.PROPERTIES_POS: (header.properties or "").encode(),
            FrameColumn.BODY_POS: bytes(command.body),
        },
    )


def rewrite(source: bytearray, table: array[int], row: int, unique_id: Callable[[], str]) -> MadeRow:
    """Row ``row`` with the properties that the broker writes taken out and a UNIQ_KEY, a new one if it has none.

    Raises:
        BrokerError: MESSAGE_ILLEGAL for a property that asks for what this broker does not do.
    """
    base = row * ROW_WIDTH

    def text(position: FrameColumn, length: FrameColumn) -> bytes:
        start = table[base + position]
        return bytes(source[start : start + max(table[base + length], 0)])

    properties = decode_properties(text(FrameColumn.PROPERTIES_POS, FrameColumn.PROPERTIES_LEN))
    for name in properties:
        if name in _UNSUPPORTED or name.startswith(_UNSUPPORTED_PREFIXES):
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL, f"this broker does not serve messages with the property {name}"
            )
    for name in _WRITTEN_BY_BROKER:
        properties.pop(name, None)
    if UNIQ_KEY not in properties:
        properties[UNIQ_KEY] = unique_id()
    made = table[base : base + ROW_WIDTH]
    return _place(
        made,
        {
            FrameColumn.TOPIC_POS: text(FrameColumn.TOPIC_POS, FrameColumn.TOPIC_LEN),
            FrameColumn.PROPERTIES_POS: encode_properties(properties),
            FrameColumn.BODY_POS: text(FrameColumn.BODY_POS, FrameColumn.BODY_LEN),
        },
    )


def _place(table: array[int], texts: dict[FrameColumn, bytes]) -> MadeRow:
    """Put ``texts`` behind each other and their places into the columns; each length column follows its position's."""
    source = bytearray()
    for column, text in texts.items():
        table[column], table[column + 1] = len(source), len(text)
        source += text
    return MadeRow(source, memoryview(source), table)
