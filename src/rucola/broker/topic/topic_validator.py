"""Which topic and group names are allowed (RocketMQ 5.3.3, ``TopicValidator``)."""

from __future__ import annotations

import re

from rucola.common.key_builder import REPLY_TOPIC_SUFFIX
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode

NAME_CHARACTERS_MAX = 127
GROUP_CHARACTERS_MAX = 120
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def system_names(cluster: str, broker: str) -> frozenset[str]:
    """System topics that are named after this broker."""
    return frozenset({cluster, broker, f"{cluster}{REPLY_TOPIC_SUFFIX}"})


def validate_topic(topic: str) -> None:
    """Refuses a name that no topic may have.

    Raises:
        BrokerError: INVALID_PARAMETER with RocketMQ's text.
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
