"""Options of the delivery of lite topics (RocketMQ 5.5.0, ``BrokerConfig``)."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.common.options import option


@dataclass(frozen=True)
class LiteDeliveryConfig:
    """The options. ``BrokerConfig`` has them all."""

    max_lite_subscription_count: int = option(
        "maxLiteSubscriptionCount",
        100_000,
        "Number of lite topics to which clients may subscribe, summed over all clients.",
        minimum=1,
        maximum=100_000_000,
    )
    lite_subscription_check_interval_ms: int = option(
        "liteSubscriptionCheckInterval",
        120_000,
        "Pause between two looks for clients that have not renewed their subscriptions to lite topics.",
        unit="ms",
        minimum=100,
        maximum=86_400_000,
    )
    lite_subscription_check_timeout_ms: int = option(
        "liteSubscriptionCheckTimeoutMills",
        180_000,
        "How long a client's subscriptions to lite topics last if it does not renew them. Clients do so every 30 s.",
        unit="ms",
        minimum=1000,
        maximum=86_400_000,
    )
    lite_event_check_interval_ms: int = option(
        "liteEventCheckInterval",
        10_000,
        "Pause between two looks for clients that do not poll; other clients of the group get their lite topics.",
        unit="ms",
        minimum=100,
        maximum=86_400_000,
    )
    max_client_event_count: int = option(
        "maxClientEventCount",
        100,
        "Number of lite topics with messages that wait for one client, from which on other clients of the group are "
        "preferred. `lite.sub.client.max.event.cnt` of a group takes precedence.",
        minimum=1,
        maximum=1_000_000,
    )
