"""The topics that RocketMQ itself uses: who may write them, and who may read them.

Other topics belong to their users. Without access control, ``BROKER`` is the only limit: the half topic and its like
take messages from nobody else, because the broker trusts what lies there. Names: RocketMQ 5.3.3, ``TopicValidator``.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from rucola.common.key_builder import (
    OFFSET_MOVED_EVENT_TOPIC,
    REVIVE_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)


class Who(Enum):
    """Who may write or read a topic."""

    BROKER = "the broker"
    ADMINISTRATORS = "administrators"
    NAMED = "accounts with a rule that names it"
    """Default permissions and patterns do not reach the topic. Without access control: everybody."""
    USERS = "as other topics"


class InternalTopic(NamedTuple):
    """The rules of a topic, or of all topics whose names begin with a prefix."""

    writes: Who
    reads: Who


_WAITING = InternalTopic(Who.BROKER, Who.NAMED)
"""Messages of other topics wait here, or the broker's notes about them."""
_SILENT = InternalTopic(Who.BROKER, Who.USERS)

INTERNAL_TOPICS: Final = {
    SCHEDULE_TOPIC: _WAITING,
    TRANS_HALF_TOPIC: _WAITING,
    TRANS_OP_HALF_TOPIC: _WAITING,
    TIMER_TOPIC: _WAITING,
    TRANS_CHECK_MAX_TIME_TOPIC: InternalTopic(Who.BROKER, Who.ADMINISTRATORS),
    SELF_TEST_TOPIC: _SILENT,
    OFFSET_MOVED_EVENT_TOPIC: _SILENT,
    TRACE_TOPIC: InternalTopic(Who.NAMED, Who.NAMED),
}
"""By name. Missing here are topics that clients use like their own: replies, BenchmarkTest, TBW102, and those named
after broker and cluster. Retry and dead-letter topics belong to their group.
"""
INTERNAL_PREFIXES: Final = (
    (REVIVE_TOPIC_PREFIX, _WAITING),
    ("SCHEDULE_TOPIC_", InternalTopic(Who.NAMED, Who.NAMED)),
    ("RMQ_SYS_", InternalTopic(Who.NAMED, Who.NAMED)),
    ("rmq_sys_", InternalTopic(Who.NAMED, Who.NAMED)),
)
"""By prefix, for the names that are not in ``INTERNAL_TOPICS``; the first that fits counts."""
_USER_TOPIC = InternalTopic(Who.USERS, Who.USERS)


def rules_of(topic: str) -> InternalTopic:
    """The rules of ``topic``."""
    known = INTERNAL_TOPICS.get(topic)
    if known is not None:
        return known
    return next((rules for prefix, rules in INTERNAL_PREFIXES if topic.startswith(prefix)), _USER_TOPIC)


def only_broker_writes(topic: str) -> bool:
    """Whether clients may not send to ``topic``, whatever their rights are."""
    return rules_of(topic).writes is Who.BROKER


def holds_waiting(topic: str) -> bool:
    """Whether messages of other topics wait in ``topic``, which no consumer receives from there."""
    return rules_of(topic) is _WAITING


def only_administrators_read(topic: str) -> bool:
    """Whether an account that is no administrator may not read ``topic``, whatever its rules say."""
    return rules_of(topic).reads is Who.ADMINISTRATORS


def needs_named_rule(topic: str) -> bool:
    """Whether default permissions and patterns do not apply to ``topic``."""
    return not {Who.NAMED, Who.ADMINISTRATORS}.isdisjoint(rules_of(topic))
