"""Which clients a group has: one that is bound to a parent topic has clients of lite topics, another one has others.

Source: RocketMQ 5.5.0, ``ClientActivity#validateConsumerGroup``, ``docs/reference/lite.md`` 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rucola.broker.lite.attributes import BIND_TOPIC, LiteGroup, lite_group
from rucola.proxy import messages
from rucola.proxy.refusal import RefusedError

if TYPE_CHECKING:
    from rucola.common.subscription_group import SubscriptionGroupConfig
    from rucola.proxy.sessions import ClientSession

LITE_CLIENTS: Final = frozenset({messages.LITE_PUSH_CONSUMER, messages.LITE_SIMPLE_CONSUMER})


def checked_settings(settings: messages.Settings, config: SubscriptionGroupConfig | None) -> LiteGroup | None:
    """How the group of a consumer reads lite topics; None if neither does.

    Args:
        settings: the consumer's.
        config: its group; None if there is none.

    Raises:
        RefusedError: ``ILLEGAL_CONSUMER_GROUP``: the group is missing, or one of lite topics. ``ILLEGAL_TOPIC``: it is
            bound to another topic, or to none.
    """
    name = settings.subscription.group.name
    if settings.client_type in LITE_CLIENTS:
        topics = [entry.topic.name for entry in settings.subscription.subscriptions]
        return bound(name, config, topics)
    check_ordinary(name, config)
    return None


def checked_group(session: ClientSession, config: SubscriptionGroupConfig, topic: str) -> LiteGroup | None:
    """How the group of a receive reads lite topics; None if it does not. Another server may have the client's settings.

    Raises:
        RefusedError: as ``checked_settings``.
    """
    settings = session.settings
    lite = lite_group(config)
    if settings is not None and settings.HasField("subscription"):
        if settings.client_type not in LITE_CLIENTS:
            check_ordinary(config.group_name, config)
        elif lite is None:
            raise _not_bound(config.group_name)
    return None if lite is None else bound(config.group_name, config, [topic])


def bound(name: str, config: SubscriptionGroupConfig | None, topics: Sequence[str]) -> LiteGroup:
    """How a group reads the lite topics of the only topic that is named.

    Raises:
        RefusedError: ``ILLEGAL_CONSUMER_GROUP``, ``ILLEGAL_TOPIC``, as above.
    """
    if config is None:
        raise RefusedError(messages.ILLEGAL_CONSUMER_GROUP, f"consumer group {name} does not exist")
    lite = lite_group(config)
    if lite is None:
        raise _not_bound(name)
    if list(topics) != [lite.bind_topic]:
        named = ", ".join(topics) or "none"
        raise RefusedError(
            messages.ILLEGAL_TOPIC,
            f"consumer group {name} is bound to topic {lite.bind_topic} ({BIND_TOPIC}); named is {named[:255]}",
        )
    return lite


def check_ordinary(name: str, config: SubscriptionGroupConfig | None) -> None:
    """Refuses an ordinary client in a group of lite topics.

    Raises:
        RefusedError: ``ILLEGAL_CONSUMER_GROUP``.
    """
    lite = None if config is None else lite_group(config)
    if lite is not None:
        raise RefusedError(
            messages.ILLEGAL_CONSUMER_GROUP,
            f"consumer group {name} reads lite topics of {lite.bind_topic}; allowed are lite consumers",
        )


def _not_bound(name: str) -> RefusedError:
    return RefusedError(
        messages.ILLEGAL_TOPIC, f"consumer group {name} is bound to no topic ({BIND_TOPIC}), so it reads no lite topics"
    )
