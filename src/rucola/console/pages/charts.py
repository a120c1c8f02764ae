"""Charts as SVG. All styles are classes, because the content-security policy allows no style in a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from markupsafe import Markup, escape

from rucola.console.views.listing import Point
from rucola.console.views.sql import Bar

WIDTH: Final = 600
HEIGHT: Final = 100
"""Size of the drawing, which the page stretches; numbers and times are text beside it, and keep their size."""
_TOP: Final = 3
"""Room for half of a thick line above the largest value."""
_POINTS_MAX: Final = 300
_NAME_MAX: Final = 26


def chart(
    points: Sequence[Point], title: str, shown: Callable[[float | None], str], clock: Callable[[int], str]
) -> Markup:
    """A line over time, with a gap where nothing is known; empty if there are fewer than two values.

    Args:
        points: the values; zero is always within the picture.
        title: what it shows, for those who cannot see it.
        shown: writes a value.
        clock: writes a time.
    """
    known = [point.value for point in points if point.value is not None]
    if len(known) < 2:
        return Markup("")
    top = max(known) or 1.0
    first_ms, last_ms = points[0].time_ms, points[-1].time_ms
    span = max(last_ms - first_ms, 1)

    def place(point: Point) -> str:
        x = WIDTH * (point.time_ms - first_ms) / span
        y = _TOP + (HEIGHT - _TOP) * (1 - (point.value or 0.0) / top)
        return f"{x:.1f},{y:.1f}"

    runs = [list(map(place, run)) for run in _runs(_thinned(points)) if len(run) > 1]
    lines = "".join(_area(run) + f'<polyline class="line" points="{" ".join(run)}"/>' for run in runs)
    label = f"{title}: {shown(known[-1])}, {clock(first_ms)} – {clock(last_ms)}, max {shown(top)}"
    return Markup(
        f'<div class="chart" role="img" aria-label="{escape(label)}">'
        f'<div class="scale"><span>{escape(shown(top))}</span><span>{escape(shown(0.0))}</span></div>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" aria-hidden="true">{lines}</svg>'
        f'<div class="times"><span>{escape(clock(first_ms))}</span><span>{escape(clock(last_ms))}</span></div></div>'
    )


def _area(run: Sequence[str]) -> str:
    """What is below a line."""
    first, last = run[0].partition(",")[0], run[-1].partition(",")[0]
    return f'<polygon class="area" points="{first},{HEIGHT} {" ".join(run)} {last},{HEIGHT}"/>'


def bars(rows: Sequence[Bar], title: str, shown: Callable[[float | None], str]) -> Markup:
    """A horizontal bar for each row, between its name and its value; empty without rows."""
    if not rows:
        return Markup("")
    parts = "".join(
        f'<span title="{escape(row.name)}">{escape(_cut(row.name))}</span>'
        f'<svg viewBox="0 0 {WIDTH} 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{WIDTH * row.part:.1f}" height="1"/></svg><span>{escape(shown(row.value))}</span>'
        for row in rows
    )
    return Markup(f'<div class="bars" role="img" aria-label="{escape(title)}">{parts}</div>')


def _cut(name: str) -> str:
    return name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 1]}…"


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most ``_POINTS_MAX`` points; of several, the largest, so that no peak is lost."""
    step = -(-len(points) // _POINTS_MAX)
    found = []
    for at in range(0, len(points), step):
        part = points[at : at + step]
        found.append(max(part, key=lambda point: -1.0 if point.value is None else point.value))
    return found


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """The parts without gaps."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if point.value is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return runs
