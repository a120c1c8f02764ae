"""Receipt handles of popped messages. An acknowledgement returns the receipt handle of its message to the broker.

A receipt handle has eight fields, separated by spaces: queue offset at which the pop started, time of the pop in ms,
invisible time in ms, revive queue, kind of topic (0 normal, 1 and 2 the group's retry topics), broker name, queue id,
queue offset of the message. Property POP_CK of the message holds the receipt handle. Source: RocketMQ 5.3.3,
``ExtraInfoUtil``, ``MQClientAPIImpl#processPopResponse``.
"""

from __future__ import annotations

from collections.abc import Sequence

from rucola.common import message_const
from rucola.common.message import MessageExt
from rucola.common.numbers import INT32_MAX, INT64_MAX, number_in
from rucola.common.pop_topics import TOPIC_KINDS, real_topic
from rucola.errors import ClientError, FormatError
from rucola.protocol.headers.pop import ChangeInvisibleTimeResponseHeader, PopMessageResponseHeader

_WORDS = 8


class PopReceipt:
    """A receipt handle and the parts of it that clients need.

    Attributes:
        text: the receipt handle, as requests contain it.
        topic_kind: 0 normal, 1 and 2 the group's retry topics.
        broker_name: the broker that has the message.
        queue_id: the queue.
        queue_offset: queue offset of the message.
    """

    __slots__ = ("broker_name", "queue_id", "queue_offset", "text", "topic_kind")

    def __init__(self, text: str, topic_kind: str, broker_name: str, queue_id: int, queue_offset: int) -> None:
        self.text = text
        self.topic_kind, self.broker_name = topic_kind, broker_name
        self.queue_id, self.queue_offset = queue_id, queue_offset

    @classmethod
    def of(cls, message: MessageExt) -> PopReceipt:
        """Parses the receipt handle of ``message``.

        Raises:
            ClientError: the message has none, because it was not received by a simple consumer.
        """
        text = message.properties.get(message_const.POP_CK, "")
        words = text.split(" ")
        if len(words) == _WORDS:
            queue_id, queue_offset = number_in(words[6], 0, INT32_MAX), number_in(words[7], 0, INT64_MAX)
            if queue_id is not None and queue_offset is not None:
                return cls(text, words[4], words[5], queue_id, queue_offset)
        raise ClientError(f"message {message.msg_id} has no receipt: it was not received by a simple consumer")

    def real_topic(self, topic: str, group: str) -> str:
        """The topic that holds a message of ``topic``: the topic itself or a retry topic."""
        return real_topic(topic, group, self.topic_kind) if self.topic_kind in TOPIC_KINDS else topic

    def changed(self, header: ChangeInvisibleTimeResponseHeader) -> PopReceipt:
        """Returns the receipt handle after a change of the invisible time.

        The change moves the message out of the checkpoint of its pop, into a checkpoint of its own, which starts at the
        message. A receipt with the start of the pop would name no checkpoint. Source: RocketMQ 5.3.3,
        ``ChangeInvisibleTimeProcessor#appendCheckPoint``, ``MQClientAPIImpl#changeInvisibleTimeAsync``.
        """
        kind, broker_name, queue_id, queue_offset = (
            self.topic_kind,
            self.broker_name,
            self.queue_id,
            self.queue_offset,
        )
        text = (
            f"{queue_offset} {header.pop_time} {header.invisible_time} {header.revive_qid} {kind} {broker_name} "
            f"{queue_id} {queue_offset}"
        )
        return PopReceipt(text, kind, broker_name, queue_id, queue_offset)


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
            properties[message_const.POP_CK] = (
                f"{starts[place]} {header.pop_time} {header.invisible_time} {header.revive_qid} 0 "
                f"{message.broker_name} {message.queue_id} {message.queue_offset}"
            )
            count = counts.get(f"0 qo{message.queue_id}%{message.queue_offset}", counts.get(place, ""))
            message.reconsume_times = number_in(count, 1, INT32_MAX) or message.reconsume_times
        properties.setdefault(message_const.FIRST_POP_TIME, str(header.pop_time))
        message.topic = topic
