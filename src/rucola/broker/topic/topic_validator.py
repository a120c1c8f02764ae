"""Which topic and group names are allowed (RocketMQ 5.3.3, ``TopicValidator``)."""

from __future__ import annotations

import re

from rucola.common.key_builder import (
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_EVENT_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    TRACE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode

NAME_CHARACTERS_MAX = 127
GROUP_CHARACTERS_MAX = 120


NOT_ALLOWED_TO_SEND = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT_TOPIC,
    }
)
"""Topics that only the broker itself writes."""

SYSTEM_TOPICS = NOT_ALLOWED_TO_SEND | {
    AUTO_CREATE_TOPIC_KEY_TOPIC,
    BENCHMARK_TOPIC,
    TRACE_TOPIC,
    "CHECKPOINT_TOPIC",
}
"""Topics that cannot be created or deleted by request; those below ``rmq_sys_`` and of ``system_names`` come on top."""

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def system_names(cluster: str, broker: str) -> frozenset[str]:
    """System topics named after this broker."""
    return frozenset({cluster, broker, f"{cluster}_REPLY_TOPIC"})


def is_system_topic(topic: str) -> bool:
    """Whether ``topic`` is one of the system's, on any broker."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def validate_topic(topic: str) -> None:
    """Refuse a name that no topic may have.

    Raises:
        BrokerError: INVALID_PARAMETER with the reference's text.
    """
    if not topic.strip():
        raise BrokerError(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    if _NAME.fullmatch(topic) is None:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER,
            "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        )
    if len(topic) > NAME_CHARACTERS_MAX:
        raise BrokerError(ResponseCode.INVALID_PARAMETER, "The specified topic is longer than topic max length.")


def is_group_name(group: str) -> bool:
    """Whether a group of this name may be created."""
    return 0 < len(group) <= GROUP_CHARACTERS_MAX and _NAME.fullmatch(group) is not None
