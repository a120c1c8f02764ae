"""Stores a batch to a topic of type BatchCQ as one record (RocketMQ 5.3.3, ``sendBatchMessage`` with a UNIQ_KEY).

The record's body is the body of the request, and consumers split it into messages. Its flags mark it as a batch, and
its property ``INNER_NUM`` holds the number of messages. The store adds ``INNER_BASE``, the queue offset of the first
message.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from rucola.broker.property_gate import admit
from rucola.broker.schedule.delay_rewrite import delay_level
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.common.message import StoreMessage
from rucola.common.message_const import INNER_BASE, INNER_NUM, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import BrokerError
from rucola.formats.properties import decode_properties, encode_properties
from rucola.protocol.codes import ResponseCode

_FLAGS = int(MessageSysFlag.NEED_UNWRAP | MessageSysFlag.INNER_BATCH)
_WRITTEN = (INNER_NUM, INNER_BASE)
"""Properties that the broker sets; their values in the request are ignored."""
_TIMES = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)


def inner_batch(
    source: bytearray,
    table: array[int],
    row: int,
    count: int,
    topic: bytes,
    broker_properties: Mapping[str, str],
    born_host: bytes,
) -> StoreMessage:
    """The record of batch ``row``, which holds ``count`` messages.

    Args:
        broker_properties: properties that the broker stores with every message.
        born_host: address of the sender, 8 or 20 bytes.

    Raises:
        BrokerError: MESSAGE_ILLEGAL: the batch has a property that is not allowed in batches.
    """
    base = row * ROW_WIDTH

    def text(position: FrameColumn, length: FrameColumn) -> bytes:
        start = table[base + position]
        return bytes(source[start : start + max(table[base + length], 0)])

    properties = decode_properties(text(FrameColumn.PROPERTIES_POS, FrameColumn.PROPERTIES_LEN))
    for name in _WRITTEN:
        properties.pop(name, None)
    admit(properties, str(topic, "utf-8", "replace"))
    if delay_level(properties) > 0 or any(name in properties for name in _TIMES):
        raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, "messages of a batch cannot have a delay")
    properties |= {**broker_properties, INNER_NUM: str(count)}
    return StoreMessage(
        topic,
        table[base + FrameColumn.QUEUE_ID],
        text(FrameColumn.BODY_POS, FrameColumn.BODY_LEN),
        encode_properties(properties),
        table[base + FrameColumn.BORN_TIMESTAMP],
        born_host,
        table[base + FrameColumn.MESSAGE_FLAG],
        table[base + FrameColumn.SYS_FLAG] | _FLAGS,
        table[base + FrameColumn.RECONSUME_TIMES],
    )
