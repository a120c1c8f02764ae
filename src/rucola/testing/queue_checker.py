"""Finds faults in what producers and consumers observed, for example lost, invented or reordered messages, or a queue
that had two owners at once.

A test records what it did and observed as a ``History``. The check returns findings; there are none if the history
keeps every promise. The promises are RocketMQ's. A message whose send was acknowledged is delivered at least once; a
message whose send was refused is never delivered; a message whose send has an unknown outcome may be delivered or not.
If a producer begins a send after another of its sends to the same queue was acknowledged, its message comes later in
the queue.

A message is identified by its value, which no other message has. All times come from one clock, in any unit.

A delivery through a retry topic (``retried``) has a queue and an offset of that topic: it counts as a delivery of the
value, but its offset is not checked. The module uses no clock and no I/O.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple


class Outcome(Enum):
    """The result of a send, as its producer knows it."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Kind(Enum):
    """Kinds of findings."""

    LOST = "acknowledged but never delivered"
    PHANTOM = "delivered but never sent"
    ABORTED_READ = "delivered although its send was refused"
    INCONSISTENT_OFFSET = "two messages have the same queue offset"
    DUPLICATE_POSITION = "a message has more queue offsets than its producer's retries explain"
    REDELIVERY = "delivered more often than the faults explain"
    NON_MONOTONIC = "a consumer went back in a queue"
    SKIPPED = "a consumer skipped a message"
    ORDER = "acknowledged sends of one producer are out of order"
    EARLY = "delivered before its time"
    RESURRECTED = "removed, but present again"
    STALE_PROGRESS = "a committed offset went back or past the end"
    PROGRESS_PAST_UNSEEN = "a committed offset is after a message that was never delivered"
    LATE = "delivered too late"
    OWNED_TWICE = "a queue had two owners"


class Send(NamedTuple):
    """The send of one value to a queue.

    Attributes:
        offset: queue offset in the response; None if the producer received no offset.
        began, ended: time when the send was called, and time when its outcome was known.
        visible_at: the earliest time of delivery; None for immediate delivery.
        retries: maximum number of further attempts by its producer.
    """

    value: str
    queue: str
    producer: str = "p"
    outcome: Outcome = Outcome.OK
    offset: int | None = None
    began: float = 0.0
    ended: float = 0.0
    visible_at: float | None = None
    retries: int = 0


class Delivery(NamedTuple):
    """The delivery of one value to a consumer.

    Attributes:
        session: a name that changes with each start, restart or seek of a consumer that must read a queue in order;
            empty for other consumers.
        retried: whether the value came through a retry topic.
    """

    value: str
    queue: str
    offset: int
    consumer: str = "c"
    at: float = 0.0
    session: str = ""
    retried: bool = False


class Commit(NamedTuple):
    """A committed offset: the next queue offset to consume. ``reset`` says whether it was set back on purpose."""

    queue: str
    offset: int
    at: float = 0.0
    reset: bool = False


class Ownership(NamedTuple):
    """The time in which a consumer owned a queue: from ``since`` up to, but not including, ``until``."""

    queue: str
    consumer: str
    since: float
    until: float


class Snapshot(NamedTuple):
    """All values that a queue holds at one time."""

    queue: str
    values: frozenset[str]
    at: float


@dataclass
class History:
    """Everything that a test did and observed.

    Attributes:
        drained: whether the test ended with enough time without faults for the consumers to receive everything.
        ordered: whether the first deliveries of a queue's messages, over all consumers, must be in queue order.
        redeliveries_max: limit on the number of repeated deliveries, summed over all values; None for no limit.
        latency_max: limit on the time to the first delivery, counted from the end of the send or from its
            ``visible_at``, whichever is later; None for no limit.
        settled_at: time from which no queue may have two owners.
    """

    sends: list[Send] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    ownerships: list[Ownership] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    drained: bool = True
    ordered: bool = False
    redeliveries_max: int | None = None
    latency_max: float | None = None
    settled_at: float = 0.0


class Finding(NamedTuple):
    """One violation."""

    kind: Kind
    queue: str
    detail: str


def check(history: History) -> list[Finding]:
    """All violations in ``history``."""
    parts = (
        _existence,
        _positions,
        _repetitions,
        _send_order,
        _sessions,
        _delivery_order,
        _times,
        _progress,
        _ownership,
        _snapshots,
    )
    return [finding for part in parts for finding in part(history)]


def _existence(history: History) -> Iterator[Finding]:
    sends = {send.value: send for send in history.sends}
    delivered = {delivery.value for delivery in history.deliveries}
    highest: dict[str, int] = {}
    for delivery in history.deliveries:
        if not delivery.retried and delivery.session:
            highest[delivery.queue] = max(delivery.offset, highest.get(delivery.queue, -1))
        send = sends.get(delivery.value)
        if send is None:
            yield Finding(Kind.PHANTOM, delivery.queue, delivery.value)
        elif send.outcome is Outcome.FAILED:
            yield Finding(Kind.ABORTED_READ, delivery.queue, delivery.value)
    for send in history.sends:
        if send.outcome is Outcome.OK and send.value not in delivered:
            passed = send.offset is not None and highest.get(send.queue, -1) > send.offset
            if history.drained or passed:
                yield Finding(Kind.LOST, send.queue, f"{send.value} at {send.offset}")


def _positions(history: History) -> Iterator[Finding]:
    """Compares the offsets in responses with those in deliveries."""
    sends = {send.value: send for send in history.sends}
    values: dict[tuple[str, int], set[str]] = defaultdict(set)
    places: dict[str, set[tuple[str, int]]] = defaultdict(set)
    entries: list[Send | Delivery] = [*history.sends, *history.deliveries]
    for entry in entries:
        told = not (isinstance(entry, Delivery) and entry.retried)
        if told and entry.offset is not None and sends.get(entry.value) is not None:
            values[entry.queue, entry.offset].add(entry.value)
            places[entry.value].add((entry.queue, entry.offset))
    for (queue, offset), found in values.items():
        if len(found) > 1:
            yield Finding(Kind.INCONSISTENT_OFFSET, queue, f"{offset}: {', '.join(sorted(found))}")
    for value, known in places.items():
        if len(known) > 1 + sends[value].retries:
            yield Finding(Kind.DUPLICATE_POSITION, sends[value].queue, f"{value}: {sorted(known)}")


def _repetitions(history: History) -> Iterator[Finding]:
    if history.redeliveries_max is None:
        return
    values = {delivery.value for delivery in history.deliveries}
    again = len(history.deliveries) - len(values)
    if again > history.redeliveries_max:
        yield Finding(Kind.REDELIVERY, "", f"{again} redeliveries, {history.redeliveries_max} explained")


def _send_order(history: History) -> Iterator[Finding]:
    """Finds sends that began after another send was acknowledged, but have a lower offset."""
    lines: dict[tuple[str, str], list[Send]] = defaultdict(list)
    for send in history.sends:
        if send.outcome is Outcome.OK and send.offset is not None and not send.retries:
            lines[send.queue, send.producer].append(send)
    for (queue, _), line in lines.items():
        by_end = sorted(line, key=lambda send: send.ended)
        highest: Send | None = None  # among the sends that ended before the current one began
        position = 0
        for send in sorted(line, key=lambda send: send.began):
            while position < len(by_end) and by_end[position].ended <= send.began and by_end[position] is not send:
                done = by_end[position]
                if highest is None or (done.offset or 0) > (highest.offset or 0):
                    highest = done
                position += 1
            if highest is not None and highest is not send and (send.offset or 0) < (highest.offset or 0):
                yield Finding(Kind.ORDER, queue, f"{send.value} at {send.offset}, {highest.value} at {highest.offset}")


def _sessions(history: History) -> Iterator[Finding]:
    """Finds consumers that read in order but went back or skipped a message."""
    stored: dict[str, list[int]] = defaultdict(list)
    for send in history.sends:
        if send.outcome is Outcome.OK and send.offset is not None:
            stored[send.queue].append(send.offset)
    lines: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for delivery in history.deliveries:
        if delivery.session and not delivery.retried:
            lines[delivery.consumer, delivery.session, delivery.queue].append(delivery.offset)
    for (consumer, _, queue), offsets in lines.items():
        for before, after in pairwise(offsets):
            if after < before:
                yield Finding(Kind.NON_MONOTONIC, queue, f"{consumer}: {after} after {before}")
            skipped = [offset for offset in stored[queue] if before < offset < after]
            if skipped:
                yield Finding(Kind.SKIPPED, queue, f"{consumer}: {before} to {after}, not {sorted(skipped)[:5]}")


def _delivery_order(history: History) -> Iterator[Finding]:
    if not history.ordered:
        return
    seen: set[str] = set()
    highest: dict[str, int] = {}
    for delivery in sorted(history.deliveries, key=lambda delivery: delivery.at):
        if delivery.retried or delivery.value in seen:
            continue
        seen.add(delivery.value)
        if delivery.offset < highest.get(delivery.queue, -1):
            detail = f"{delivery.value} at {delivery.offset}: first delivery after that of {highest[delivery.queue]}"
            yield Finding(Kind.ORDER, delivery.queue, detail)
        highest[delivery.queue] = max(delivery.offset, highest.get(delivery.queue, -1))


def _times(history: History) -> Iterator[Finding]:
    first: dict[str, Delivery] = {}
    for delivery in history.deliveries:
        known = first.get(delivery.value)
        if known is None or delivery.at < known.at:
            first[delivery.value] = delivery
    for send in history.sends:
        found = first.get(send.value)
        if found is None:
            continue
        begins = send.began if send.visible_at is None else send.visible_at
        if found.at < begins:
            yield Finding(Kind.EARLY, send.queue, f"{send.value}: {found.at}, not before {begins}")
        due = max(send.ended, begins)
        if history.latency_max is not None and send.outcome is Outcome.OK and found.at > due + history.latency_max:
            yield Finding(Kind.LATE, send.queue, f"{send.value}: {found.at}, due {due}")


def _progress(history: History) -> Iterator[Finding]:
    positions: dict[str, set[int]] = defaultdict(set)
    entries: list[Send | Delivery] = [*history.sends, *history.deliveries]
    for entry in entries:
        if entry.offset is not None and not (isinstance(entry, Delivery) and entry.retried):
            positions[entry.queue].add(entry.offset)
    delivered = {delivery.value for delivery in history.deliveries}
    last: dict[str, Commit] = {}
    for commit in sorted(history.commits, key=lambda commit: commit.at):
        before = last.get(commit.queue)
        if before is not None and commit.offset < before.offset and not commit.reset:
            yield Finding(Kind.STALE_PROGRESS, commit.queue, f"{commit.offset} after {before.offset}")
        if commit.offset > max(positions[commit.queue], default=-1) + 1:
            yield Finding(Kind.STALE_PROGRESS, commit.queue, f"{commit.offset} is past the end")
        last[commit.queue] = commit
    for send in history.sends:
        stored = last.get(send.queue)
        if stored is None or send.offset is None or send.outcome is not Outcome.OK or send.value in delivered:
            continue
        if send.offset < stored.offset:
            yield Finding(Kind.PROGRESS_PAST_UNSEEN, send.queue, f"{send.value} at {send.offset}, {stored.offset}")


def _ownership(history: History) -> Iterator[Finding]:
    lines: dict[str, list[Ownership]] = defaultdict(list)
    for ownership in history.ownerships:
        if ownership.until > max(ownership.since, history.settled_at):
            lines[ownership.queue].append(ownership)
    for queue, line in lines.items():
        line.sort(key=lambda ownership: ownership.since)
        owner = line[0]
        for following in line[1:]:
            begins = max(following.since, history.settled_at)
            if following.consumer != owner.consumer and begins < owner.until:
                yield Finding(Kind.OWNED_TWICE, queue, f"{owner.consumer} and {following.consumer} at {begins}")
            if following.until > owner.until:
                owner = following


def _snapshots(history: History) -> Iterator[Finding]:
    lines: dict[str, list[Snapshot]] = defaultdict(list)
    for snapshot in sorted(history.snapshots, key=lambda snapshot: snapshot.at):
        lines[snapshot.queue].append(snapshot)
    for queue, line in lines.items():
        seen: set[str] = set()
        gone: set[str] = set()
        for snapshot in line:
            for value in sorted(snapshot.values & gone):
                yield Finding(Kind.RESURRECTED, queue, value)
            gone = (gone | (seen - snapshot.values)) - snapshot.values
            seen |= snapshot.values
            missing = _acknowledged(history.sends, queue, snapshot.at) - snapshot.values
            for value in sorted(missing):
                yield Finding(Kind.LOST, queue, f"{value} at {snapshot.at}")


def _acknowledged(sends: Iterable[Send], queue: str, at: float) -> set[str]:
    return {send.value for send in sends if send.queue == queue and send.outcome is Outcome.OK and send.ended <= at}
