"""Topics of popped messages: the retry topics of a group, and the kind of topic that a receipt names (RocketMQ 5.3.3,
``KeyBuilder``, ``ExtraInfoUtil``).
"""

from __future__ import annotations

from typing import Final

from rucola.common.key_builder import RETRY_GROUP_TOPIC_PREFIX, is_retry_topic
from rucola.errors import FormatError

_NORMAL, _RETRY, _RETRY_V2 = "0", "1", "2"
TOPIC_KINDS: Final = (_NORMAL, _RETRY, _RETRY_V2)
"""Kinds of topics in receipts: the topic itself, and the two forms of its retry topic."""
ORDER_REVIVE_QUEUE: Final = 999
"""The revive queue in receipts of messages popped in order; no queue of the revive topic has this number."""


def pop_retry_topic(topic: str, group: str, v2: bool) -> str:
    """The retry topic for popped messages of ``topic`` that ``group`` did not acknowledge in time."""
    return f"{RETRY_GROUP_TOPIC_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def normal_topic(topic: str, group: str) -> str:
    """The topic from which the messages of a retry topic came; any other topic is returned unchanged."""
    for v2 in (False, True):
        prefix = pop_retry_topic("", group, v2)
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return topic


def topic_kind(topic: str) -> str:
    """0: ordinary topic, 1: retry topic, 2: retry topic with a name of version 2 (``%RETRY%group+topic``)."""
    if not is_retry_topic(topic):
        return _NORMAL
    return _RETRY_V2 if "+" in topic else _RETRY


def real_topic(topic: str, group: str, kind: str) -> str:
    """The topic in which a message of ``topic`` lies: depending on ``kind``, ``topic`` itself or a retry topic of it.

    Raises:
        FormatError: there is no such kind.
    """
    if kind not in TOPIC_KINDS:
        raise FormatError("kind of a topic", 0, "0, 1 or 2", kind[:16])
    return topic if kind == _NORMAL else pop_retry_topic(topic, group, kind == _RETRY_V2)
