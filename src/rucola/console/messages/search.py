"""Finds messages: by id, key, unique key, offset, or store time. A search says what it has scanned and why it stopped.

No search commits an offset, and none asks a server that no name server lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rucola.client.admin import AdminClient
from rucola.common.hosts import host_text
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.common.numbers import INT64_MAX
from rucola.console.cluster.asking import Reason, Unknown, asked, by_deadline
from rucola.console.cluster.snapshot import BrokerState, ClusterSnapshot, Large
from rucola.console.messages.reading import PULL_MESSAGES, TIMEOUT_MS, PulledRange, QueueAt, decoded, pulled
from rucola.formats.message_id import parse_offset_message_id
from rucola.protocol.codes import ResponseCode
from rucola.protocol.headers.query import QueryMessageRequestHeader

DEADLINE_S: Final = 2.5
SCANNED_MAX: Final = 5_000
KEYED_MAX: Final = 64


class Stop(StrEnum):
    """Why a search stopped."""

    END = "end"
    """Everything that was asked for has been looked at."""
    NEWEST = "newest"
    """Only the newest messages of each queue have been looked at, because no begin was given."""
    LIMIT = "limit"
    """There are enough rows on the page, or enough messages were scanned; it can go on."""
    TIME = "time"
    """Its time was over; it can go on."""
    SERVER = "server"
    """A server did not answer, so messages may be missing."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    Attributes:
        messages: what was found, each with its broker's name.
        scanned: messages that were looked at.
        total: messages that there are in the range, or in all without one; None if the index was asked.
        first_ms: store time of the first scanned message; ``last_ms``: of the last one.
        cursor: where to go on, as a parameter; empty if there is nothing more.
    """

    messages: tuple[MessageExt, ...]
    stop: Stop
    scanned: Large
    total: Large | None
    first_ms: int | None = None
    last_ms: int | None = None
    cursor: str = ""
    unknown: tuple[Unknown, ...] = ()


@dataclass(slots=True)
class _Scan:
    """A scan in progress."""

    messages: list[MessageExt] = field(default_factory=list)
    scanned: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    unknown: list[Unknown] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ScanQuery:
    """What a scan looks for; empty texts match everything.

    Attributes:
        topic: the topic.
        begin_ms: store time from which on; None for the newest messages.
        end_ms: store time up to which; None without a limit.
        tag: tag of the messages.
        text: what body, keys or properties contain.
        count: rows that are enough.
        cursor: where an earlier scan stopped.
    """

    topic: str
    begin_ms: int | None = None
    end_ms: int | None = None
    tag: str = ""
    text: str = ""
    count: int = 50
    cursor: str = ""


async def by_id(admin: AdminClient, snapshot: ClusterSnapshot, message_id: str) -> SearchResult:
    """The message of an offset message id. Its broker must be one that a name server lists.

    Raises:
        ValueError: the text is no such id.
    """
    place = parse_offset_message_id(message_id)
    address = host_text(place.store_host)
    broker = snapshot.broker_at(address)
    if broker is None:
        text = f"no name server lists a broker at {address}"
        return SearchResult((), Stop.SERVER, 0, None, unknown=(Unknown(Reason.REFUSED, address, text),))
    answer = await asked(address, _viewed(admin, broker, place.physical_offset))
    if isinstance(answer, Unknown):
        is_absent = answer.reason is Reason.REFUSED and answer.code == ResponseCode.SYSTEM_ERROR
        return SearchResult((), Stop.END if is_absent else Stop.SERVER, 0, None, unknown=(answer,))
    return SearchResult(tuple(answer), Stop.END, 1, 1)


async def by_key(admin: AdminClient, snapshot: ClusterSnapshot, topic: str, key: str, unique: bool) -> SearchResult:
    """The messages with a key or, if ``unique``, with a unique key, from the indexes of all masters."""
    header = QueryMessageRequestHeader(topic, key, KEYED_MAX, 0, INT64_MAX, unique)
    masters = snapshot.masters
    answers = await by_deadline([(one.address, _keyed(admin, one, header)) for one in masters], DEADLINE_S)
    found: list[MessageExt] = []
    stop = Stop.END
    for answer in answers:
        if isinstance(answer, Unknown):
            stop = Stop.SERVER
            continue
        messages, is_partial = answer
        if (len(messages) >= KEYED_MAX or is_partial) and stop is Stop.END:
            stop = Stop.LIMIT
        found += [one for one in messages if key in _keys(one, unique)]
    found.sort(key=lambda message: message.store_timestamp_ms)
    unknown = tuple(one for one in answers if isinstance(one, Unknown))
    return SearchResult(tuple(found), stop, len(found), None, unknown=unknown)


async def by_offset(
    admin: AdminClient, snapshot: ClusterSnapshot, queue: MessageQueue, queue_offset: int
) -> SearchResult:
    """The message at an offset of a queue."""
    broker = snapshot.master_of(queue.broker_name) or next(
        (one for one in snapshot.brokers if one.name == queue.broker_name and one.is_listed), None
    )
    if broker is None:
        unknown = Unknown(Reason.REFUSED, queue.broker_name, "no name server lists such a broker")
        return SearchResult((), Stop.SERVER, 0, None, unknown=(unknown,))
    place = QueueAt(broker.name, broker.address, queue.queue_id, queue_offset, queue_offset + 1)
    answer = await asked(broker.address, pulled(admin, queue.topic, place, 1))
    if isinstance(answer, Unknown):
        return SearchResult((), Stop.SERVER, 0, None, unknown=(answer,))
    return SearchResult(tuple(one for one in answer.messages if one.queue_offset == queue_offset)[:1], Stop.END, 1, 1)


async def scan(admin: AdminClient, snapshot: ClusterSnapshot, query: ScanQuery) -> SearchResult:
    """Reads the queues of a topic side by side.

    Raises:
        ValueError: the cursor is none of a scan of this topic.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    state = _Scan()
    queues = await queues_of(admin, snapshot, query, state.unknown)
    total = sum(max(queue.end - queue.position, 0) + queue.passed for queue in queues)
    stop = Stop.NEWEST if any(queue.passed for queue in queues) else Stop.END
    while rest := [queue for queue in queues if queue.position < queue.end]:
        if loop.time() >= deadline:
            stop = Stop.TIME
            break
        if len(state.messages) >= query.count or state.scanned >= SCANNED_MAX:
            stop = Stop.LIMIT
            break
        room = max(min(PULL_MESSAGES, -(-(query.count - len(state.messages)) // len(rest))), 1)
        size = PULL_MESSAGES if query.tag or query.text else room
        answers = await by_deadline(
            [(one.address, pulled(admin, query.topic, one, size)) for one in rest],
            max(deadline - loop.time(), 0.1),
        )
        for queue, answer in zip(rest, answers, strict=True):
            _take(query, queue, answer, state)
    if state.unknown:
        stop = Stop.SERVER
    state.messages.sort(key=lambda one: (one.store_timestamp_ms, one.broker_name, one.queue_id, one.queue_offset))
    return SearchResult(
        tuple(state.messages),
        stop,
        state.scanned,
        total,
        state.first_ms,
        state.last_ms,
        _cursor(queues),
        tuple(state.unknown),
    )


def _take(query: ScanQuery, queue: QueueAt, answer: PulledRange | Unknown, state: _Scan) -> None:
    """Takes what a pull found."""
    if isinstance(answer, Unknown):
        state.unknown.append(answer)
        queue.end = queue.position  # its rest is not looked at
        return
    messages = [one for one in answer.messages if one.queue_offset < queue.end]
    if not messages:
        queue.position = max(answer.next_offset, queue.position + 1)
        return
    for message in messages:
        queue.position = max(queue.position, message.queue_offset + 1)
        if query.end_ms is not None and message.store_timestamp_ms > query.end_ms:
            queue.position = queue.end
            break
        state.scanned += 1
        at = message.store_timestamp_ms
        state.first_ms = at if state.first_ms is None else min(state.first_ms, at)
        state.last_ms = at if state.last_ms is None else max(state.last_ms, at)
        if _matches(message, query):
            state.messages.append(message)


async def queues_of(
    admin: AdminClient, snapshot: ClusterSnapshot, query: ScanQuery, unknown: list[Unknown]
) -> list[QueueAt]:
    """The queues of a topic, each with the range that is wanted; ``unknown`` gets what was not told.

    Raises:
        ValueError: the cursor is none of a scan of this topic.
    """
    topic = snapshot.topics.get(query.topic)
    places = [
        (broker, part.broker, number)
        for part in (topic.brokers if topic is not None else None) or ()
        if (broker := snapshot.master_of(part.broker)) is not None
        for number in range(part.read_queues)
    ]
    if not places:
        places = await _routed(admin, snapshot, query.topic, unknown)
    starts = _parsed_cursor(query.cursor)
    ranges = await by_deadline(
        [(broker.address, _range(admin, broker.address, MessageQueue(query.topic, name, number), query))
         for broker, name, number in places],
        DEADLINE_S,
    )  # fmt: skip
    queues: list[QueueAt] = []
    share = -(-query.count // max(len(places), 1))
    for (broker, name, number), span in zip(places, ranges, strict=True):
        if isinstance(span, Unknown):
            unknown.append(span)
            continue
        begin, end = span
        passed = 0
        if query.begin_ms is None and not query.cursor and not query.text and not query.tag:
            passed = max(end - share - begin, 0)
            begin += passed
        begin = max(starts.get((name, number), end if query.cursor else begin), begin)
        queues.append(QueueAt(name, broker.address, number, begin, end, passed))
    return queues


async def _routed(
    admin: AdminClient, snapshot: ClusterSnapshot, topic: str, unknown: list[Unknown]
) -> list[tuple[BrokerState, str, int]]:
    """The queues of a topic by its route, for accounts that may not see the brokers' tables."""
    route = await asked("name servers", admin.readable_queues(topic))
    if isinstance(route, Unknown):
        unknown.append(route)
        return []
    return [
        (broker, queue.broker_name, queue.queue_id)
        for queue, address in route
        if (broker := snapshot.broker_at(address)) is not None
    ]


async def _range(admin: AdminClient, address: str, queue: MessageQueue, query: ScanQuery) -> tuple[int, int]:
    """First offset, and the one after the last, of what is wanted in a queue."""
    low = await admin.api.min_offset(address, queue, TIMEOUT_MS)
    high = await admin.api.max_offset(address, queue, TIMEOUT_MS)
    if query.begin_ms is not None and high > low:
        low = max(await admin.api.search_offset(address, queue, query.begin_ms, timeout_ms=TIMEOUT_MS), low)
    return low, max(high, low)


async def _viewed(admin: AdminClient, broker: BrokerState, physical_offset: int) -> list[MessageExt]:
    record = await admin.api.view_message(broker.address, physical_offset, TIMEOUT_MS)
    return await decoded(record, 0, broker.name)


async def _keyed(
    admin: AdminClient, broker: BrokerState, header: QueryMessageRequestHeader
) -> tuple[list[MessageExt], bool]:
    """What a broker's index finds, and whether records may be missing."""
    answer = await admin.api.query_message(broker.address, header, TIMEOUT_MS)
    return await decoded(answer.records, 0, broker.name), answer.is_partial


def _matches(message: MessageExt, query: ScanQuery) -> bool:
    if query.tag and message.tags != query.tag:
        return False
    if not query.text:
        return True
    return query.text.encode() in message.body or any(query.text in value for value in message.properties.values())


def _keys(message: MessageExt, unique: bool) -> Iterable[str]:
    return (message.uniq_key or "",) if unique else (message.keys or "").split()


def _cursor(queues: Sequence[QueueAt]) -> str:
    return ",".join(f"{one.broker}:{one.number}:{one.position}" for one in queues if one.position < one.end)


def _parsed_cursor(text: str) -> dict[tuple[str, int], int]:
    starts: dict[tuple[str, int], int] = {}
    for part in filter(None, text.split(",")):
        broker, number, position = part.rsplit(":", 2)
        if not (number.isascii() and number.isdigit() and position.isascii() and position.isdigit()):
            raise ValueError(f"{part!r} is not broker:queue:offset")
        starts[broker, int(number)] = int(position)
    return starts
