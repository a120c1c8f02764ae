"""Which attributes a consumer group may have (RocketMQ 5.5, ``SubscriptionGroupAttributes``)."""

from __future__ import annotations

from collections.abc import Mapping

from rucola.broker.attributes import Attribute, any_text, change_attributes, in_range, one_of
from rucola.broker.lite.attributes import (
    BIND_TOPIC,
    EVENTS_MAX,
    EVENTS_MAX_LEAST,
    EXCLUSIVE,
    MODEL,
    QUOTA,
    RESET_EXCLUSIVE,
    RESET_UNSUBSCRIBE,
    SHARED,
    WILDCARD,
)
from rucola.common.numbers import INT64_MAX
from rucola.common.subscription_group import PRIORITY_FACTOR, PRIORITY_FACTOR_MAX

_ATTRIBUTES = {
    PRIORITY_FACTOR: Attribute(True, in_range(0, PRIORITY_FACTOR_MAX)),
    BIND_TOPIC: Attribute(True, any_text),
    MODEL: Attribute(True, one_of(SHARED, EXCLUSIVE)),
    RESET_EXCLUSIVE: Attribute(True, one_of("true", "false")),
    RESET_UNSUBSCRIBE: Attribute(True, one_of("true", "false")),
    QUOTA: Attribute(True, in_range(-1, INT64_MAX)),
    EVENTS_MAX: Attribute(True, in_range(EVENTS_MAX_LEAST, INT64_MAX)),
    WILDCARD: Attribute(True, any_text),
}


def change_group_attributes(known: Mapping[str, str] | None, changes: Mapping[str, str]) -> dict[str, str]:
    """Applies the attributes of a request to those of a group. A request may repeat what the group already has.

    Args:
        known: the current attributes; None for a new group.
        changes: keys begin with ``+`` to add or with ``-`` to remove an attribute; a key without a sign adds, too.

    Raises:
        BrokerError: as in ``change_attributes``.
    """
    signed = {key if key[:1] in ("+", "-") else f"+{key}": value for key, value in changes.items()}
    old = known or {}
    return change_attributes(
        _ATTRIBUTES,
        "group",
        known,
        [
            f"{key}={value}" if key[0] == "+" else key
            for key, value in signed.items()
            if key[0] == "-" or old.get(key[1:]) != value
        ],
    )
