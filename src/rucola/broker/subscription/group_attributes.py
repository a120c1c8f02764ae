"""Which attributes a consumer group may have (RocketMQ 5.4, ``SubscriptionGroupAttributes``)."""

from __future__ import annotations

from collections.abc import Mapping

from rucola.broker.attributes import Attribute, change_attributes, in_range
from rucola.common.subscription_group import PRIORITY_FACTOR, PRIORITY_FACTOR_MAX

_ATTRIBUTES = {PRIORITY_FACTOR: Attribute(True, in_range(0, PRIORITY_FACTOR_MAX))}


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
