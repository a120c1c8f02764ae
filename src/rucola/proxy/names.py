"""Names of topics and groups in requests: which are accepted, and how a namespace is part of a stored name.

Source: RocketMQ 5.3.3, ``GrpcValidator``, ``Validators``, ``NamespaceUtil``; lite topics: RocketMQ 5.5.0.
"""

from __future__ import annotations

import re
from typing import Final

from rucola.common.key_builder import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    SYSTEM_GROUP_PREFIX,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
)
from rucola.proxy import messages
from rucola.proxy.refusal import RefusedError

TOPIC_CHARACTERS_MAX: Final = 127
GROUP_CHARACTERS_MAX: Final = 120
NAMESPACE_SEPARATOR: Final = "%"
_ALLOWED = "letters and digits of ASCII, %, |, _ and -"
_NAME = re.compile(r"[%|a-zA-Z0-9_-]*")
_LITE_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_SHOWN_CHARACTERS = 64


def check_topic(topic: str) -> None:
    """Refuses a topic that no client may use.

    Raises:
        RefusedError: ``ILLEGAL_TOPIC``: the name is empty, too long, has other characters, or belongs to the system.
    """
    _check("topic", topic, TOPIC_CHARACTERS_MAX, messages.ILLEGAL_TOPIC)
    if is_system_topic(topic):
        raise RefusedError(messages.ILLEGAL_TOPIC, f"topic {topic} belongs to the system")


def check_group(group: str) -> None:
    """Refuses a consumer group that no client may use.

    Raises:
        RefusedError: ``ILLEGAL_CONSUMER_GROUP``, for the reasons of ``check_topic``.
    """
    _check("group", group, GROUP_CHARACTERS_MAX, messages.ILLEGAL_CONSUMER_GROUP)
    if group.startswith(SYSTEM_GROUP_PREFIX):
        raise RefusedError(messages.ILLEGAL_CONSUMER_GROUP, f"consumer group {group} belongs to the system")


def check_lite_topic(lite_topic: str, bytes_max: int) -> None:
    """Refuses a lite topic that no client may use.

    Args:
        lite_topic: the name, without the parent.
        bytes_max: its largest size.

    Raises:
        RefusedError: ``ILLEGAL_LITE_TOPIC``: the name is blank, too long, or has other characters.
    """
    if not lite_topic.strip():
        raise RefusedError(messages.ILLEGAL_LITE_TOPIC, "the name of the lite topic is blank")
    size = len(lite_topic.encode())
    if size > bytes_max:
        raise RefusedError(
            messages.ILLEGAL_LITE_TOPIC, f"the name of the lite topic has {size} bytes; allowed are {bytes_max}"
        )
    if not is_lite_topic(lite_topic):
        shown = ascii(lite_topic[:_SHOWN_CHARACTERS])
        raise RefusedError(
            messages.ILLEGAL_LITE_TOPIC,
            f"the name of the lite topic is {shown}; allowed are letters and digits of ASCII, _ and -",
        )


def is_lite_topic(text: str) -> bool:
    """Whether a text has only the characters that a lite topic may have."""
    return _LITE_NAME.fullmatch(text) is not None


def resource_of(name: str) -> messages.Resource:
    """The resource for the stored name of a topic: ``ns%topic`` is split into namespace and topic.

    The marks of retry and dead-letter topics stay with the topic. Names of system topics are not split.
    """
    mark = ""
    if is_retry_topic(name):
        mark = RETRY_GROUP_TOPIC_PREFIX
    elif is_dlq_topic(name):
        mark = DLQ_GROUP_TOPIC_PREFIX
    namespace, _, rest = name[len(mark) :].partition(NAMESPACE_SEPARATOR)
    if not namespace or not rest or is_system_topic(name):
        return messages.Resource(name=name)
    return messages.Resource(resource_namespace=namespace, name=mark + rest)


def _check(kind: str, name: str, characters_max: int, code: int) -> None:
    if not name.strip():
        raise RefusedError(code, f"the name of the {kind} is blank")
    if len(name) > characters_max:
        raise RefusedError(code, f"the name of the {kind} has {len(name)} characters; allowed are {characters_max}")
    if _NAME.fullmatch(name) is None:
        shown = ascii(name[:_SHOWN_CHARACTERS])
        raise RefusedError(code, f"the name of the {kind} is {shown}; allowed are {_ALLOWED}")
