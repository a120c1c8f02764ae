"""The kind of a message, which its properties decide, and the kinds that a topic takes.

Source: RocketMQ 5.3.3, ``TopicMessageType``, ``DefaultTopicMessageTypeValidator``; priorities: RocketMQ 5.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from rucola.common import message_const as const
from rucola.common.key_builder import is_dlq_topic, is_retry_topic
from rucola.common.topic_config import MESSAGE_TYPE, MIXED
from rucola.proxy import messages
from rucola.proxy.property_keys import LITE_TOPIC, PRIORITY
from rucola.proxy.refusal import RefusedError
from rucola.proxy.schema import V2

_DELAYING = frozenset({const.DELAY, const.TIMER_DELIVER_MS, const.TIMER_DELAY_SEC, const.TIMER_DELAY_MS})


class MessageKind(StrEnum):
    """The kind of a message, by the values of the topic attribute ``message.type``."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    PRIORITY = "PRIORITY"
    LITE = "LITE"

    @property
    def number(self) -> int:
        """The value of the protocol's ``MessageType``."""
        return _NUMBERS[self]


_NUMBERS = V2.enums["MessageType"]


def kind_of(properties: Mapping[str, str]) -> MessageKind:
    """The kind of a message with ``properties``. They decide, and not the type that a client names: a broker acts on
    them.
    """
    if properties.get(const.TRAN_MSG) == "true":
        return MessageKind.TRANSACTION
    if not _DELAYING.isdisjoint(properties):
        return MessageKind.DELAY
    if const.SHARDING_KEY in properties:
        return MessageKind.FIFO
    if PRIORITY in properties:
        return MessageKind.PRIORITY
    return MessageKind.LITE if LITE_TOPIC in properties else MessageKind.NORMAL


def check_kind(topic: str, kind: MessageKind, attributes: Mapping[str, str]) -> None:
    """Refuses a message of a kind that its topic does not have. Retry and dead-letter topics take every kind; a topic
    without the attribute ``message.type`` is NORMAL.

    Args:
        topic: name of the topic.
        kind: kind of the message.
        attributes: attributes of the topic.

    Raises:
        RefusedError: ``MESSAGE_PROPERTY_CONFLICT_WITH_TYPE``.
    """
    if is_retry_topic(topic) or is_dlq_topic(topic):
        return
    expected = attributes.get(MESSAGE_TYPE, MessageKind.NORMAL)
    if expected not in (MIXED, kind):
        raise RefusedError(
            messages.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"topic {topic} takes {expected} messages (its attribute {MESSAGE_TYPE}); this one is {kind}",
        )


def accepted_kinds(kind: str) -> list[int]:
    """The values of ``MessageType`` that producers may send to a topic.

    Args:
        kind: the topic's attribute ``message.type``.
    """
    if kind == MIXED:
        return [one.number for one in _OF_MIXED]
    return [MessageKind(kind).number] if kind in _KINDS else [messages.MESSAGE_TYPE_UNSPECIFIED]


_KINDS = frozenset(map(str, MessageKind))
_OF_MIXED = (MessageKind.NORMAL, MessageKind.FIFO, MessageKind.DELAY, MessageKind.TRANSACTION)
