"""Options of lite topics (RocketMQ 5.5.0, ``BrokerConfig``)."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.common.options import option


@dataclass(frozen=True)
class LiteConfig:
    """The options. ``BrokerConfig`` has them all."""

    enable_lmq_quota: bool = option(
        "enableLmqQuota", False, "Whether `maxLmqConsumeQueueNum` limits the number of lite topics."
    )
    max_lmq_consume_queue_num: int = option(
        "maxLmqConsumeQueueNum",
        20_000,
        "With `enableLmqQuota`: number of lite topics with messages from which on a message to a new one is refused "
        "(LMQ_QUOTA_EXCEEDED).",
        minimum=1,
        maximum=(1 << 31) - 1,
    )
    new_lite_topics_per_account_max: int = option(
        "newLiteTopicsPerAccountMax",
        100_000,
        "With access control: number of lite topics that an account may make in an hour by sending to them, unless it "
        "is an administrator's. Rucola's own.",
        minimum=0,
        maximum=(1 << 31) - 1,
    )
    lite_lag_count_metrics_enable: bool = option(
        "liteLagCountMetricsEnable",
        False,
        "Whether metrics tell how far each group is behind in the lite topics of each parent. With a million offsets, "
        "this takes half a second of processor time a look.",
    )
    lite_ttl_check_interval_ms: int = option(
        "liteTtlCheckInterval",
        120_000,
        "Pause between two looks for lite topics whose time to live is over (`lite.topic.expiration` of the parent).",
        unit="ms",
        minimum=100,
        maximum=86_400_000,
    )
    min_lite_ttl_ms: int = option(
        "minLiteTTl",
        900_000,
        "A lite topic with a younger message is never removed, and none in this time after the start.",
        unit="ms",
        minimum=0,
        maximum=86_400_000,
    )
