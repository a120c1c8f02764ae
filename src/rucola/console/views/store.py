"""Stores on this machine: their parts, each item byte by byte, and long jobs. For super users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rucola.common.numbers import INT64_MAX, number_in
from rucola.console.access.super_user import require_super_user
from rucola.console.cluster.snapshot import Large
from rucola.console.store.child import ChildError
from rucola.console.store.explorer import JOBS, StoreJob
from rucola.console.visit import BadQueryError, NotFoundError, Visit

KINDS: Final = (
    "record", "unit", "ext", "index-header", "index-slot", "index-entry", "checkpoint", "timer-unit", "timer-slot",
    "timer-checkpoint",
)  # fmt: skip
_BYTES_A_LINE: Final = 16
_TOPICS_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """A store.

    Attributes:
        store: its number among the stores of this console, from 0.
    """

    store: int = 0


@dataclass(frozen=True, slots=True)
class ItemQuery:
    """An item of a store.

    Attributes:
        kind: ``record``, ``unit``, ``ext``, ``index-header``, ``index-slot``, ``index-entry``, ``checkpoint``,
            ``timer-unit``, ``timer-slot`` or ``timer-checkpoint``.
        store: number of the store.
        number: physical offset of a record, queue offset of a unit, number of a slot or entry, position of a timer
            unit, time step of a timer slot.
        topic: topic of a unit.
        queue: queue of a unit.
        name: name of an index file.
    """

    kind: str
    store: int = 0
    number: str = "0"
    topic: str = ""
    queue: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """A key in the index of a store.

    Attributes:
        topic: the topic of the message.
        key: one of its keys, or its unique key.
        store: number of the store.
    """

    topic: str
    key: str
    store: int = 0


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What is done with a long job.

    Attributes:
        job: ``verify`` compares all files; ``shares`` counts what each topic has in each segment.
        do: ``start`` or ``cancel``.
        store: number of the store.
    """

    job: str
    do: str
    store: int = 0


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """A finding of a check."""

    kind: str
    file: str
    position: Large
    count: Large
    detail: str


@dataclass(frozen=True, slots=True)
class TopicShare:
    """What a topic has in a segment; ``part`` of the bytes of its messages."""

    topic: str
    bytes: Large
    messages: Large
    part: float


@dataclass(frozen=True, slots=True)
class SegmentShares:
    """A segment with the topics that have the most bytes in it, and the rest as ``others``."""

    start: Large
    topics: tuple[TopicShare, ...]
    others: Large


@dataclass(frozen=True, slots=True)
class JobShown:
    """The newest job of a kind.

    Attributes:
        state: ``none``, ``running``, ``done``, ``failed`` or ``cancelled``.
        done: part that is done, 0 to 1; None if that is not known yet.
        checked: records that the check has read.
        total: number of findings, of which the first are in ``findings``.
    """

    job: str
    state: str
    done: float | None
    error: str
    checked: Large
    total: Large
    findings: tuple[StoreFinding, ...]
    notes: tuple[str, ...]
    segments: tuple[SegmentShares, ...]


@dataclass(frozen=True, slots=True)
class StoreSegment:
    """A segment of the commit log."""

    file: str
    start: Large
    size: Large


@dataclass(frozen=True, slots=True)
class StoreIndexFile:
    """An index file; ``slots`` is 0 if the file is too damaged to tell."""

    name: str
    entries: Large
    slots: Large


@dataclass(frozen=True, slots=True)
class StoreQueue:
    """A consume queue."""

    topic: str
    queue: int
    min_offset: Large
    max_offset: Large


@dataclass(frozen=True, slots=True)
class StorePage:
    """A store.

    Attributes:
        stores: paths of all stores of this console.
        writer: the program that probably wrote it.
        in_use: whether a broker uses it now.
        lite_topics: number of lite topics.
        queues: the first queues, of ``queue_count``.
        timer: whether it has a timer wheel.
    """

    store: int
    stores: tuple[str, ...]
    path: str
    writer: str
    in_use: bool
    size: Large
    min_offset: Large
    end_offset: Large
    messages: Large
    topics: int
    lite_topics: int
    segments: tuple[StoreSegment, ...]
    index_files: tuple[StoreIndexFile, ...]
    queues: tuple[StoreQueue, ...]
    queue_count: int
    timer: bool
    jobs: tuple[JobShown, ...]


@dataclass(frozen=True, slots=True)
class ItemLink:
    """The item that a field points to: the parameters of its address. With ``key``, it is the place in the index."""

    kind: str
    number: str
    topic: str
    queue: int
    name: str
    key: str


@dataclass(frozen=True, slots=True)
class ItemField:
    """A field of an item.

    Attributes:
        position: position of its first byte in the file.
        lines: its bytes as hexadecimal digits and as characters, 16 a line.
        size: number of its bytes; there are no more lines after 4096 bytes.
        meaning: what the value means; empty if it says itself.
    """

    position: Large
    lines: tuple[tuple[str, str], ...]
    size: Large
    name: str
    value: str | None
    meaning: str
    link: ItemLink | None


@dataclass(frozen=True, slots=True)
class ItemPage:
    """An item of a store, field by field."""

    title: str
    file: str
    fields: tuple[ItemField, ...]


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """An index file, and the slot of a key in it."""

    name: str
    slot: Large
    slots: Large
    entries: Large


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Where the index has a key: its hash, and a slot in each file, from which the chain of entries begins."""

    hash: Large
    places: tuple[KeyPlace, ...]


async def stores(visit: Visit, query: StoreQuery) -> StorePage:
    """A store on this machine: segments, queues, index files and jobs."""
    found = await _asked(visit, query.store, {"ask": "summary"})
    return StorePage(
        query.store,
        visit.desks.explorer.directories,
        found["path"],
        found["writer"],
        found["in_use"],
        found["size"],
        found["min_offset"],
        found["end_offset"],
        found["messages"],
        found["topics"],
        found["lite_topics"],
        tuple(StoreSegment(**one) for one in found["segments"]),
        tuple(StoreIndexFile(**one) for one in found["index_files"]),
        tuple(StoreQueue(**one) for one in found["queues"]),
        found["queue_count"],
        found["timer"],
        tuple(_job_shown(kind, visit.desks.explorer.job(query.store, kind)) for kind in JOBS),
    )


async def item(visit: Visit, query: ItemQuery) -> ItemPage:
    """A record, queue unit, index slot or other item of a store, byte by byte."""
    if query.kind not in KINDS:
        raise BadQueryError("kind", query.kind, ", ".join(KINDS))
    if number_in(query.number, 0, INT64_MAX) is None:
        raise BadQueryError("number", query.number, "0 or more")
    if query.queue < 0:
        raise BadQueryError("queue", str(query.queue), "0 or more")
    question = {"ask": "item", "kind": query.kind, "number": query.number, "topic": query.topic, "queue": query.queue}
    found = await _asked(visit, query.store, {**question, "name": query.name})
    return ItemPage(found["title"], found["file"], tuple(map(_field, found["fields"])))


async def key(visit: Visit, query: KeyQuery) -> KeyPage:
    """Where the index of a store has a key."""
    found = await _asked(visit, query.store, {"ask": "key", "topic": query.topic, "key": query.key})
    return KeyPage(found["hash"], tuple(KeyPlace(**one) for one in found["places"]))


async def change_job(visit: Visit, request: JobRequest) -> JobShown:
    """Starts or cancels a check of a store, or a count of its segments; returns the newest such job."""
    await require_super_user(visit)
    _check_store(visit, request.store)
    if request.job not in JOBS:
        raise BadQueryError("job", request.job, ", ".join(JOBS))
    if request.do not in ("start", "cancel"):
        raise BadQueryError("do", request.do, "start, cancel")
    act = visit.desks.explorer.start if request.do == "start" else visit.desks.explorer.cancel
    return _job_shown(request.job, act(request.store, request.job))


async def _asked(visit: Visit, store: int, question: dict[str, Any]) -> Any:
    await require_super_user(visit)
    _check_store(visit, store)
    try:
        return await visit.desks.explorer.ask(store, question)
    except ChildError as error:
        raise NotFoundError(str(error)) from None


def _check_store(visit: Visit, store: int) -> None:
    if not visit.desks.explorer.directories:
        raise NotFoundError("This console was started without --store.")
    if not 0 <= store < len(visit.desks.explorer.directories):
        raise BadQueryError("store", str(store), f"0 to {len(visit.desks.explorer.directories) - 1}")


def _job_shown(kind: str, job: StoreJob | None) -> JobShown:
    if job is None:
        return JobShown(kind, "none", None, "", 0, 0, (), (), ())
    result = job.result or {}
    return JobShown(
        kind,
        job.state,
        job.done / job.total if job.total else None,
        job.error,
        result.get("records", 0),
        result.get("total", 0),
        tuple(StoreFinding(**one) for one in result.get("findings", ())),
        tuple(result.get("notes", ())),
        tuple(map(_shares, result.get("segments", ()))),
    )


def _shares(found: dict[str, Any]) -> SegmentShares:
    total = max(sum(one["bytes"] for one in found["topics"]), 1)
    topics = [TopicShare(one["topic"], one["bytes"], one["messages"], one["bytes"] / total) for one in found["topics"]]
    rest = sum(one.bytes for one in topics[_TOPICS_SHOWN:])
    return SegmentShares(found["start"], tuple(topics[:_TOPICS_SHOWN]), rest)


def _field(found: dict[str, Any]) -> ItemField:
    data, link = bytes.fromhex(found["data"]), found["link"]
    lines = tuple(
        (part.hex(" "), "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part))
        for part in (data[at : at + _BYTES_A_LINE] for at in range(0, len(data), _BYTES_A_LINE))
    )
    target = None
    if link is not None:
        target = ItemLink(
            link["kind"], link.get("number", ""), link.get("topic", ""), int(link.get("queue", 0)),
            link.get("name", ""), link.get("key", ""),
        )  # fmt: skip
    return ItemField(found["position"], lines, found["size"], found["name"], found["value"], found["meaning"], target)
