"""Pictures of lessons: a panel for each quantity, medians as lines or bars, the spread as whiskers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rucola.errors import MissingProgramError
from rucola.lab.lesson import Lesson, Quantity, X
from rucola.lab.readings import Readings, middle_and_spread
from rucola.lab.text import row_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#555555")
"""Told apart by colour-blind readers too."""
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
"""A greatest number so many times the least one needs a logarithmic axis."""
_TICKS_MAX = 10
_LABEL_CHARACTERS = 16
_COLUMN_CHARACTERS = 30
_POINTS_MIN = 3
"""Fewer numbers make no line."""


def check_drawing() -> None:
    """Ends a command before it has measured anything.

    Raises:
        MissingProgramError: pictures cannot be drawn.
    """
    try:
        import matplotlib  # noqa: F401 - whether it is there
    except ImportError:
        raise MissingProgramError("matplotlib", "none", "pip install 'rucola[lab]'") from None


def draw(lesson: Lesson, readings: Readings) -> bytes:
    """The picture of a lesson as PNG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        panels = [quantity for quantity in lesson.quantities if quantity.drawn]
        if lesson.draw is not None:
            figure = Figure(figsize=(10.8, 4.2), layout="constrained")
            lesson.draw(figure, readings)
        else:
            columns = min(len(panels), 2)
            lines = -(-len(panels) // columns)
            size = (_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * lines)
            figure = Figure(figsize=size, layout="constrained")
            for place, quantity in enumerate(panels):
                draw_panel(figure.add_subplot(lines, columns, place + 1), quantity, readings)
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=110, metadata={"Software": None})
        return out.getvalue()


def draw_panel(axes: Axes, quantity: Quantity, readings: Readings) -> None:
    """One quantity: lines over numbers, bars beside names."""
    by_series = readings.values[quantity.name]
    rows = readings.rows(quantity.name)
    values = [value for by_row in by_series.values() for values in by_row.values() for value in values]
    wide = not quantity.linear and min(values) > 0 and max(values) >= _WIDE * min(values)
    numeric = all(isinstance(row, int) for row in rows) and len(rows) >= _POINTS_MIN
    for place, (series, by_row) in enumerate(by_series.items()):
        color = COLORS[place % len(COLORS)]
        points = [middle_and_spread(by_row[row]) for row in rows if row in by_row]
        middles = [float(middle) for middle, _, _ in points]
        spread = [[float(m - low) for m, low, _ in points], [float(high - m) for m, _, high in points]]
        own = [row for row in rows if row in by_row]
        marker = _MARKERS[place % len(_MARKERS)]
        if numeric:
            at: list[float] = [int(row) for row in own]
            axes.errorbar(at, middles, spread, color=color, marker=marker, markersize=5, capsize=3, label=series)
            continue
        width = 0.8 / len(by_series)
        shift = (place - (len(by_series) - 1) / 2) * width
        at = [rows.index(row) + shift for row in own]
        if wide:  # bars need an axis that begins at zero
            axes.errorbar(at, middles, spread, color=color, marker=marker, capsize=3, label=series, linestyle="")
        else:
            axes.bar(at, middles, width * 0.92, yerr=spread, color=color, capsize=3, label=series)
    _scale_x(axes, rows, numeric, binary=quantity.rows.endswith("bytes"))
    _scale_y(axes, wide, values)
    axes.set_title(quantity.title, loc="left")
    axes.set_xlabel(quantity.rows)
    axes.set_ylabel(quantity.unit)
    if len(by_series) > 1:
        wrapped = not numeric and any(len(row_text(row)) > _LABEL_CHARACTERS for row in rows)
        columns = 1 if max(map(len, by_series)) > _COLUMN_CHARACTERS else 2
        place_below = (0.5, -0.25 if wrapped else -0.17)
        axes.legend(loc="upper center", bbox_to_anchor=place_below, ncol=columns, fontsize=9)


def _scale_x(axes: Axes, rows: Sequence[X], numeric: bool, binary: bool) -> None:
    if not numeric:
        axes.set_xticks(range(len(rows)), [fill(row_text(row), _LABEL_CHARACTERS) for row in rows])
        axes.set_xlim(-0.5, len(rows) - 0.5)
        return
    numbers = [int(row) for row in rows]
    if numbers[0] > 0 and numbers[-1] >= _WIDE * numbers[0]:
        axes.set_xscale("log")
    shown = numbers[:: -(-len(numbers) // _TICKS_MAX)]
    axes.set_xticks(shown, [_short(number) if binary else f"{number:,}" for number in shown])
    axes.minorticks_off()


def _scale_y(axes: Axes, wide: bool, values: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if wide:
        axes.set_yscale("log")
        subs = (1.0,) if max(values) >= 1000 * min(values) else (1.0, 2.0, 5.0)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0, top=max(max(values) * 1.08, 1e-9))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _short(number: int) -> str:
    if number and number % (1 << 20) == 0:
        return f"{number >> 20}Mi"
    if number and number % 1024 == 0:
        return f"{number >> 10}Ki"
    return f"{number:,}"
