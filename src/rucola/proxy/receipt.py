"""What clients hand back: the receipt handle of a received message, and the id of a transaction.

Both hold what the door needs to find the message again, so that any door of the cluster can do it and none has to
remember.

Source: RocketMQ 5.3.3, ``ReceiptHandle``.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, NamedTuple

from rucola.common.numbers import INT32_MAX, INT64_MAX, number_in
from rucola.common.pop_topics import ORDER_REVIVE_QUEUE, TOPIC_KINDS, real_topic
from rucola.formats.pop import TIME_MS_MAX
from rucola.proxy import messages
from rucola.proxy.names import is_lite_topic
from rucola.proxy.refusal import RefusedError

NO_PHYSICAL_OFFSET: Final = -1
_SHOWN_CHARACTERS = 64
_TRANSACTION_MARK = "T1."
_USUAL: Final = re.compile(
    r"(\d{1,18}) (\d{1,18}) (\d{1,18}) (\d{1,9}) ([012]) ([^ ]+) (\d{1,9}) (\d{1,18})"
    r"(?: (\d{1,18})(?: ([\w-]{1,127}))?)?",
    re.ASCII,
)
"""A receipt handle whose numbers are certainly within their limits."""
_NO_PLACE: Final = str(NO_PHYSICAL_OFFSET)


class ReceiptHandle(NamedTuple):
    """The receipt handle of a popped message.

    Attributes:
        start_offset: queue offset at which the pop began.
        pop_time_ms: time of the pop.
        invisible_ms: how long the message is hidden from other consumers after the pop.
        revive_queue_id: queue of the revive topic.
        topic_kind: ``"0"`` the topic itself, ``"1"`` and ``"2"`` the group's retry topics.
        broker_name: the broker that has the message.
        queue_id: its queue.
        queue_offset: its offset in the queue.
        physical_offset: its place in the commit log; -1 in handles that remoting clients hold.
        lite_topic: its lite topic, to which queue id and offset belong; empty without one. RocketMQ's handles do not
            have it, and its proxies read past it.
    """

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue_id: int
    topic_kind: str
    broker_name: str
    queue_id: int
    queue_offset: int
    physical_offset: int = NO_PHYSICAL_OFFSET
    lite_topic: str = ""

    @property
    def extra_info(self) -> str:
        """The handle without the place in the commit log and the lite topic, as brokers know it."""
        return (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {self.revive_queue_id} {self.topic_kind} "
            f"{self.broker_name} {self.queue_id} {self.queue_offset}"
        )

    @property
    def is_ordered(self) -> bool:
        """Whether the message was popped in order."""
        return self.revive_queue_id == ORDER_REVIVE_QUEUE

    def is_expired(self, now_ms: int) -> bool:
        """Whether the message may have been given to another consumer."""
        return self.pop_time_ms + self.invisible_ms <= now_ms

    def real_topic(self, topic: str, group: str) -> str:
        """The topic that holds a message of ``topic``: the topic itself or a retry topic of ``group``."""
        return real_topic(topic, group, self.topic_kind)

    def of_lite_topic(self, lite_topic: str) -> ReceiptHandle:
        """The handle of a message that a client says to be of a lite topic.

        Raises:
            RefusedError: ``INVALID_RECEIPT_HANDLE``: there is no such lite topic.
        """
        if not is_lite_topic(lite_topic):
            raise _invalid_handle("the lite topic has a name that no lite topic has", self.encode())
        return self._replace(lite_topic=lite_topic)

    def encode(self) -> str:
        """The text for clients; without a physical offset, that of brokers."""
        if self.physical_offset == NO_PHYSICAL_OFFSET:
            return self.extra_info
        lite_topic = f" {self.lite_topic}" if self.lite_topic else ""
        return f"{self.extra_info} {self.physical_offset}{lite_topic}"

    @classmethod
    def decode(cls, text: str) -> ReceiptHandle:
        """Parses the text of eight to ten fields.

        Raises:
            RefusedError: ``INVALID_RECEIPT_HANDLE``: the text is not a receipt handle. The refusal names the field.
        """
        if (usual := _USUAL.fullmatch(text)) is not None:
            start, popped, hidden, revive_queue, kind, name, queue, offset, physical, _ = usual.groups(_NO_PLACE)
            return cls(
                int(start),
                int(popped),
                int(hidden),
                int(revive_queue),
                kind,
                name,
                int(queue),
                int(offset),
                int(physical),
                usual[10] or "",
            )
        words = text.split(" ")
        if not 8 <= len(words) <= 10:
            raise _invalid_handle(f"{len(words)} fields instead of 8 to 10", text)
        if words[4] not in TOPIC_KINDS:
            raise _invalid_handle("the kind of topic is not 0, 1 or 2", text)
        if not words[5]:
            raise _invalid_handle("the broker has no name", text)
        return cls(
            _field("start offset", words[0], INT64_MAX, text),
            _field("pop time", words[1], TIME_MS_MAX, text),
            _field("invisible time", words[2], TIME_MS_MAX, text),
            _field("revive queue", words[3], INT32_MAX, text),
            words[4],
            words[5],
            _field("queue", words[6], INT32_MAX, text),
            _field("queue offset", words[7], INT64_MAX, text),
            _field("physical offset", words[8], INT64_MAX, text) if len(words) > 8 else NO_PHYSICAL_OFFSET,
            _lite_topic(words[9], text) if len(words) > 9 else "",
        )


class TransactionId(NamedTuple):
    """The id of a transaction, which a producer gets for a half message and hands back to end the transaction.

    Attributes:
        unique_key: unique key of the half message.
        broker_name: the broker that has it; empty if the client handed back the unique key alone.
        half_queue_offset: its offset in the queue of half messages; -1 if unknown.
        physical_offset: its place in the commit log; -1 if unknown.
    """

    unique_key: str
    broker_name: str = ""
    half_queue_offset: int = -1
    physical_offset: int = NO_PHYSICAL_OFFSET

    @property
    def is_plain(self) -> bool:
        """Whether only the unique key is known, so that the place of the half message must be remembered."""
        return not self.broker_name

    def encode(self) -> str:
        """The text for clients."""
        if self.is_plain:
            return self.unique_key
        words = f"{self.half_queue_offset} {self.physical_offset} {self.broker_name} {self.unique_key}"
        return _TRANSACTION_MARK + base64.urlsafe_b64encode(words.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> TransactionId:
        """Parses the text; any text without the mark of ``encode`` is a unique key.

        Raises:
            RefusedError: ``INVALID_TRANSACTION_ID``: the text is empty, or has the mark but was not made by ``encode``.
        """
        if not text.strip():
            raise RefusedError(messages.INVALID_TRANSACTION_ID, "the transaction id is empty")
        if not text.startswith(_TRANSACTION_MARK):
            return cls(text)
        code = text[len(_TRANSACTION_MARK) :]
        try:
            packed = base64.b64decode(code + "=" * (-len(code) % 4), altchars=b"-_", validate=True)
            words = packed.decode().split(" ", 3)
        except (ValueError, binascii.Error):
            words = []
        if len(words) == 4 and words[2] and words[3]:
            half_queue_offset, physical_offset = (number_in(word, 0, INT64_MAX) for word in words[:2])
            if half_queue_offset is not None and physical_offset is not None:
                return cls(words[3], words[2], half_queue_offset, physical_offset)
        shown = ascii(text[:_SHOWN_CHARACTERS])
        raise RefusedError(messages.INVALID_TRANSACTION_ID, f"transaction id {shown} was not given by this server")


def _field(name: str, word: str, highest: int, text: str) -> int:
    value = number_in(word, 0, highest)
    if value is None:
        raise _invalid_handle(f"the {name} is not a number from 0 to {highest}", text)
    return value


def _lite_topic(word: str, text: str) -> str:
    if not is_lite_topic(word):
        raise _invalid_handle("the lite topic has a name that no lite topic has", text)
    return word


def _invalid_handle(problem: str, text: str) -> RefusedError:
    shown = ascii(text[:_SHOWN_CHARACTERS])
    return RefusedError(messages.INVALID_RECEIPT_HANDLE, f"receipt handle {shown} is invalid: {problem}")
