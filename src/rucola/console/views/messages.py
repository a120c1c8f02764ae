"""Messages: the search, and one message with its body."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rucola.common.hosts import host_text
from rucola.common.key_builder import is_dlq_topic, is_retry_topic
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.common.numbers import INT64_MAX, number_in
from rucola.common.sysflag import MessageSysFlag
from rucola.console.cluster.asking import Unknown
from rucola.console.cluster.snapshot import ClusterSnapshot, Large
from rucola.console.messages.body import FORMS, BodyView, view_body
from rucola.console.messages.rows import MessageRow, origin_of, row_of
from rucola.console.messages.search import ScanQuery, SearchResult, Stop, by_id, by_key, by_offset, scan
from rucola.console.times import time_ms
from rucola.console.visit import BadQueryError, NotFoundError, Visit

WAYS: Final = ("time", "key", "unique", "id", "offset")
TRAITS: Final = (
    (MessageSysFlag.COMPRESSED, "compressed"),
    (MessageSysFlag.MULTI_TAGS, "multi-tags"),
    (MessageSysFlag.INNER_BATCH, "inner-batch"),
)
TRANSACTION: Final = {0x4: "half", 0x8: "committed", 0xC: "rolled-back"}


@dataclass(frozen=True, slots=True)
class MessagesQuery:
    """A search.

    Attributes:
        by: ``time``, ``key``, ``unique``, ``id`` or ``offset``.
        topic: the topic; not needed with an id.
        key: the key, the unique key or the id.
        broker: name of the broker, by offset; empty if there is only one.
        queue: number of the queue, by offset; empty for 0.
        offset: queue offset, by offset.
        begin: store time from which on: ms since 1970, or ISO 8601 (UTC without a zone); empty for the newest messages.
        end: store time up to which.
        tag: only messages with this tag.
        text: only messages whose body or properties contain this text.
        count: rows that are enough, 1 to 500.
        cursor: where an earlier search stopped.
    """

    by: str = "time"
    topic: str = ""
    key: str = ""
    broker: str = ""
    queue: str = ""
    offset: str = ""
    begin: str = ""
    end: str = ""
    tag: str = ""
    text: str = ""
    count: int = 50
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class MessagePage:
    """The result of a search.

    Attributes:
        searched: whether a search was asked for.
        stop: why it stopped: ``end``, ``newest``, ``limit``, ``time`` or ``server``.
        scanned: messages that were looked at, of ``total`` in the range.
        cursor: where to go on; empty if there is nothing more.
    """

    searched: bool
    rows: tuple[MessageRow, ...]
    stop: str
    scanned: Large
    total: Large | None
    first_ms: int | None
    last_ms: int | None
    cursor: str
    unknown: tuple[Unknown, ...]
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OneMessageQuery:
    """One message.

    Attributes:
        topic: its topic.
        broker: name of its broker.
        queue: its queue.
        offset: its queue offset.
        form: how the body is shown: ``auto``, ``decoded``, ``text``, ``json`` or ``hex``.
        at: first byte of the body that is shown.
    """

    topic: str
    broker: str
    queue: int
    offset: str
    form: str = "auto"
    at: int = 0


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message with all its fields.

    Attributes:
        traits: what its flags say, for example ``compressed``.
        origin: the topic to which the message was sent at first, as far as its properties tell.
        group: the group whose retry or dead-letter topic it is in; empty if it is in none.
        properties: None if the visitor may not see them; so with ``body``.
    """

    row: MessageRow
    physical_offset: Large
    stored_size: Large
    born_host: str
    store_host: str
    flag: int
    sys_flag: int
    body_crc: int
    traits: tuple[str, ...]
    origin: str
    group: str
    properties: Mapping[str, str] | None
    body: BodyView | None


async def messages(visit: Visit, query: MessagesQuery) -> MessagePage:
    """Searches messages."""
    if query.by not in WAYS:
        raise BadQueryError("by", query.by, ", ".join(WAYS))
    snapshot = await visit.watch.fresh()
    topics = topics_shown(snapshot)
    is_asked = bool(query.key) if query.by in ("key", "unique", "id") else bool(query.topic)
    if not is_asked or (query.by == "offset" and not query.offset):
        return MessagePage(False, (), Stop.END, 0, None, None, None, "", (), topics)
    found = await _found(visit, query)
    rows = tuple(row_of(message, visit.may_see_bodies) for message in found.messages)
    return MessagePage(
        True, rows, found.stop.value, found.scanned, found.total, found.first_ms, found.last_ms, found.cursor,
        found.unknown, topics,
    )  # fmt: skip


def topics_shown(snapshot: ClusterSnapshot) -> tuple[str, ...]:
    """The topics that a form about messages offers."""
    return tuple(sorted(name for name, topic in snapshot.topics.items() if topic.kind in ("normal", "dead", "retry")))


async def message(visit: Visit, query: OneMessageQuery) -> MessageView:
    """One message, with a window of its body."""
    if query.form not in FORMS:
        raise BadQueryError("form", query.form, ", ".join(FORMS))
    found = await stored_message(visit, query)
    transaction = TRANSACTION.get(found.sys_flag & 0xC)
    traits = [name for flag, name in TRAITS if found.sys_flag & flag] + ([transaction] if transaction else [])
    is_open = visit.may_see_bodies
    decoder = visit.desks.decoders.of(origin_of(found))
    body = await asyncio.to_thread(view_body, found.body, query.form, query.at, decoder) if is_open else None
    is_returned = is_retry_topic(query.topic) or is_dlq_topic(query.topic)
    return MessageView(
        row_of(found, is_open),
        found.physical_offset,
        found.store_size,
        host_text(found.born_host),
        host_text(found.store_host),
        found.flag,
        found.sys_flag,
        found.body_crc,
        tuple(traits),
        origin_of(found),
        query.topic.split("%", 2)[2] if is_returned else "",
        dict(found.properties) if is_open else None,
        body,
    )


async def stored_message(visit: Visit, query: OneMessageQuery) -> MessageExt:
    """The message that a query names.

    Raises:
        NotFoundError: there is none, or its broker does not answer.
    """
    snapshot = await visit.watch.fresh()
    queue = MessageQueue(query.topic, query.broker, query.queue)
    found = await by_offset(visit.watch.admin, snapshot, queue, _offset(query.offset))
    if not found.messages:
        why = found.unknown[0].text if found.unknown else ""
        raise NotFoundError(f"{query.topic} {query.broker} {query.queue} {query.offset}", why)
    return found.messages[0]


async def _found(visit: Visit, query: MessagesQuery) -> SearchResult:
    admin, snapshot = visit.watch.admin, visit.watch.poller.snapshot
    if query.by == "id":
        try:
            return await by_id(admin, snapshot, query.key.strip())
        except ValueError:
            raise BadQueryError("key", query.key, "an offset message id: 32 or 56 hexadecimal digits") from None
    if query.by in ("key", "unique"):
        if not query.topic:
            raise BadQueryError("topic", "", "the topic of the message")
        return await by_key(admin, snapshot, query.topic, query.key.strip(), query.by == "unique")
    if query.by == "offset":
        number = number_in(query.queue or "0", 0, (1 << 31) - 1)
        if number is None:
            raise BadQueryError("queue", query.queue, "the number of a queue")
        queue = MessageQueue(query.topic, query.broker or _only_broker(visit), number)
        return await by_offset(admin, snapshot, queue, _offset(query.offset))
    if not 1 <= query.count <= 500:
        raise BadQueryError("count", str(query.count), "1 to 500")
    text = query.text if visit.may_see_bodies else ""
    begin, end = time_ms("begin", query.begin), time_ms("end", query.end)
    try:
        return await scan(
            admin, snapshot, ScanQuery(query.topic, begin, end, query.tag, text, query.count, query.cursor)
        )
    except ValueError:
        raise BadQueryError("cursor", query.cursor, "the cursor of an earlier search") from None


def _only_broker(visit: Visit) -> str:
    masters = visit.watch.poller.snapshot.masters
    if len(masters) != 1:
        raise BadQueryError("broker", "", ", ".join(broker.name for broker in masters) or "the name of a broker")
    return masters[0].name


def _offset(text: str) -> int:
    value = number_in(text.strip(), 0, INT64_MAX)
    if value is None:
        raise BadQueryError("offset", text, "a queue offset, 0 or more")
    return value
