"""Derives retry, dead-letter and light-queue topics from other names; lists RocketMQ's reserved names."""

from __future__ import annotations

from typing import Final

RETRY_GROUP_TOPIC_PREFIX: Final = "%RETRY%"
DLQ_GROUP_TOPIC_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
LITE_PREFIX: Final = f"{LMQ_PREFIX}$"
"""Of the light queues of lite topics, and of some others (``formats.light_queue``)."""
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
"""Groups with such names belong to brokers (RocketMQ 5.3.3, ``MixAll#isSysConsumerGroup``)."""

AUTO_CREATE_TOPIC_KEY_TOPIC: Final = "TBW102"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
OFFSET_MOVED_EVENT_TOPIC: Final = "OFFSET_MOVED_EVENT"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
"""The cluster's name and this suffix form the topic of replies."""
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
"""This prefix and the cluster's name form the topic of the broker's POP checkpoints and acknowledgements."""
MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""This prefix and a broker's name form the topic whose route has the live brokers of that name."""

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC_KEY_TOPIC,
        BENCHMARK_TOPIC,
        "CHECKPOINT_TOPIC",
        OFFSET_MOVED_EVENT_TOPIC,
        SCHEDULE_TOPIC,
        SELF_TEST_TOPIC,
        TRACE_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
    }
)
"""Reserved topics of every broker; topics that begin with ``SYSTEM_TOPIC_PREFIX`` are reserved too."""


def is_system_topic(topic: str) -> bool:
    """Whether ``topic`` is a system topic of every broker (RocketMQ 5.3.3, ``TopicValidator#isSystemTopic``)."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def retry_topic(group: str) -> str:
    """Returns the topic for the messages that ``group`` failed to consume."""
    return RETRY_GROUP_TOPIC_PREFIX + group


def dlq_topic(group: str) -> str:
    """Returns the dead-letter topic of ``group``, for the messages that are no longer delivered to the group."""
    return DLQ_GROUP_TOPIC_PREFIX + group


def is_retry_topic(topic: str) -> bool:
    """Whether ``topic`` is a retry topic."""
    return topic.startswith(RETRY_GROUP_TOPIC_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    """Whether ``topic`` is a dead-letter topic."""
    return topic.startswith(DLQ_GROUP_TOPIC_PREFIX)


def lite_parts(topic: str) -> tuple[str, str] | None:
    """Returns the parent and the lite topic whose light queue is ``topic``; None if it is of none (RocketMQ 5.5.0,
    ``LiteUtil``).
    """
    parent, _, lite = topic.removeprefix(LITE_PREFIX).partition("$")
    return (parent, lite) if topic.startswith(LITE_PREFIX) and parent and lite and "$" not in lite else None


def is_light_queue(topic: str) -> bool:
    """Whether ``topic`` names a light queue."""
    return topic.startswith(LMQ_PREFIX)


def group_of(topic: str) -> str:
    """Returns the group of a retry or dead-letter topic; any other topic is returned unchanged."""
    return topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX).removeprefix(DLQ_GROUP_TOPIC_PREFIX)


def topic_at_group(topic: str, group: str) -> str:
    """Returns the key of a group's offsets for a topic in ``consumerOffset.json``."""
    return f"{topic}@{group}"
