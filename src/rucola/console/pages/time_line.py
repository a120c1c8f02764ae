"""A time line as SVG: one lane for each name, with bars and moments. All styles are classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from markupsafe import Markup, escape

WIDTH: Final = 900
_LEFT: Final = 170
_RIGHT: Final = 12
_LANE: Final = 26
_TOP: Final = 10
_BOTTOM: Final = 20
_LABEL_CHARACTERS: Final = 24
LANES_MAX: Final = 40
_SHORT_MS: Final = 10_000
"""A shorter line has its ends in milliseconds."""


class LaneMark(NamedTuple):
    """A bar in a lane, or a moment if ``end_ms`` is None.

    Attributes:
        lane: name of the lane.
        style: class of the mark: empty, ``fine``, ``failed`` or ``open``.
        title: what it shows, for the pointer.
    """

    lane: str
    at_ms: int
    end_ms: int | None
    style: str
    title: str


def time_line(marks: Sequence[LaneMark], title: str, clock: Callable[[int], str]) -> Markup:
    """The picture; empty without marks. Lanes come in the order of their first marks, at most ``LANES_MAX``.

    Args:
        title: what the picture shows, for those who cannot see it.
        clock: writes a time.
    """
    if not marks:
        return Markup("")
    lanes = list(dict.fromkeys(mark.lane for mark in marks))[:LANES_MAX]
    first_ms = min(mark.at_ms for mark in marks)
    last_ms = max(mark.at_ms if mark.end_ms is None else mark.end_ms for mark in marks)
    span = max(last_ms - first_ms, 1)
    base = _TOP + _LANE * len(lanes)
    begin, end = (f"{clock(at)}.{at % 1000:03d}" if span < _SHORT_MS else clock(at) for at in (first_ms, last_ms))

    def x(time_ms: int) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (time_ms - first_ms) / span

    parts = [
        f'<line class="grid" x1="{_LEFT}" y1="{_middle(number)}" x2="{WIDTH - _RIGHT}" y2="{_middle(number)}"/>'
        f'<text class="tick end" x="{_LEFT - 10}" y="{_middle(number) + 4}">{escape(_short(lane))}'
        f"<title>{escape(lane)}</title></text>"
        for number, lane in enumerate(lanes)
    ]
    places = {lane: _middle(number) for number, lane in enumerate(lanes)}
    parts += [_mark(mark, places[mark.lane], x) for mark in marks if mark.lane in places]
    return Markup(
        f'<svg class="lanes" viewBox="0 0 {WIDTH} {base + _BOTTOM}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}"
        f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{WIDTH - _RIGHT}" y2="{base}"/>'
        f'<text class="tick" x="{_LEFT}" y="{base + 15}">{escape(begin)}</text>'
        f'<text class="tick end" x="{WIDTH - _RIGHT}" y="{base + 15}">{escape(end)}</text></svg>'
    )


def _mark(mark: LaneMark, y: int, x: Callable[[int], float]) -> str:
    left, style, title = x(mark.at_ms), escape(mark.style or "plain"), f"<title>{escape(mark.title)}</title>"
    if mark.end_ms is None:
        return f'<circle class="mark {style}" cx="{left:.1f}" cy="{y}" r="5">{title}</circle>'
    width = max(x(mark.end_ms) - left, 4.0)
    return (
        f'<rect class="mark {style}" x="{left:.1f}" y="{y - 7}" width="{width:.1f}" height="14" rx="2">{title}</rect>'
    )


def _middle(number: int) -> int:
    return _TOP + _LANE * number + _LANE // 2


def _short(name: str) -> str:
    return name if len(name) <= _LABEL_CHARACTERS else f"…{name[1 - _LABEL_CHARACTERS :]}"
