"""Receipt handles of popped messages. An acknowledgement returns the receipt handle of its message to the broker.

A receipt handle has eight fields, separated by spaces: queue offset at which the pop started, time of the pop in ms,
invisible time in ms, revive queue, kind of topic (0 normal, 1 and 2 the group's retry topics), broker name, queue id,
queue offset of the message. Property POP_CK of the message holds the receipt handle. Source: RocketMQ 5.3.3,
``ExtraInfoUtil``, ``MQClientAPIImpl#processPopResponse``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rucola.common import message_const
from rucola.common.key_builder import RETRY_GROUP_TOPIC_PREFIX
from rucola.common.message import MessageExt
from rucola.errors import ClientError, FormatError
from rucola.protocol.headers.pop import ChangeInvisibleTimeResponseHeader, PopMessageResponseHeader

_WORDS = 8


class PopReceipt(NamedTuple):
    """The parts of a receipt handle."""

    start_offset: str
    pop_time: str
    invisible_time: str
    revive_queue: str
    topic_kind: str
    broker_name: str
    queue_id: int
    queue_offset: int

    @classmethod
    def of(cls, message: MessageExt) -> PopReceipt:
        """Parses the receipt handle of ``message``.

        Raises:
            ClientError: the message has none, because it was not received by a simple consumer.
        """
        words = message.properties.get(message_const.POP_CK, "").split(" ")
        if len(words) != _WORDS or not (words[6].isdecimal() and words[7].isdecimal()):
            raise ClientError(f"message {message.msg_id} has no receipt: it was not received by a simple consumer")
        return cls(words[0], words[1], words[2], words[3], words[4], words[5], int(words[6]), int(words[7]))

    @property
    def text(self) -> str:
        """The receipt handle in the text form that requests contain."""
        return " ".join(map(str, self))

    def real_topic(self, topic: str, group: str) -> str:
        """The topic that holds a message of ``topic``: the topic itself or a retry topic."""
        separator = {"1": "_", "2": "+"}.get(self.topic_kind)
        return topic if separator is None else f"{RETRY_GROUP_TOPIC_PREFIX}{group}{separator}{topic}"

    def changed(self, header: ChangeInvisibleTimeResponseHeader) -> PopReceipt:
        """Returns the receipt handle after a change of the invisible time.

        The change moves the message out of the checkpoint of its pop, into a checkpoint of its own, which starts at the
        message. A receipt with the start of the pop would name no checkpoint. Source: RocketMQ 5.3.3,
        ``ChangeInvisibleTimeProcessor#appendCheckPoint``, ``MQClientAPIImpl#changeInvisibleTimeAsync``.
        """
        return self._replace(
            start_offset=str(self.queue_offset),
            pop_time=str(header.pop_time),
            invisible_time=str(header.invisible_time),
            revive_queue=str(header.revive_qid),
        )


def give_receipts(messages: Sequence[MessageExt], topic: str, header: PopMessageResponseHeader) -> None:
    """Sets the receipt handle of each popped message. The broker has already set it for messages from retry topics.

    Args:
        messages: messages of one response.
        topic: the popped topic.
        header: the header of the response.

    Raises:
        FormatError: the response lacks the start offset of a message's queue.
    """
    starts: dict[str, str] = {}
    for entry in (header.start_offset_info or "").split(";"):
        place, _, start = entry.rpartition(" ")
        starts[place] = start
    counts = dict(entry.rpartition(" ")[::2] for entry in (header.order_count_info or "").split(";"))
    for message in messages:
        properties = message.properties
        if message_const.POP_CK not in properties:
            place = f"0 {message.queue_id}"
            if place not in starts:
                raise FormatError("startOffsetInfo", 0, f"an entry for queue {message.queue_id}", repr(starts))
            receipt = PopReceipt(
                starts[place],
                str(header.pop_time),
                str(header.invisible_time),
                str(header.revive_qid),
                "0",
                message.broker_name,
                message.queue_id,
                message.queue_offset,
            )
            properties[message_const.POP_CK] = receipt.text
            count = counts.get(f"0 qo{message.queue_id}%{message.queue_offset}", counts.get(place, ""))
            if count.isdecimal() and int(count) > 0:
                message.reconsume_times = int(count)
        properties.setdefault(message_const.FIRST_POP_TIME, str(header.pop_time))
        message.topic = topic
