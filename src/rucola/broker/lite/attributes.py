"""What attributes make of a topic the parent of lite topics, and of a group a reader of them (RocketMQ 5.5.0,
``TopicAttributes``, ``LiteSubscriptionAttributes``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rucola.common.java import parse_boolean
from rucola.common.numbers import INT64_MAX, number_in
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import MESSAGE_TYPE, TopicConfig

LITE: Final = "LITE"
"""Value of the attribute ``message.type`` of a parent."""
EXPIRATION: Final = "lite.topic.expiration"
"""Attribute of a parent: minutes after its newest message at which a lite topic goes; 0 and less: never."""
EXPIRATION_MAX: Final = 43_200
BIND_TOPIC: Final = "lite.bind.topic"
"""Attribute of a group: the parent whose lite topics it reads. It makes the group a lite group."""
MODEL: Final = "lite.sub.model"
SHARED, EXCLUSIVE = "Shared", "Exclusive"
RESET_EXCLUSIVE: Final = "lite.sub.reset.offset.exclusive"
RESET_UNSUBSCRIBE: Final = "lite.sub.reset.offset.unsubscribe"
QUOTA: Final = "lite.sub.client.quota"
QUOTA_DEFAULT: Final = 2000
EVENTS_MAX: Final = "lite.sub.client.max.event.cnt"
EVENTS_MAX_LEAST: Final = 10
WILDCARD: Final = "lite.sub.wildcard"
_OTHERS: Final = (MODEL, RESET_EXCLUSIVE, RESET_UNSUBSCRIBE, QUOTA, EVENTS_MAX, WILDCARD)


@dataclass(frozen=True, slots=True)
class LiteGroup:
    """How a group reads lite topics.

    Attributes:
        bind_topic: the parent.
        exclusive: whether each lite topic has one client of the group.
        reset_exclusive: whether a client that takes over a lite topic begins at offset 0.
        reset_unsubscribe: whether a lite topic that a client has given up begins at offset 0 again.
        quota: largest number of lite topics of one client; -1 if it is not limited.
        events_max: largest number of lite topics that wait for one client; None for ``maxClientEventCount``.
        wildcard: whether the group reads all lite topics of the parent.
    """

    bind_topic: str
    exclusive: bool = False
    reset_exclusive: bool = False
    reset_unsubscribe: bool = False
    quota: int = QUOTA_DEFAULT
    events_max: int | None = None
    wildcard: bool = False


def lite_group(config: SubscriptionGroupConfig) -> LiteGroup | None:
    """Returns how a group reads lite topics; None if it does not. A value that no request could have set counts as
    absent.
    """
    attributes = config.attributes
    bind_topic = attributes.get(BIND_TOPIC)
    return None if bind_topic is None else _lite_group(bind_topic, *map(attributes.get, _OTHERS))


@lru_cache(maxsize=256)
def _lite_group(
    bind_topic: str,
    model: str | None,
    reset_exclusive: str | None,
    reset_unsubscribe: str | None,
    quota: str | None,
    events_max: str | None,
    wildcard: str | None,
) -> LiteGroup | None:
    """Returns what these values of attributes mean; cached, because each request asks."""
    if not bind_topic.strip():
        return None
    clients_quota = number_in(quota or "", -1, INT64_MAX)
    return LiteGroup(
        bind_topic,
        exclusive=model == EXCLUSIVE,
        reset_exclusive=parse_boolean(reset_exclusive),
        reset_unsubscribe=parse_boolean(reset_unsubscribe),
        quota=QUOTA_DEFAULT if clients_quota is None else clients_quota,
        events_max=number_in(events_max or "", EVENTS_MAX_LEAST, INT64_MAX),
        wildcard=wildcard is not None,
    )


def is_parent(config: TopicConfig) -> bool:
    """Whether a topic may have lite topics."""
    return config.attributes.get(MESSAGE_TYPE) == LITE


def expiration_minutes(config: TopicConfig) -> int:
    """Returns the time to live of a parent's lite topics in minutes; -1 if they live for ever."""
    minutes = number_in(config.attributes.get(EXPIRATION, ""), 1, EXPIRATION_MAX)
    return -1 if minutes is None else minutes
