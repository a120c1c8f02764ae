"""Configuration of one topic on a broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter
from typing import Any, Final

from rucola.common.java import read_int32
from rucola.common.numbers import INT32_MAX
from rucola.common.sysflag import PermName

MESSAGE_TYPE: Final = "message.type"
"""Attribute of a topic: the kind of its messages."""
MIXED: Final = "MIXED"
"""Value of this attribute: messages of every kind."""
PRIORITY: Final = "PRIORITY"
"""Value of this attribute: messages with a priority; pops read the queue with the highest id first (RocketMQ 5.4)."""


class TopicFilterType(StrEnum):
    """Whether the messages of a topic have one tag or several."""

    SINGLE_TAG = "SINGLE_TAG"
    MULTI_TAG = "MULTI_TAG"


_FILTER_TYPES = {str(kind): kind for kind in TopicFilterType}
_all_fields = itemgetter(
    "topicName",
    "readQueueNums",
    "writeQueueNums",
    "perm",
    "topicFilterType",
    "topicSysFlag",
    "order",
    "attributes",
)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """RocketMQ's ``TopicConfig``, with its defaults.

    Args:
        perm: ``PermName`` bits.
        topic_sys_flag: unit-mode bits; not interpreted here.
        order: whether the topic is ordered.
        attributes: for example ``queue.type``; a broker stores the names without the ``+`` of ``updateTopic -a``.
    """

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PermName.READ | PermName.WRITE
    topic_filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_batch_queue(self) -> bool:
        """Whether the topic has batch consume queues, whose units point to records of one or several messages."""
        return self.attributes.get("queue.type") == "BatchCQ"

    @property
    def is_priority(self) -> bool:
        """Whether pops read the queues in the order of their priority."""
        return self.attributes.get(MESSAGE_TYPE) == PRIORITY

    def to_dict(self) -> dict[str, Any]:
        """Returns the form of RocketMQ's JSON, with fields in the order of their names."""
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": int(self.perm),
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": str(self.topic_filter_type),
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TopicConfig:
        """Reads RocketMQ's JSON; absent fields take their defaults, unknown fields are ignored.

        Raises:
            ValueError: ``topicFilterType`` is unknown, or a number is invalid.
        """
        try:
            name, read, write, perm, kind, sys_flag, order, attributes = _all_fields(data)
        except KeyError:
            pass
        else:
            numbers = read, write, perm, sys_flag
            if type(kind) is str and all(type(number) is int and 0 <= number <= INT32_MAX for number in numbers):
                kind = _FILTER_TYPES.get(kind) or TopicFilterType(kind)
                return cls(str(name or ""), read, write, perm, kind, sys_flag, bool(order), dict(attributes or {}))
        return cls(
            topic_name=str(data.get("topicName") or ""),
            read_queue_nums=read_int32(data.get("readQueueNums", 16)),
            write_queue_nums=read_int32(data.get("writeQueueNums", 16)),
            perm=read_int32(data.get("perm", PermName.READ | PermName.WRITE)),
            topic_filter_type=TopicFilterType(data.get("topicFilterType", "SINGLE_TAG")),
            topic_sys_flag=read_int32(data.get("topicSysFlag", 0)),
            order=bool(data.get("order", False)),
            attributes=dict(data.get("attributes") or {}),
        )
