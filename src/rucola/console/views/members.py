"""A group's members and the queues that they read, over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rucola.console.history import DAYS_MAX
from rucola.console.memberships import MemberHistory, Membership
from rucola.console.visit import BadQueryError, NotFoundError, Visit

MOVES_MAX: Final = 50
CHANGES_MAX: Final = 200
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class MembersQuery:
    """The group whose past is wanted.

    Attributes:
        name: its name.
        hours: how much of the past.
    """

    name: str
    hours: int = 24


@dataclass(frozen=True, slots=True)
class MemberSpan:
    """A member for a while, in which its queues stayed the same. ``queues`` is None if it did not tell."""

    client: str
    begin_ms: int
    end_ms: int
    queues: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class QueueMove:
    """A queue that another member reads now; an empty name stands for nobody."""

    queue: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class MembersChange:
    """A change of a group. ``moved``: how many queues have another reader; ``moves``: the first 50 of them."""

    time_ms: int
    members: int
    joined: tuple[str, ...]
    left: tuple[str, ...]
    moved: int
    moves: tuple[QueueMove, ...]


@dataclass(frozen=True, slots=True)
class MembersPage:
    """A group's past, as the visitor's account saw it.

    Attributes:
        changes: the newest first, at most 200.
        spans: who was a member when, for the picture.
        since_ms: since when the console has looked; None if it has not seen the group.
    """

    group: str
    changes: tuple[MembersChange, ...]
    spans: tuple[MemberSpan, ...]
    since_ms: int | None


async def group_members(visit: Visit, query: MembersQuery) -> MembersPage:
    """A group's members and the queues that they read, over time."""
    if not 1 <= query.hours <= DAYS_MAX * 24:
        raise BadQueryError("hours", str(query.hours), f"1 to {DAYS_MAX * 24}")
    snapshot = await visit.watch.fresh()
    begin_ms = visit.now_ms() - query.hours * _HOUR_MS
    past = await visit.watch.members(query.name, begin_ms)
    if query.name not in snapshot.groups and not past.rows:
        raise NotFoundError(query.name)
    since_ms = max(past.rows[0][0], begin_ms) if past.rows else None
    changes = [_change(time_ms, before, after) for (_, before), (time_ms, after) in pairwise(past.rows)]
    shown = [change for change in changes if change.time_ms >= begin_ms][-CHANGES_MAX:]
    return MembersPage(query.name, tuple(reversed(shown)), tuple(_spans(past, begin_ms)), since_ms)


def _change(time_ms: int, before: Membership, after: Membership) -> MembersChange:
    old, new = _readers(before), _readers(after)
    # Only where all members have told can a queue be without a reader.
    is_known = None not in before.values() and None not in after.values()
    queues = sorted({*old, *new} if is_known else {*old} & {*new})
    moves = [
        QueueMove(queue, old.get(queue, ""), new.get(queue, "")) for queue in queues if old.get(queue) != new.get(queue)
    ]
    return MembersChange(
        time_ms,
        len(after),
        tuple(sorted(set(after) - set(before))),
        tuple(sorted(set(before) - set(after))),
        len(moves),
        tuple(moves[:MOVES_MAX]),
    )


def _readers(members: Membership) -> dict[str, str]:
    return {queue: client for client, queues in members.items() for queue in queues or ()}


def _spans(past: MemberHistory, begin_ms: int) -> list[MemberSpan]:
    """The spans of all members, without the times in which nobody looked."""
    found: list[MemberSpan] = []
    if not past.rows:
        return found
    ends = [time_ms for time_ms, _ in past.rows[1:]]
    last_ms = max((end for _, end in past.looked), default=0)
    for (time_ms, members), end_ms in zip(past.rows, [*ends, last_ms], strict=True):
        for first, last in _seen(past.looked, max(time_ms, begin_ms), end_ms):
            found += [MemberSpan(client, first, last, queues) for client, queues in members.items()]
    return found


def _seen(looked: Sequence[tuple[int, int]], begin_ms: int, end_ms: int) -> list[tuple[int, int]]:
    """The parts of a time in which the console looked."""
    parts = [(max(first, begin_ms), min(last, end_ms)) for first, last in looked]
    return [(first, last) for first, last in parts if first <= last]
