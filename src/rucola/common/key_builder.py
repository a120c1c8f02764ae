"""Names built from other names: retry, dead-letter, light-queue topics, and the topics RocketMQ reserves."""

from __future__ import annotations

from typing import Final

RETRY_GROUP_TOPIC_PREFIX: Final = "%RETRY%"
DLQ_GROUP_TOPIC_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"

AUTO_CREATE_TOPIC_KEY_TOPIC: Final = "TBW102"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
OFFSET_MOVED_EVENT_TOPIC: Final = "OFFSET_MOVED_EVENT"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
"""The cluster's name follows: the topic of what was popped."""

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
"""Topics the system keeps for itself, on any broker; those that begin with ``SYSTEM_TOPIC_PREFIX`` come on top."""


def is_system_topic(topic: str) -> bool:
    """Whether ``topic`` is one of the system's, on any broker (RocketMQ 5.3.3, ``TopicValidator#isSystemTopic``)."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def retry_topic(group: str) -> str:
    """Topic to which the failed messages of ``group`` go."""
    return RETRY_GROUP_TOPIC_PREFIX + group


def dlq_topic(group: str) -> str:
    """Topic to which messages go that ``group`` failed on too often."""
    return DLQ_GROUP_TOPIC_PREFIX + group


def is_retry_topic(topic: str) -> bool:
    """Whether ``topic`` is a retry topic."""
    return topic.startswith(RETRY_GROUP_TOPIC_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    """Whether ``topic`` is a dead-letter topic."""
    return topic.startswith(DLQ_GROUP_TOPIC_PREFIX)


def is_light_queue(topic: str) -> bool:
    """Whether ``topic`` names a light queue."""
    return topic.startswith(LMQ_PREFIX)


def group_of(topic: str) -> str:
    """The group of a retry or dead-letter topic; any other topic comes back as it is."""
    return topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX).removeprefix(DLQ_GROUP_TOPIC_PREFIX)


def topic_at_group(topic: str, group: str) -> str:
    """Key of a group's progress on a topic in ``consumerOffset.json``."""
    return f"{topic}@{group}"
