"""Messages that wait inside a broker: for a delay level, for a time, for a producer's decision, for an acknowledgement.

Brokers count some of them. What they do not count is read from their own topics, from the newest record backwards, for
a limited time. A count that would be a guess is None. Source: RocketMQ 5.3.3, ``ScheduleMessageService``,
``TimerMessageStore``, ``TransactionalMessageServiceImpl``, ``PopBufferMergeService``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rucola.client.admin import AdminClient
from rucola.common.key_builder import (
    REVIVE_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    is_retry_topic,
)
from rucola.common.message import MessageExt
from rucola.common.message_const import (
    PGROUP,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    TRANSACTION_CHECK_TIMES,
)
from rucola.common.message_queue import MessageQueue
from rucola.common.numbers import INT32_MAX, INT64_MAX, number_in
from rucola.console.cluster.asking import Reason, Unknown, asked, by_deadline
from rucola.console.cluster.snapshot import BrokerState, ClusterSnapshot, Large
from rucola.console.messages.reading import PULL_MESSAGES, TIMEOUT_MS, QueueAt, pulled
from rucola.errors import FormatError
from rucola.formats.pop import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, PopAck, PopCheckpoint, PopKey
from rucola.formats.timer import TimerMetrics
from rucola.protocol.codes import RequestCode

DEADLINE_S: Final = 2.5
READ_S: Final = 1.5
"""Seconds for which the records of one broker are read."""
RECORDS_MAX: Final = 2_048
"""Records of one broker that are read at most."""
ROWS_MAX: Final = 100
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
_LEVEL: Final = "scheduleMessageOffset_"
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class WaitingSum:
    """How many messages wait for one reason at one broker.

    Attributes:
        what: the delay level with its delay, the topic, ``half``, ``given-up`` or ``popped``.
        count: None if the broker does not tell.
        first_ms: when the next of them is due; None if that is not known, or depends on a producer.
        targets: the topics and groups that get them, of those that were read.
    """

    broker: str
    what: str
    count: Large | None
    first_ms: int | None
    targets: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message that waits.

    Attributes:
        place: topic in which it waits, with ``broker``, ``queue`` and ``offset``.
        topic: topic that it goes to; ``group``: group that decides or consumes, empty if there is none.
        due_ms: when it is due; None if that depends on a producer.
        handle_ms: due time in the handle with which it can be recalled; None if it cannot.
        checks: how often its producer was asked.
        is_given_up: whether its producer is not asked any more.
    """

    broker: str
    place: str
    queue: int
    offset: Large
    offset_id: str
    topic: str
    group: str
    unique_key: str
    born_ms: int
    due_ms: int | None
    handle_ms: int | None = None
    checks: int = 0
    is_given_up: bool = False


@dataclass(slots=True)
class WaitingFound:
    """What waits; ``scanned`` of ``total`` records were read for it."""

    sums: list[WaitingSum] = field(default_factory=list)
    rows: list[HeldMessage] = field(default_factory=list)
    scanned: int = 0
    total: int = 0
    unknown: list[Unknown] = field(default_factory=list)


Look = Callable[[AdminClient, BrokerState, int], Awaitable[WaitingFound]]


async def waiting(admin: AdminClient, snapshot: ClusterSnapshot, kind: str, now_ms: int) -> WaitingFound:
    """What waits at all masters, the next messages first.

    Args:
        kind: a name in ``KINDS``.
    """
    look, masters = KINDS[kind], snapshot.masters
    answers = await by_deadline([(one.address, look(admin, one, now_ms)) for one in masters], DEADLINE_S)
    found = WaitingFound()
    for answer in answers:
        if isinstance(answer, Unknown):
            found.unknown.append(answer)
            continue
        found.sums += answer.sums
        found.rows += answer.rows
        found.scanned += answer.scanned
        found.total += answer.total
        found.unknown += answer.unknown
    found.rows.sort(key=lambda row: (row.due_ms is None, row.due_ms or row.born_ms, row.offset))
    del found.rows[ROWS_MAX:]
    return found


async def _delayed(admin: AdminClient, broker: BrokerState, _now_ms: int) -> WaitingFound:
    """By delay level: the counts are in the broker's figures, the messages in a queue for each level."""
    runtime, config = await asyncio.gather(
        admin.api.runtime_info(broker.address), asked(broker.address, admin.api.broker_config(broker.address))
    )
    found = WaitingFound()
    text = "" if isinstance(config, Unknown) else config.get("messageDelayLevel", "")
    if isinstance(config, Unknown):
        found.unknown.append(config)
    delays = _delays(text)
    places = _levels(runtime)
    queues = [QueueAt(broker.name, broker.address, level - 1, begin, end) for level, begin, end in places]
    firsts = await asyncio.gather(
        *(asked(one.address, pulled(admin, SCHEDULE_TOPIC, one, PULL_MESSAGES)) for one in queues)
    )
    for (level, begin, end), answer in zip(places, firsts, strict=True):
        delay_ms = delays.get(level)
        found.total += end - begin
        if isinstance(answer, Unknown):
            found.unknown.append(answer)
            rows = []
        else:
            rows = [
                _row(broker, one, None if delay_ms is None else one.store_timestamp_ms + delay_ms)
                for one in answer.messages
            ]
        found.scanned += len(rows)
        found.rows += rows
        name = f"{level}" if delay_ms is None else f"{level} ({_span(delay_ms)})"
        found.sums.append(WaitingSum(broker.name, name, end - begin, _first(rows), _targets(rows)))
    return found


async def _timed(admin: AdminClient, broker: BrokerState, now_ms: int) -> WaitingFound:
    """By topic: the broker counts them; the messages are in the timer topic."""
    counts, found = await asyncio.gather(
        asked(broker.address, _timer_counts(admin, broker)), _read_timer(admin, broker)
    )
    waiting_now = WaitingFound(scanned=found.scanned, total=found.total)
    if isinstance(counts, Unknown):
        waiting_now.unknown.append(counts)
    recalled: set[str] = set()
    seen: set[tuple[str, str]] = set()
    for message in found.messages:
        if name := message.properties.get(TIMER_DEL_UNIQKEY):
            recalled.add(name)
            continue
        topic, due_ms = message.properties.get(REAL_TOPIC, ""), _time(message, TIMER_OUT_MS)
        identity = topic, message.uniq_key or message.offset_msg_id
        # A message with a long delay is stored again from time to time: only its newest copy waits.
        if due_ms is None or due_ms <= now_ms or identity in seen or f"{topic}+{identity[1]}" in recalled:
            continue
        seen.add(identity)
        if not topic.startswith(REVIVE_TOPIC_PREFIX):
            can_recall = bool(message.uniq_key) and not is_retry_topic(topic)
            waiting_now.rows.append(_row(broker, message, due_ms, due_ms + 1 if can_recall else None))
    by_topic = {} if isinstance(counts, Unknown) else counts
    for topic in sorted({*by_topic, *(row.topic for row in waiting_now.rows)}):
        rows = [row for row in waiting_now.rows if row.topic == topic]
        # A broker counts a message only when its timer has taken it, which may be later than it is read here.
        count = None if isinstance(counts, Unknown) else max(by_topic.get(topic, 0), len(rows))
        if topic.startswith(REVIVE_TOPIC_PREFIX) or (not count and not rows):
            continue
        waiting_now.sums.append(WaitingSum(broker.name, topic, count, _first(rows), _targets(rows)))
    return waiting_now


async def undecided(admin: AdminClient, broker: BrokerState) -> Records:
    """The half messages without a decision: those behind the progress of the broker's own group, without those that the
    op topic names. Only if ``scanned`` is ``total``, they are all.
    """
    halves, ended = await asyncio.gather(
        _read_from_progress(admin, broker, TRANS_HALF_TOPIC), _read_from_progress(admin, broker, TRANS_OP_HALF_TOPIC)
    )
    done = {offset for message in ended.messages for offset in _offsets_in(message.body)}
    left = [message for message in halves.messages if message.queue_offset not in done]
    if ended.scanned < ended.total:
        # Any of them may have ended.
        return Records([], 0, halves.total)
    return Records(left, halves.scanned, halves.total)


async def _half(admin: AdminClient, broker: BrokerState, _now_ms: int) -> WaitingFound:
    """Half messages without a decision, and those whose producer was asked too often."""
    left = await undecided(admin, broker)
    found = WaitingFound(scanned=left.scanned, total=left.total)
    found.rows = [_row(broker, message, None) for message in left.messages]
    is_whole = left.scanned == left.total
    if not is_whole:
        why = f"of {left.total:,} half messages behind the progress, {left.scanned:,} were looked at"
        found.unknown.append(Unknown(Reason.UNSUPPORTED, broker.address, why))
    if left.total:
        count = len(found.rows) if is_whole else None
        found.sums.append(WaitingSum(broker.name, "half", count, None, _targets(found.rows)))
    given_up = await _read_newest(admin, broker, TRANS_CHECK_MAX_TIME_TOPIC, PULL_MESSAGES)
    rows = [_row(broker, message, None, is_given_up=True) for message in given_up.messages]
    if given_up.total:
        found.sums.append(WaitingSum(broker.name, "given-up", given_up.total, None, _targets(rows)))
    found.rows += rows
    return found


async def _popped(admin: AdminClient, broker: BrokerState, now_ms: int) -> WaitingFound:
    """Popped messages without an acknowledgement. No broker counts them: the checkpoints of pops and the
    acknowledgements wait in the timer topic until the messages become visible again.
    """
    read = await _read_timer(admin, broker)
    found = WaitingFound(scanned=read.scanned, total=read.total)
    acknowledged: dict[PopKey, set[int]] = {}
    checkpoints: dict[PopKey, tuple[MessageExt, PopCheckpoint]] = {}
    for message in read.messages:
        # An application's message may look like a checkpoint, but it does not go to the revive topic.
        if not message.properties.get(REAL_TOPIC, "").startswith(REVIVE_TOPIC_PREFIX):
            continue
        try:
            if message.tags in (ACK_TAG, BATCH_ACK_TAG):
                ack = PopAck.decode(message.body)
                acknowledged.setdefault(ack.key, set()).update(ack.queue_offsets)
            elif message.tags == CHECKPOINT_TAG:
                checkpoint = PopCheckpoint.decode(message.body)
                checkpoints[checkpoint.key] = message, checkpoint
        except FormatError:
            continue
    counts: dict[tuple[str, str], list[int]] = {}
    for key, (message, checkpoint) in checkpoints.items():
        if checkpoint.revive_ms <= now_ms:
            continue
        left = [one for one in checkpoint.queue_offsets if one not in acknowledged.get(key, ())]
        if left:
            counts.setdefault((key.topic, key.group), []).extend([checkpoint.revive_ms] * len(left))
        found.rows += [_popped_row(broker, key, offset, checkpoint, message) for offset in left]
    is_whole = read.scanned == read.total
    for (topic, group), due in sorted(counts.items()):
        found.sums.append(WaitingSum(broker.name, topic, len(due) if is_whole else None, min(due), (group,)))
    if counts:
        why = "acknowledgements that the broker still holds in memory are not told: fewer messages may be waiting"
        found.unknown.append(Unknown(Reason.UNSUPPORTED, broker.address, why))
    return found


KINDS: Final[Mapping[str, Look]] = {"delayed": _delayed, "timed": _timed, "half": _half, "popped": _popped}
"""What can wait, and who looks."""


@dataclass(slots=True)
class Records:
    """Records of a queue; ``scanned`` offsets of ``total`` were read."""

    messages: list[MessageExt] = field(default_factory=list)
    scanned: int = 0
    total: int = 0


async def _timer_counts(admin: AdminClient, broker: BrokerState) -> dict[str, int]:
    """How many messages wait in the timer for each topic."""
    table = await admin.api.whole_table(broker.address, RequestCode.GET_TIMER_METRICS)
    return {name: one.count for name, one in TimerMetrics.decode(table).topics.items()}


async def _read_timer(admin: AdminClient, broker: BrokerState) -> Records:
    return await _read_newest(admin, broker, TIMER_TOPIC, RECORDS_MAX)


async def _read_newest(admin: AdminClient, broker: BrokerState, topic: str, count_max: int) -> Records:
    """The newest records in queue 0 of a topic, from the newest on."""
    queue = MessageQueue(topic, broker.name, 0)
    low = await admin.api.min_offset(broker.address, queue, TIMEOUT_MS)
    end = await admin.api.max_offset(broker.address, queue, TIMEOUT_MS)
    found = Records(total=max(end - low, 0))
    until_s = asyncio.get_running_loop().time() + READ_S
    while end > low and found.scanned < count_max and asyncio.get_running_loop().time() < until_s:
        begin = max(end - PULL_MESSAGES, low)
        part = QueueAt(broker.name, broker.address, 0, begin, end)
        found.messages += reversed(await _range(admin, topic, part, until_s))
        found.scanned += part.position - begin
        end = begin
    return found


async def _read_from_progress(admin: AdminClient, broker: BrokerState, topic: str) -> Records:
    """The records in queue 0 of a topic from the progress of the broker's own group on."""
    queue = MessageQueue(topic, broker.name, 0)
    low = await admin.api.min_offset(broker.address, queue, TIMEOUT_MS)
    end = await admin.api.max_offset(broker.address, queue, TIMEOUT_MS)
    progress = await admin.api.query_consumer_offset(broker.address, TRANSACTION_GROUP, queue, timeout_ms=TIMEOUT_MS)
    begin = max(progress or 0, low)
    found = Records(total=max(end - begin, 0))
    until_s = asyncio.get_running_loop().time() + READ_S
    while begin < end and found.scanned < RECORDS_MAX and asyncio.get_running_loop().time() < until_s:
        part = QueueAt(broker.name, broker.address, 0, begin, min(begin + PULL_MESSAGES, end))
        found.messages += await _range(admin, topic, part, until_s)
        found.scanned += part.position - begin
        begin = part.position
    return found


async def _range(admin: AdminClient, topic: str, queue: QueueAt, until_s: float) -> list[MessageExt]:
    """The messages of a short range, in as many pulls as the broker needs; ``queue.position`` is where it stopped."""
    found: list[MessageExt] = []
    while queue.position < queue.end and asyncio.get_running_loop().time() < until_s:
        answer = await pulled(admin, topic, queue, queue.end - queue.position)
        found += [one for one in answer.messages if queue.position <= one.queue_offset < queue.end]
        queue.position = min(max(answer.next_offset, queue.position + 1), queue.end)
    return found


def _levels(runtime: Mapping[str, str]) -> list[tuple[int, int, int]]:
    """Level, progress and end of each delay level at which messages wait."""
    found = []
    for name, text in runtime.items():
        level = number_in(name.removeprefix(_LEVEL), 1, 1_000) if name.startswith(_LEVEL) else None
        progress, _, end = text.partition(",")
        first, last = number_in(progress, 0, INT64_MAX), number_in(end, 0, INT64_MAX)
        if level is not None and first is not None and last is not None and first < last:
            found.append((level, first, last))
    return sorted(found)


def _delays(text: str) -> dict[int, int]:
    """The delay of each level in ms, from a text such as ``1s 5s 2h``; empty if it is no such text."""
    found: dict[int, int] = {}
    for level, word in enumerate(text.split(), 1):
        number = number_in(word[:-1], 0, INT32_MAX)
        if number is None or word[-1] not in _UNITS_MS:
            return {}
        found[level] = number * _UNITS_MS[word[-1]]
    return found


def _row(
    broker: BrokerState,
    message: MessageExt,
    due_ms: int | None,
    handle_ms: int | None = None,
    *,
    is_given_up: bool = False,
) -> HeldMessage:
    topic = message.properties.get(REAL_TOPIC, message.topic)
    group = topic.split("%", 2)[2] if is_retry_topic(topic) else message.properties.get(PGROUP, "")
    checks = number_in(message.properties.get(TRANSACTION_CHECK_TIMES, ""), 0, INT32_MAX)
    return HeldMessage(
        broker.name, message.topic, message.queue_id, message.queue_offset, message.offset_msg_id, topic, group,
        message.uniq_key or "", message.born_timestamp_ms, due_ms, handle_ms, checks or 0, is_given_up,
    )  # fmt: skip


def _popped_row(
    broker: BrokerState, key: PopKey, offset: int, checkpoint: PopCheckpoint, message: MessageExt
) -> HeldMessage:
    return HeldMessage(
        broker.name, key.topic, key.queue_id, offset, "", key.topic, key.group, "", message.born_timestamp_ms,
        checkpoint.revive_ms,
    )  # fmt: skip


def _first(rows: Iterable[HeldMessage]) -> int | None:
    return min((row.due_ms for row in rows if row.due_ms is not None), default=None)


def _targets(rows: Iterable[HeldMessage]) -> tuple[str, ...]:
    return tuple(sorted({name for row in rows for name in (row.topic, row.group) if name}))


def _time(message: MessageExt, name: str) -> int | None:
    return number_in(message.properties.get(name, ""), 0, INT64_MAX)


def _offsets_in(body: bytes) -> list[int]:
    """The queue offsets in an op message: decimal numbers, joined by commas."""
    words = body.decode("ascii", "replace").split(",")
    return [offset for word in words if (offset := number_in(word, 0, INT64_MAX)) is not None]


def _span(delay_ms: int) -> str:
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if delay_ms >= length and delay_ms % length == 0:
            return f"{delay_ms // length} {unit}"
    return f"{delay_ms / 1000:g} s"
