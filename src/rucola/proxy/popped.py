"""The answer to a pop, and the responses that a consumer gets for its messages. Pure: it may run in a thread.

A record goes through a kernel to the bytes of its response; records that need more take the general path. Messages of
which the consumer gets nothing, because their tag only has the same hash, or because they were delivered too often, are
named apart.

Source: RocketMQ 5.3.3, ``PopMessageResultFilterImpl``, ``ConsumerProcessor#popMessage``.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from enum import Enum, auto
from typing import Final, NamedTuple

from rucola.common import message_const as const
from rucola.common.columns import ROW_WIDTH, WalkStop, new_table
from rucola.common.kernel_columns import (
    RECORD_BODY_LEN,
    RECORD_BODY_POS,
    RECORD_PHYSICAL_OFFSET,
    RECORD_QUEUE_ID,
    RECORD_QUEUE_OFFSET,
    RECORD_RECONSUME_TIMES,
    RECORD_SIZE,
    RECORD_TAGS_LEN,
    RECORD_TAGS_POS,
    RECORD_UNIQ_KEY_LEN,
    RECORD_UNIQ_KEY_POS,
)
from rucola.common.message import MessageExt
from rucola.common.numbers import INT32_MAX, number_in
from rucola.errors import FormatError, UnreadableBodyError
from rucola.formats.checksum import crc32
from rucola.formats.message import message_from_row, walk_records
from rucola.protocol.headers.pop import PopMessageResponseHeader
from rucola.proxy import messages
from rucola.proxy._delivery_cy import delivery_bytes, write_delivery
from rucola.proxy.delivery import delivered_body, delivered_message
from rucola.proxy.receipt import ReceiptHandle

ROWS_MAX: Final = 64


class Fate(Enum):
    """What happens to a popped message."""

    DELIVER = auto()
    ACKNOWLEDGE = auto()
    """The consumer does not want it."""
    GIVE_UP = auto()
    """It was delivered as often as its group allows, or it cannot be read."""


class PoppedMessage(NamedTuple):
    """A popped message.

    Attributes:
        fate: what happens to it.
        handle: its receipt handle.
        message_id: its id.
        reconsume_times: deliveries before this one.
        response: for a message to deliver, the bytes of its ``ReceiveMessageResponse``.
        lite_topic: its lite topic; empty without one.
    """

    fate: Fate
    handle: str
    message_id: str
    reconsume_times: int
    response: bytes = b""
    lite_topic: str = ""


class ReceiveTerms(NamedTuple):
    """What a consumer has asked for.

    Attributes:
        topic: the topic.
        broker_name: the broker that was asked.
        tags: tags of the messages that it wants; empty for all.
        attempts_max: how often a message is delivered.
    """

    topic: str
    broker_name: str
    tags: frozenset[str]
    attempts_max: int


def popped_messages(header: PopMessageResponseHeader, records: bytes, terms: ReceiveTerms) -> list[PoppedMessage]:
    """Returns the messages of an answer, in their order.

    Raises:
        FormatError: the answer is not readable.
    """
    view = memoryview(records)
    table = new_table(ROWS_MAX)
    places = _Places(header)
    result: list[PoppedMessage] = []
    position = 0
    while True:
        rows, position, stop = walk_records(view, view, position, len(view), 0, table, ROWS_MAX, crc32, 3)
        result += [_popped(view, table, row, places, terms) for row in range(rows)]
        if stop == WalkStop.LIMIT:
            return result
        if stop != WalkStop.TABLE_FULL:
            raise FormatError("answer to a pop", position, "a whole, undamaged record", "another one")


class _Places:
    """Where each queue of an answer begins, and how often its messages were delivered before.

    Attributes:
        counts: deliveries before this one, for messages popped in order; empty for others.
    """

    def __init__(self, header: PopMessageResponseHeader) -> None:
        self._starts = dict(_pairs(header.start_offset_info))
        self.counts = dict(_pairs(header.order_count_info))
        self._tail = f"{header.pop_time} {header.invisible_time} {header.revive_qid} 0"

    def handle(self, broker_name: str, queue_id: int, queue_offset: int, physical_offset: int) -> str | None:
        """The receipt handle of a message of the topic itself; None if the answer has none of this queue."""
        start = self._starts.get(f"0 {queue_id}")
        if start is None:
            return None
        return f"{start} {self._tail} {broker_name} {queue_id} {queue_offset} {physical_offset}"

    def reconsume_times(self, queue_id: int, queue_offset: int) -> int | None:
        """Deliveries before this one of a message that is popped in order; None for the number in the record."""
        text = self.counts.get(f"0 qo{queue_id}%{queue_offset}", self.counts.get(f"0 {queue_id}", ""))
        return number_in(text, 1, INT32_MAX)


def _pairs(text: str | None) -> Iterator[tuple[str, str]]:
    for entry in (text or "").split(";"):
        place, _, value = entry.rpartition(" ")
        yield place, value


def _popped(view: memoryview, table: array[int], row: int, places: _Places, terms: ReceiveTerms) -> PoppedMessage:
    base = row * ROW_WIDTH
    queue_id, queue_offset = table[base + RECORD_QUEUE_ID], table[base + RECORD_QUEUE_OFFSET]
    reconsume_times = table[base + RECORD_RECONSUME_TIMES]
    if places.counts:
        reconsume_times = places.reconsume_times(queue_id, queue_offset) or reconsume_times
    fate = Fate.DELIVER
    if terms.tags or reconsume_times >= terms.attempts_max:
        fate = fate_of(_text(view, table, base + RECORD_TAGS_POS, base + RECORD_TAGS_LEN), reconsume_times, terms)
    handle = places.handle(terms.broker_name, queue_id, queue_offset, table[base + RECORD_PHYSICAL_OFFSET])
    if fate is Fate.DELIVER and handle is not None:
        scratch = bytearray(delivery_bytes(table[base + RECORD_SIZE], len(handle)))
        body = table[base + RECORD_BODY_POS]
        digest = hashlib.md5(view[body : body + table[base + RECORD_BODY_LEN]], usedforsecurity=False)
        checksum = digest.hexdigest().upper().encode()
        start = write_delivery(view, table, row, scratch, handle.encode(), checksum, reconsume_times)
        if start >= 0:
            message_id = _text(view, table, base + RECORD_UNIQ_KEY_POS, base + RECORD_UNIQ_KEY_LEN)
            return PoppedMessage(fate, handle, message_id, reconsume_times, bytes(memoryview(scratch)[start:]))
    message = message_from_row(view, table, row, unpack=False)
    message.reconsume_times = reconsume_times
    return _general(message, handle, fate, terms.topic)


def _general(message: MessageExt, handle: str | None, fate: Fate, topic: str) -> PoppedMessage:
    """A message that the kernel does not take. One of a retry topic brings its handle."""
    own = message.properties.get(const.POP_CK)
    if own is not None:
        handle = ReceiptHandle.decode(own)._replace(physical_offset=message.physical_offset).encode()
    elif handle is None:
        raise FormatError("startOffsetInfo", 0, f"an entry for queue {message.queue_id}", "none")
    message.properties[const.POP_CK] = handle.rpartition(" ")[0]  # without the place, which the delivery adds
    known = fate, handle, message.msg_id, message.reconsume_times
    if fate is not Fate.DELIVER:
        return PoppedMessage(*known)
    try:
        delivered = delivered_message(message, delivered_body(message), topic)
    except UnreadableBodyError:
        return PoppedMessage(Fate.GIVE_UP, *known[1:])
    return PoppedMessage(*known, messages.ReceiveMessageResponse(message=delivered).SerializeToString())


def fate_of(tag: str, reconsume_times: int, terms: ReceiveTerms) -> Fate:
    """What happens to a message with this tag that was delivered so often before."""
    if terms.tags and tag not in terms.tags:
        return Fate.ACKNOWLEDGE
    return Fate.GIVE_UP if reconsume_times >= terms.attempts_max else Fate.DELIVER


def _text(view: memoryview, table: array[int], position: int, length: int) -> str:
    start = table[position]
    return str(view[start : start + max(table[length], 0)], "utf-8", "replace")
