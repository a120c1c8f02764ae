"""Pictures of lessons: a panel for each quantity, medians as lines or bars, the spread as whiskers.

A series has one colour in all panels of a lesson; panels with the same unit have the same scale. Series are drawn
slightly apart, so that none hides another.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeAlias

from rucola.errors import MissingProgramError, install_advice
from rucola.lab.lesson import Lesson
from rucola.lab.readings import Readings, middle_and_spread
from rucola.lab.terms import Quantity, X
from rucola.lab.text import row_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.lines import Line2D

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#555555")
"""The colours of series; colour-blind readers can distinguish them, too."""
_MARKERS = "osD^vP"
_STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#DDDDDD",
    "axes.axisbelow": True,
    "legend.frameon": False,
}
_PANEL_INCHES = (5.4, 3.9)
_WIDE = 20
"""An axis is logarithmic only if its greatest value is at least this many times its least value above zero."""
_TICKS_MAX = 10
_LABEL_CHARACTERS = 16
_LINE_CHARACTERS = 100
_POINTS_MIN = 3
"""With fewer rows, a panel has bars or dots instead of lines."""
_DODGE = 0.012
"""Distance between the points of neighbouring series in a row, as a fraction of the x axis."""
Looks: TypeAlias = "Mapping[str, tuple[str, str]]"
"""Colour and marker of each series."""


def check_drawing() -> None:
    """Checks before the first measurement that pictures can be drawn.

    Raises:
        MissingProgramError: the package for pictures is not installed.
    """
    try:
        import matplotlib  # noqa: F401 - whether it is installed
    except ImportError:
        raise MissingProgramError("matplotlib", "none", install_advice("lab")) from None


@dataclass(frozen=True)
class Scale:
    """The y axis, which shows the measured values.

    Attributes:
        low: lowest value on the axis; with ``zeros``, the least value above zero.
        high: highest value on the axis.
        logarithmic: whether the axis is logarithmic; a linear axis begins at zero.
        zeros: whether a logarithmic axis also has a place for zero.
    """

    low: float
    high: float
    logarithmic: bool
    zeros: bool = False

    @classmethod
    def of(cls, values: Sequence[float], linear: bool) -> Scale:
        """Returns the scale that fits the values."""
        above = [value for value in values if value > 0]
        if linear or not above or max(above) < _WIDE * min(above):
            return cls(0, max(max(values) * 1.08, 1e-9), False)
        if min(values) <= 0:
            return cls(min(above), max(above) * 1.3, True, True)
        return cls(min(above) / 1.3, max(above) * 1.3, True)


def draw(lesson: Lesson, readings: Readings) -> bytes:
    """Draws the picture of a lesson as PNG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10.8, 4.2), layout="constrained")
        if lesson.draw is not None:
            lesson.draw(figure, readings)
        else:
            panels = [quantity for quantity in lesson.quantities if quantity.drawn]
            figure.set_size_inches(2 * _PANEL_INCHES[0], -(-len(panels) // 2) * _PANEL_INCHES[1])
            draw_panels(figure, panels, readings)
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=110, metadata={"Software": None})
        return out.getvalue()


def draw_panels(figure: Figure | SubFigure, quantities: Sequence[Quantity], readings: Readings) -> None:
    """Draws the panels in two columns. The legend is in the last cell if this is free, otherwise below the panels."""
    looks = looks_of(quantities, readings)
    lines = -(-len(quantities) // 2)
    groups = list(_groups(quantities, readings))
    free = len(quantities) % 2 == 1
    for place, quantity in enumerate(quantities):
        axes = figure.add_subplot(lines, 2, place + 1)
        draw_panel(axes, quantity, readings, looks, scale_of(quantity, quantities, readings))
        if not free and len(groups) > 1:
            _legend_below(axes, quantity, readings, looks)
    if free:
        _legend_in_quarter(figure.add_subplot(lines, 2, len(quantities) + 1), groups, looks)
    elif len(groups) == 1:
        names = list(looks)
        fitting = max(1, _LINE_CHARACTERS // max(len(name) + 6 for name in names))
        figure.legend(handles=_handles(names, looks), loc="outside lower center", ncol=fitting, fontsize=9)


def looks_of(quantities: Sequence[Quantity], readings: Readings) -> Looks:
    """Returns the colour and marker of each series, the same in all panels."""
    names = dict.fromkeys(name for quantity in quantities for name in readings.values[quantity.name])
    return {name: (COLORS[place % len(COLORS)], _MARKERS[place % len(_MARKERS)]) for place, name in enumerate(names)}


def scale_of(quantity: Quantity, quantities: Sequence[Quantity], readings: Readings) -> Scale:
    """Returns the scale that fits all panels with the same unit."""
    alike = [one.name for one in quantities if (one.unit, one.linear) == (quantity.unit, quantity.linear)]
    values = [value for name, *_, cell in readings.cells() if name in alike for value in cell]
    return Scale.of(values, quantity.linear)


def draw_panel(axes: Axes, quantity: Quantity, readings: Readings, looks: Looks, scale: Scale) -> None:
    """Draws one quantity: lines if its rows are numbers, at least ``_POINTS_MIN``; otherwise bars or dots."""
    by_series = readings.values[quantity.name]
    rows = readings.rows(quantity.name)
    numeric = all(isinstance(row, int) for row in rows) and len(rows) >= _POINTS_MIN
    logarithmic = _scale_x(axes, rows, numeric, quantity.rows)
    for place, (series, by_row) in enumerate(by_series.items()):
        own = [row for row in rows if row in by_row]
        points = [middle_and_spread(by_row[row]) for row in own]
        middles = [float(middle) for middle, _, _ in points]
        spread = [[float(m - low) for m, low, _ in points], [float(high - m) for m, _, high in points]]
        color, marker = looks[series]
        shift = place - (len(by_series) - 1) / 2
        dots: Any = {"color": color, "marker": marker, "markersize": 5, "capsize": 3}
        if numeric:
            axes.errorbar(_beside(own, rows, shift * _DODGE, logarithmic), middles, spread, **dots)
        elif scale.logarithmic:  # bars need an axis that begins at zero
            at = [rows.index(row) + shift * 0.4 / len(by_series) for row in own]
            axes.errorbar(at, middles, spread, linestyle="", **dots)
        else:
            width = 0.8 / len(by_series)
            at = [rows.index(row) + shift * width for row in own]
            axes.bar(at, middles, width * 0.92, yerr=spread, color=color, capsize=3)
            for left, middle in zip(at, middles, strict=True):
                if middle == 0:
                    axes.annotate("0", (left, 0), (0, 4), textcoords="offset points", ha="center", color=color)
    _scale_y(axes, scale, numeric)
    axes.set_title(quantity.title, loc="left")
    axes.set_ylabel(f"{quantity.unit} (log scale)" if scale.logarithmic else quantity.unit)


def _beside(own: Sequence[X], rows: Sequence[X], part: float, logarithmic: bool) -> list[float]:
    """Returns the positions of points, which are shifted from the positions of their rows by ``part``."""
    first, last = int(rows[0]), int(rows[-1])
    if logarithmic:
        return [int(row) * (last / first) ** part for row in own]
    return [int(row) + (last - first) * part for row in own]


def _scale_x(axes: Axes, rows: Sequence[X], numeric: bool, name: str) -> bool:
    """Prepares the x axis, which shows ``rows``; returns whether the axis is logarithmic."""
    if not numeric:
        axes.set_xticks(range(len(rows)), [fill(row_text(row), _LABEL_CHARACTERS) for row in rows])
        axes.set_xlim(-0.5, len(rows) - 0.5)
        axes.set_xlabel(name)
        for place in range(1, len(rows)):
            axes.axvline(place - 0.5, color="#DDDDDD", linewidth=0.8)
        return False
    numbers = [int(row) for row in rows]
    first, last = numbers[0], numbers[-1]
    logarithmic = first > 0 and last >= _WIDE * first
    shown = numbers[:: -(-len(numbers) // _TICKS_MAX)]
    binary = name.endswith("bytes")
    if logarithmic:
        axes.set_xscale("log")
    axes.set_xticks(shown, [_short(number) if binary else f"{number:,}" for number in shown])
    axes.minorticks_off()
    axes.set_xlabel(f"{name} (log scale)" if logarithmic else name)
    return logarithmic


def _scale_y(axes: Axes, scale: Scale, numeric: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if scale.zeros:
        axes.set_yscale("symlog", linthresh=scale.low, linscale=0.4)
        axes.set_ylim(-0.3 * scale.low, scale.high)
        powers = range(ceil(log10(scale.low) - 0.1), floor(log10(scale.high)) + 1)
        axes.set_yticks([0, *(10.0**power for power in powers)])
        axes.minorticks_off()
    elif scale.logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(scale.low, scale.high)
        subs = (1.0,) if scale.high >= 1000 * scale.low else (1.0, 2.0, 5.0)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(-0.03 * scale.high if numeric else 0, scale.high)  # markers at zero are fully visible
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _groups(quantities: Sequence[Quantity], readings: Readings) -> Iterator[tuple[list[str], list[str]]]:
    """Yields the titles of panels that show the same series, with these series."""
    groups: list[tuple[list[str], dict[str, None]]] = []
    for quantity in quantities:
        names = dict.fromkeys(readings.values[quantity.name])
        for titles, known in groups:
            if names.keys() & known.keys():
                titles.append(quantity.title)
                known.update(names)
                break
        else:
            groups.append(([quantity.title], names))
    for titles, known in groups:
        yield titles, list(known)


def _handles(names: Sequence[str], looks: Looks) -> list[Line2D]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], color=looks[name][0], marker=looks[name][1], label=name) for name in names]


def _legend_below(axes: Axes, quantity: Quantity, readings: Readings, looks: Looks) -> None:
    names = list(readings.values[quantity.name])
    wrapped = any(len(row_text(row)) > _LABEL_CHARACTERS for row in readings.rows(quantity.name))
    columns = 1 if max(map(len, names)) > _LINE_CHARACTERS // 4 else 2
    place = (0.5, -0.25 if wrapped else -0.17)
    axes.legend(handles=_handles(names, looks), loc="upper center", bbox_to_anchor=place, ncol=columns, fontsize=9)


def _legend_in_quarter(axes: Axes, groups: Sequence[tuple[list[str], list[str]]], looks: Looks) -> None:
    from matplotlib.lines import Line2D

    axes.axis("off")
    handles: list[Line2D] = []
    for titles, names in groups:
        if handles:
            handles.append(Line2D([], [], linestyle="", label=""))
        if len(groups) > 1:
            handles.append(Line2D([], [], linestyle="", label="\n".join(titles)))
        handles += _handles(names, looks)
    legend = axes.legend(handles=handles, loc="center", fontsize=10)
    for text in legend.get_texts():
        if text.get_text() not in looks:
            text.set_fontweight("bold")


def _short(number: int) -> str:
    if number and number % (1 << 20) == 0:
        return f"{number >> 20}Mi"
    if number and number % 1024 == 0:
        return f"{number >> 10}Ki"
    return f"{number:,}"
