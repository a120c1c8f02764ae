"""Options of a gRPC port for lite topics. RocketMQ has them in its proxy."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.common.options import option


@dataclass(frozen=True)
class LiteDoorConfig:
    """Base of configuration classes for a gRPC port; the defaults are RocketMQ's."""

    max_lite_topic_size: int = option(
        "maxLiteTopicSize",
        64,
        "Largest name of a lite topic at the gRPC port.",
        unit="bytes",
        minimum=1,
        maximum=120,
    )
    max_sync_lite_subscription_rate: int = option(
        "maxSyncLiteSubscriptionRate",
        5000,
        "How often a second clients of the gRPC port may subscribe to lite topics, all together; half as often one of "
        "them. The others are told TOO_MANY_REQUESTS.",
        minimum=1,
    )
    max_lite_renew_num_per_channel: int = option(
        "maxLiteRenewNumPerChannel",
        100,
        "Messages of lite topics that a push consumer at the gRPC port may have without having acknowledged them. With "
        "more, it gets no others, but FORBIDDEN.",
        minimum=1,
    )
