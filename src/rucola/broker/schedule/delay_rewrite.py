"""Sends a message with a delay level to the schedule topic (RocketMQ 5.3.3, ``HookUtils#transformDelayLevelMessage``).

The queue id is the level minus one. Two properties name the topic and queue to which the message goes when it is due.
The store's dispatcher computes the due time from the level and writes it as the tags code of the queue entry
(``store.dispatch``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rucola.common.key_builder import SCHEDULE_TOPIC
from rucola.common.message import StoreMessage
from rucola.common.message_const import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
)
from rucola.common.numbers import number_in
from rucola.errors import BrokerError
from rucola.formats.properties import decode_properties, encode_properties, java_order
from rucola.protocol.codes import ResponseCode

PARSED_MAP_CAPACITY = 128
"""RocketMQ writes the changed properties in the order of a hash map with this many buckets."""

_LEVEL_MAX = 10**10 - 1
_TIMER_PROPERTIES = (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS)


def delay_rewrite(message: StoreMessage, level_max: int) -> StoreMessage:
    """``message`` as it will be stored: unchanged, or sent through the schedule topic if it has a delay level.

    Args:
        level_max: the highest level; higher levels are lowered to it.

    Raises:
        BrokerError: the level is not a number.
    """
    properties = decode_properties(message.properties)
    queue_id = schedule(str(message.topic, "utf-8", "replace"), message.queue_id, properties, level_max)
    if queue_id is None:
        return message
    text = encode_properties(java_order(properties.items(), PARSED_MAP_CAPACITY))
    return replace(message, topic=SCHEDULE_TOPIC.encode(), queue_id=queue_id, properties=text)


def schedule(topic: str, queue_id: int, properties: dict[str, str], level_max: int) -> int | None:
    """Writes the message's destination into ``properties``, and returns the queue of the schedule topic in which the
    message waits.

    Returns:
        None for a message without a delay, whose ``properties`` stay unchanged.

    Raises:
        BrokerError: the level is not a number.
    """
    level = delay_level(properties)
    if level <= 0:
        return None
    for name in _TIMER_PROPERTIES:  # a delay level takes precedence over these properties
        properties.pop(name, None)
    level = min(level, level_max)
    properties.update({DELAY: str(level), REAL_TOPIC: topic, REAL_QID: str(queue_id)})
    return level - 1


def delay_level(properties: Mapping[str, str]) -> int:
    """The delay level in ``properties``; 0 or below means no delay.

    Raises:
        BrokerError: MESSAGE_ILLEGAL, the level is not a number.
    """
    text = properties.get(DELAY, "0")
    level = number_in(text, -_LEVEL_MAX, _LEVEL_MAX)
    if level is None:
        raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, f"the delay level is not a number: {text[:32]!a}")
    return level
