"""Messages that wait inside the brokers: how many, until when, for whom."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.console.cluster.asking import Unknown
from rucola.console.cluster.snapshot import Large
from rucola.console.messages.waiting import KINDS, HeldMessage, WaitingSum, waiting
from rucola.console.visit import BadQueryError, Visit


@dataclass(frozen=True, slots=True)
class WaitingQuery:
    """What waits.

    Attributes:
        kind: ``delayed`` (by level), ``timed``, ``half`` (for a producer's decision) or ``popped`` (for an
            acknowledgement).
    """

    kind: str = "delayed"


@dataclass(frozen=True, slots=True)
class WaitingPage:
    """What waits, the next messages first.

    Attributes:
        sums: how many, for each reason and broker.
        rows: messages, at most 100.
        scanned: records that were read for the rows, of ``total``.
    """

    kind: str
    sums: tuple[WaitingSum, ...]
    rows: tuple[HeldMessage, ...]
    scanned: Large
    total: Large
    unknown: tuple[Unknown, ...]
    taken_ms: int


async def waiting_messages(visit: Visit, query: WaitingQuery) -> WaitingPage:
    """Messages that wait inside the brokers."""
    if query.kind not in KINDS:
        raise BadQueryError("kind", query.kind, ", ".join(KINDS))
    snapshot = await visit.watch.fresh()
    now_ms = visit.now_ms()
    found = await waiting(visit.watch.admin, snapshot, query.kind, now_ms)
    if not snapshot.masters:
        found.unknown += snapshot.refusals
    return WaitingPage(
        query.kind, tuple(found.sums), tuple(found.rows), found.scanned, found.total, tuple(found.unknown), now_ms
    )
