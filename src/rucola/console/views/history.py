"""One series of the console's history, for scripts."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.console.cluster.watches import DAY_MS
from rucola.console.history import DAYS_MAX
from rucola.console.views.listing import Point
from rucola.console.visit import BadQueryError, Visit


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """The series that is wanted.

    Attributes:
        series: its name, for example ``cluster/in`` or ``group/NAME/lag``.
        hours: how much of the past.
    """

    series: str
    hours: int = 24


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """A series, one value a minute; no points if nothing was seen under this name."""

    series: str
    points: tuple[Point, ...]


async def history(visit: Visit, query: HistoryQuery) -> HistoryPage:
    """A series, as the visitor's account saw it."""
    if not 1 <= query.hours <= DAYS_MAX * 24:
        raise BadQueryError("hours", str(query.hours), f"1 to {DAYS_MAX * 24}")
    points = await visit.watch.series(query.series, query.hours * DAY_MS // 24)
    return HistoryPage(query.series, tuple(Point(at, value) for at, value in points))
