"""Writes queue offsets into a message's properties, for inner batches and light queues.

RocketMQ 5.3.3, ``BatchConsumeQueue#assignQueueOffset`` and ``LmqDispatch``. Only appends of single messages need this,
not ``append_rows``.
"""

from __future__ import annotations

from collections.abc import Mapping

from rucola.common.message import StoreMessage
from rucola.common.message_const import (
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    INNER_NUM,
    PROPERTY_SEPARATOR,
    WAIT,
)
from rucola.common.numbers import number_in
from rucola.common.sysflag import MessageSysFlag
from rucola.formats.batch_consume_queue import BATCH_SIZE_MAX
from rucola.formats.light_queue import allows_light_queues, is_lite, light_queue_names
from rucola.formats.properties import decode_properties, java_order
from rucola.store.queue.consume_queue_store import QUEUE_ID_MAX, ConsumeQueueStore

_INNER_NUM = f"{INNER_NUM}\x01".encode()
_INNER_MULTI_DISPATCH = f"{INNER_MULTI_DISPATCH}\x01".encode()
_INNER_BATCH = int(MessageSysFlag.INNER_BATCH)


class OffsetAssigner:
    """Assigns queue offsets to inner batches and to messages with light queues.

    Args:
        light: whether messages get offsets in light queues (``enableLmq``).
    """

    def __init__(self, queues: ConsumeQueueStore, light: bool) -> None:
        self._queues = queues
        self._light = light

    def legal(self, message: StoreMessage) -> bool:
        """Whether the message may be stored: an inner batch must state its number of messages and belong to a queue of
        a BatchCQ topic; any other message must not have the property ``INNER_NUM``.
        """
        if not message.sys_flag & _INNER_BATCH:
            return _INNER_NUM not in message.properties or INNER_NUM not in decode_properties(message.properties)
        return (
            self._queues.factory.is_batch(message.topic)
            and 0 <= message.queue_id < QUEUE_ID_MAX
            and batch_size(message) > 0
        )

    def concerns(self, message: StoreMessage) -> bool:
        """Whether the message needs additional properties."""
        if message.sys_flag & _INNER_BATCH:
            return True
        return self._light and _INNER_MULTI_DISPATCH in message.properties and allows_light_queues(message.topic)

    def properties(self, message: StoreMessage, text: bytes) -> bytes:
        """Returns the property text with the offsets that the message will have."""
        values = decode_properties(text)
        if message.sys_flag & _INNER_BATCH:
            values[INNER_BASE] = str(self._next(message.topic, message.queue_id))
        names = self._names(message.topic, values)
        if names:
            taken = [str(self._next(name)) if name is not None else "" for name in names]
            values[INNER_MULTI_QUEUE_OFFSET] = ",".join(taken)
            if WAIT in values:
                values[WAIT] = values.pop(WAIT)  # ``WAIT`` becomes the last in its ``HashMap`` bucket, as in RocketMQ
        ordered = java_order(values.items(), message.properties_capacity)
        return "".join(f"{name}\x01{value}{PROPERTY_SEPARATOR}" for name, value in ordered.items()).encode()

    def stored(self, message: StoreMessage) -> int:
        """Updates the next offsets after an append, which has already advanced the queue's next offset by one.
        Advances this offset further by the number of the other messages in an inner batch, and the next offset of each
        light queue by one.

        Returns:
            The number of messages in the batch after the first one; 0 if the message is not a batch.
        """
        more = 0
        if message.sys_flag & _INNER_BATCH:
            offsets = self._queues.next_offsets(message.topic, message.queue_id + 1)
            more = batch_size(message) - 1
            offsets[message.queue_id] += more
        names = self._names(message.topic, decode_properties(message.properties))
        for name in dict.fromkeys(names):
            if name is None:
                continue
            if self._queues.lite is not None and is_lite(name):
                self._queues.lite.appended(name)
            else:
                self._queues.next_offsets(name)[0] += 1
        return more

    def _names(self, topic: bytes, values: Mapping[str, str]) -> list[bytes | None]:
        if not self._light or not allows_light_queues(topic):
            return []
        return light_queue_names(values.get(INNER_MULTI_DISPATCH, ""))

    def _next(self, topic: bytes, queue_id: int = 0) -> int:
        if self._queues.lite is not None and is_lite(topic):
            return self._queues.lite.next_offset(topic)
        return self._queues.next_offsets(topic, queue_id + 1)[queue_id]


def batch_size(message: StoreMessage) -> int:
    """Returns the number of messages in an inner batch; 0 if the message does not state it."""
    text = decode_properties(message.properties).get(INNER_NUM, "")
    return number_in(text, 1, BATCH_SIZE_MAX) or 0
