"""The way of one message: from its producer over the brokers, retries and delays to each consumer.

Two sources tell it. Clients with traces enabled write records to the trace topic. Brokers keep each copy of the message
under its unique key: in its topic, while it waits, in the retry topics and dead-letter topics of the groups. Source:
RocketMQ 5.3.3, ``QueryMsgTraceByIdSubCommand``, ``AbstractSendMessageProcessor#consumerSendMsgBack``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rucola.client.admin import AdminClient
from rucola.common.key_builder import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    dlq_topic,
    is_dlq_topic,
    is_retry_topic,
    retry_topic,
)
from rucola.common.message import MessageExt
from rucola.common.message_const import TIMER_DEL_UNIQKEY
from rucola.common.message_queue import MessageQueue
from rucola.common.pop_topics import pop_retry_topic
from rucola.console.cluster.asking import Unknown, by_deadline
from rucola.console.cluster.snapshot import ClusterSnapshot, Large
from rucola.console.messages.search import SearchResult, Stop, by_key
from rucola.protocol.bodies.statistics import ConsumeStats
from rucola.protocol.trace import TraceRecord, TraceType, decode_trace

GROUPS_MAX: Final = 20
"""Groups of the topic that are asked about."""
STEPS_MAX: Final = 300
_DEADLINE_S: Final = 2.5


class WayKind(StrEnum):
    """What a step is; keys of the catalogue."""

    SENT = "sent"
    STORED = "stored"
    LEVEL = "waits for its level"
    TIME = "waits for its time"
    HALF = "half message"
    GIVEN_UP = "given up"
    CONSUMED = "consumed"
    RETRY = "stored for a retry"
    DEAD = "dead letter"
    DECIDED = "decided"
    RECALLED = "recalled"


_WAITS: Final = {
    SCHEDULE_TOPIC: WayKind.LEVEL,
    TIMER_TOPIC: WayKind.TIME,
    TRANS_HALF_TOPIC: WayKind.HALF,
    TRANS_CHECK_MAX_TIME_TOPIC: WayKind.GIVEN_UP,
}


class WayOutcome(StrEnum):
    """How a step ended."""

    PLAIN = ""
    FINE = "fine"
    FAILED = "failed"
    OPEN = "open"
    """It began, and no end is known."""


@dataclass(frozen=True, slots=True)
class WayStep:
    """A step of a message.

    Attributes:
        at_ms: when it began; ``end_ms``: when it ended, None if it is a moment or its end is not known.
        what: what happened.
        who: the producer's or consumer's group, or the broker.
        attempt: number of earlier deliveries; None if the step is none.
        remark: what else the source tells.
        topic: topic of a stored copy; empty if the step is no copy. So with ``broker``, ``queue`` and ``offset``.
    """

    at_ms: int
    end_ms: int | None
    what: WayKind
    who: str
    outcome: WayOutcome = WayOutcome.PLAIN
    attempt: int | None = None
    remark: str = ""
    topic: str = ""
    broker: str = ""
    queue: int | None = None
    offset: Large | None = None


@dataclass(frozen=True, slots=True)
class GroupOnMessage:
    """Where a group is, seen from the message.

    Attributes:
        state: ``passed`` (its offset is behind the message), ``waiting``, ``retrying``, ``dead`` or ``unknown``.
        before: messages that it consumes first; None unless it is waiting.
    """

    group: str
    state: str
    before: Large | None = None


@dataclass(slots=True)
class Way:
    """The way of a message; ``traced``: whether a client has written a record of it."""

    steps: list[WayStep] = field(default_factory=list)
    groups: list[GroupOnMessage] = field(default_factory=list)
    traced: bool = False
    unknown: list[Unknown] = field(default_factory=list)


async def way_of(admin: AdminClient, snapshot: ClusterSnapshot, topic: str, key: str, trace_topic: str) -> Way:
    """The way of the message with unique key ``key`` in ``topic``."""
    state = snapshot.topics.get(topic)
    groups = list(state.groups if state is not None else ())[:GROUPS_MAX]
    places = [topic, *_WAITS, *(name for group in groups for name in _topics_of(snapshot, topic, group))]
    results = await asyncio.gather(
        by_key(admin, snapshot, trace_topic, key, unique=False),
        *(by_key(admin, snapshot, place, key, unique=True) for place in places),
    )
    way = Way(unknown=_unknown(results))
    records = [
        record
        for message in results[0].messages
        for record in decode_trace(message.body.decode("utf-8", "replace"))
        if record.msg_id == key
    ]
    way.traced = bool(records)
    copies = [message for result in results[1:] for message in result.messages]
    way.steps = [*_traced(records), *map(_stored, copies)]
    way.steps.sort(key=lambda step: (step.at_ms, step.end_ms or 0))
    del way.steps[STEPS_MAX:]
    origin = next((message for message in copies if message.topic == topic), None)
    if origin is not None:
        way.groups = await _groups(admin, snapshot, origin, groups, copies, way.unknown)
    return way


def _topics_of(snapshot: ClusterSnapshot, topic: str, group: str) -> list[str]:
    """The topics in which a group may have copies of a message, of those that exist."""
    names = [retry_topic(group), *(pop_retry_topic(topic, group, v2) for v2 in (True, False)), dlq_topic(group)]
    return [name for name in names if name in snapshot.topics]


def _unknown(results: Sequence[SearchResult]) -> list[Unknown]:
    """Why copies may be missing, each reason once."""
    found: dict[tuple[str, str], Unknown] = {}
    for result in results:
        if result.stop is Stop.SERVER:
            found |= {(one.server, one.text): one for one in result.unknown}
    return list(found.values())


def _stored(message: MessageExt) -> WayStep:
    """A copy of the message as a step of its way."""
    topic, attempt = message.topic, None
    what = _WAITS.get(topic, WayKind.STORED)
    if TIMER_DEL_UNIQKEY in message.properties:
        what = WayKind.RECALLED
    elif is_retry_topic(topic):
        what, attempt = WayKind.RETRY, message.reconsume_times
    elif is_dlq_topic(topic):
        what, attempt = WayKind.DEAD, message.reconsume_times
    return WayStep(
        message.store_timestamp_ms, None, what, message.broker_name, attempt=attempt, topic=topic,
        broker=message.broker_name, queue=message.queue_id, offset=message.queue_offset,
    )  # fmt: skip


def _traced(records: Iterable[TraceRecord]) -> list[WayStep]:
    """The steps that clients have written. A delivery has two records, which its request id joins."""
    steps: list[WayStep] = []
    begun: dict[str, TraceRecord] = {}
    ended: dict[str, TraceRecord] = {}
    for record in records:
        if record.trace_type is TraceType.SUB_BEFORE:
            begun[record.request_id] = record
        elif record.trace_type is TraceType.SUB_AFTER:
            ended[record.request_id] = record
        else:
            steps.append(_of_producer(record))
    for identity in {**begun, **ended}:
        steps.append(_delivery(begun.get(identity), ended.get(identity)))
    return steps


def _of_producer(record: TraceRecord) -> WayStep:
    at_ms, outcome = record.timestamp_ms, WayOutcome.FINE if record.success else WayOutcome.FAILED
    if record.trace_type is TraceType.PUB:
        return WayStep(at_ms, at_ms + record.cost_ms, WayKind.SENT, record.group, outcome, remark=record.store_host)
    if record.trace_type is TraceType.RECALL:
        return WayStep(at_ms, None, WayKind.RECALLED, record.group, outcome)
    return WayStep(at_ms, None, WayKind.DECIDED, record.group, remark=record.transaction_state)


def _delivery(begin: TraceRecord | None, end: TraceRecord | None) -> WayStep:
    one = begin or end
    assert one is not None
    if end is None:
        return WayStep(one.timestamp_ms, None, WayKind.CONSUMED, one.group, WayOutcome.OPEN, one.retry_times)
    # Old clients write neither time nor group at the end of a delivery.
    at_ms = begin.timestamp_ms if begin is not None else end.timestamp_ms - end.cost_ms
    outcome = WayOutcome.FINE if end.success else WayOutcome.FAILED
    group = begin.group if begin is not None else end.group
    attempt = begin.retry_times if begin is not None else None
    return WayStep(at_ms, at_ms + end.cost_ms, WayKind.CONSUMED, group, outcome, attempt)


async def _groups(
    admin: AdminClient,
    snapshot: ClusterSnapshot,
    origin: MessageExt,
    groups: Sequence[str],
    copies: Sequence[MessageExt],
    unknown: list[Unknown],
) -> list[GroupOnMessage]:
    """Where each group of the topic is."""
    broker = snapshot.master_of(origin.broker_name)
    if broker is None:
        return [GroupOnMessage(name, "unknown") for name in groups]
    answers = await by_deadline(
        [(broker.address, admin.api.consume_stats(broker.address, name, origin.topic)) for name in groups], _DEADLINE_S
    )
    unknown += [one for one in answers if isinstance(one, Unknown)]
    stats = {name: answer for name, answer in zip(groups, answers, strict=True) if not isinstance(answer, Unknown)}
    return [_group(snapshot, name, origin, stats, copies) for name in groups]


def _group(
    snapshot: ClusterSnapshot,
    name: str,
    origin: MessageExt,
    stats: Mapping[str, ConsumeStats],
    copies: Sequence[MessageExt],
) -> GroupOnMessage:
    if any(copy.topic == dlq_topic(name) for copy in copies):
        return GroupOnMessage(name, "dead")
    queue = MessageQueue(origin.topic, origin.broker_name, origin.queue_id)
    wrapper = stats[name].offset_table.get(queue) if name in stats else None
    if wrapper is None:
        return GroupOnMessage(name, "unknown")
    if origin.queue_offset >= wrapper.consumer_offset:
        return GroupOnMessage(name, "waiting", origin.queue_offset - wrapper.consumer_offset)
    retries = set(_topics_of(snapshot, origin.topic, name)) - {dlq_topic(name)}
    # A retry may have been consumed: only as long as the group is behind in its retry topics, it may still come.
    if any(copy.topic in retries for copy in copies) and _is_behind(snapshot, name, retries):
        return GroupOnMessage(name, "retrying")
    return GroupOnMessage(name, "passed")


def _is_behind(snapshot: ClusterSnapshot, group: str, topics: set[str]) -> bool:
    parts = snapshot.groups[group].topics if group in snapshot.groups else None
    return any(part.lag for part in parts or () if part.topic in topics)
