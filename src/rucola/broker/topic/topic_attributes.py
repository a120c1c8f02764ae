"""Which attributes a topic may have (RocketMQ 5.3.3, ``TopicAttributes``; PRIORITY is from 5.4, LITE from 5.5)."""

from __future__ import annotations

from collections.abc import Mapping

from rucola.broker.attributes import Attribute, change_attributes, in_range, one_of
from rucola.broker.lite.attributes import EXPIRATION, EXPIRATION_MAX, LITE
from rucola.common.numbers import INT64_MAX
from rucola.common.topic_config import MESSAGE_TYPE, MIXED, PRIORITY
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode

_NOT_SERVED = {
    "cleanup.policy": ("DELETE", "this broker keeps all messages of a topic until they expire"),
    "reserve.time": ("-1", "messages of all topics are kept for fileReservedTime"),
}
"""Attributes that have no effect on this broker. Each maps to the only value that the broker accepts, and to the reason
why it refuses other values.
"""


_ATTRIBUTES = {
    MESSAGE_TYPE: Attribute(
        True, one_of("UNSPECIFIED", MIXED, "TRANSACTION", PRIORITY, "FIFO", "DELAY", "NORMAL", LITE)
    ),
    "queue.type": Attribute(False, one_of("BatchCQ", "SimpleCQ")),
    "cleanup.policy": Attribute(False, one_of("DELETE", "COMPACTION")),
    "reserve.time": Attribute(True, in_range(-1, INT64_MAX)),
    EXPIRATION: Attribute(True, in_range(-1, EXPIRATION_MAX)),
}


def change_topic_attributes(known: Mapping[str, str] | None, changes: str) -> dict[str, str]:
    """Applies ``+key=value,-key`` to the attributes of a topic.

    Args:
        known: the current attributes; None for a new topic.

    Raises:
        BrokerError: as in ``change_attributes``; INVALID_PARAMETER if the change would have no effect.
    """
    attributes = change_attributes(_ATTRIBUTES, "topic", known, filter(None, changes.split(",")))
    for key, value in attributes.items():
        if known is None or known.get(key) != value:
            _refuse_without_effect(key, value)
    return attributes


def without_effect(attributes: Mapping[str, str]) -> list[str]:
    """The attributes that have no effect on this broker. A topic that a RocketMQ broker created may have them."""
    return [key for key, (served, _) in _NOT_SERVED.items() if attributes.get(key, served) != served]


def _refuse_without_effect(key: str, value: str) -> None:
    """Refuses attributes that would have no effect, because accepting one would be a false promise."""
    served, reason = _NOT_SERVED.get(key, (value, ""))
    if value != served:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER, f"{key}={value} is not supported: {reason}; {served} is allowed"
        )
