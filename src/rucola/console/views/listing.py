"""Parts that several views have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rucola.console.cluster.asking import Reason, Unknown
from rucola.console.cluster.snapshot import ClusterSnapshot
from rucola.console.lists import Cut
from rucola.console.visit import Visit


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What every list says.

    Attributes:
        total: number of rows before the search; ``matching`` after it.
        page: number of this page, from 1; ``pages``: how many there are.
        empty: why there are no rows: ``none`` exist, ``no-match``, ``forbidden``, ``unknown``; empty if there are rows.
        taken_ms: when the figures were seen.
        refusals: what servers did not tell.
    """

    total: int
    matching: int
    page: int
    pages: int
    empty: str
    taken_ms: int
    refusals: tuple[Unknown, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a series; ``value`` is None where nothing was seen."""

    time_ms: int
    value: float | None


@dataclass(frozen=True, slots=True)
class Series:
    """A figure over time, one value a minute."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class NoQuery:
    """A view without parameters."""


@dataclass(frozen=True, slots=True)
class NameQuery:
    """The object that a page shows.

    Attributes:
        name: its name.
    """

    name: str


def why_empty(found: Cut[object], snapshot: ClusterSnapshot) -> str:
    """Why a list has no rows, see ``Listing``."""
    if found.rows:
        return ""
    if found.total:
        return "no-match"
    if not snapshot.taken_ms:
        return "unknown"
    return why_unknown([*snapshot.refusals, *(one.unknown for one in snapshot.brokers if one.unknown is not None)])


def why_unknown(refusals: Sequence[Unknown]) -> str:
    """``forbidden`` if the account may not ask, ``unknown`` if servers do not tell, otherwise ``none``."""
    if any(one.reason is Reason.FORBIDDEN for one in refusals):
        return "forbidden"
    return "unknown" if refusals else "none"


async def series(visit: Visit, *names: str) -> tuple[Series, ...]:
    """The series of the last day."""
    return tuple(
        [Series(name, tuple(Point(at, value) for at, value in await visit.watch.series(name))) for name in names]
    )
