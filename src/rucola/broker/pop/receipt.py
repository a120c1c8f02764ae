"""Receipts of popped messages (RocketMQ 5.3.3, ``ExtraInfoUtil``; protocol.md 2.9).

A consumer gets a receipt with each popped message. It sends the receipt back to acknowledge the message or to change
the invisible time. A receipt, which clients call extra info, is a text with these fields, separated by spaces: queue
offset at which the pop began, pop time and invisible time in ms, revive queue, kind of the topic, broker, queue, queue
offset of the message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rucola.common.pop_topics import ORDER_REVIVE_QUEUE, topic_kind
from rucola.errors import FormatError
from rucola.formats.pop import PopKey

_RECEIPT = re.compile("([0-9]{1,18}) " * 4 + "[^ ]* ([^ ]*)(?: .*)?", re.DOTALL)


class Receipt(NamedTuple):
    """A receipt."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    broker_name: str

    @property
    def ordered(self) -> bool:
        """Whether the message was popped in order."""
        return self.revive_queue == ORDER_REVIVE_QUEUE

    def key(self, topic: str, group: str, queue_id: int) -> PopKey:
        """The fields that the receipt shares with the checkpoint of the pop."""
        return PopKey(topic, group, queue_id, self.start_offset, self.pop_time_ms, self.broker_name)

    @classmethod
    def decode(cls, text: str) -> Receipt:
        """Parses the text.

        Raises:
            FormatError: the text is not a receipt.
        """
        found = _RECEIPT.fullmatch(text)
        if found is None:
            raise FormatError("extraInfo", 0, "the receipt of a popped message", text[:64])
        start_offset, pop_time_ms, invisible_ms, revive_queue, broker_name = found.groups()
        return cls(int(start_offset), int(pop_time_ms), int(invisible_ms), int(revive_queue), broker_name)

    def encode(self, topic: str, queue_id: int, queue_offset: int) -> str:
        """The text for a message that lies in ``topic``."""
        return (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue} {topic_kind(topic)} "
            f"{self.broker_name} {queue_id} {queue_offset}"
        )


class PopInfo:
    """The three texts in a response that describe its messages."""

    def __init__(self) -> None:
        self._starts: list[str] = []
        self._offsets: list[str] = []
        self._order_counts: list[str] = []

    def add(self, topic: str, queue_id: int, start_offset: int, queue_offsets: Sequence[int]) -> None:
        """Adds messages of a queue, in the order in which they are in the body."""
        head = f"{topic_kind(topic)} {queue_id}"
        self._starts.append(f"{head} {start_offset}")
        self._offsets.append(f"{head} {','.join(map(str, queue_offsets))}")

    def add_order_count(self, topic: str, queue_id: int, count: int, queue_offset: int | None = None) -> None:
        """Sets the number of earlier deliveries of the message at ``queue_offset``. Without an offset, ``count`` is the
        smallest such number among the messages of the queue.
        """
        queue = f"{queue_id}" if queue_offset is None else f"qo{queue_id}%{queue_offset}"
        self._order_counts.append(f"{topic_kind(topic)} {queue} {count}")

    @property
    def start_offsets(self) -> str:
        """``startOffsetInfo``."""
        return ";".join(self._starts)

    @property
    def message_offsets(self) -> str:
        """``msgOffsetInfo``."""
        return ";".join(self._offsets)

    @property
    def order_counts(self) -> str:
        """``orderCountInfo``."""
        return ";".join(self._order_counts)
