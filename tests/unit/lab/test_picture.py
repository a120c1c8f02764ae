"""What a panel shows: medians, whiskers from the least to the greatest, titles with units, a legend below the data."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from rucola.lab.lesson import Quantity, X
from rucola.lab.picture import draw_panel
from rucola.lab.readings import Readings

QUANTITY = Quantity("time", "Time of a write", "µs per record", "record size, bytes")


def panel(rows: dict[X, list[float]], quantity: Quantity = QUANTITY, series: tuple[str, ...] = ("map", "call")):  # type: ignore[no-untyped-def]
    readings = Readings("made-up", "small")
    for name in series:
        for row, values in rows.items():
            for value in values:
                readings.add("time", name, row, value)
    figure = Figure(layout="constrained")
    axes = figure.add_subplot()
    draw_panel(axes, quantity, readings)
    figure.canvas.draw()  # type: ignore[attr-defined]
    return axes


VALUES = [3.0, 1.0, 2.0, 9.0, 2.5]


@pytest.mark.parametrize("rows", [{1: VALUES, 1024: VALUES, 65_536: VALUES}, {"cold": VALUES, "warm": VALUES}])
def test_whiskers_go_from_the_least_to_the_greatest(rows: dict[X, list[float]]) -> None:
    axes = panel(rows)
    whiskers = [segment for collection in axes.collections for segment in getattr(collection, "get_segments", list)()]
    assert len(whiskers) == 2 * len(rows)
    assert all(sorted([float(low[1]), float(high[1])]) == [1.0, 9.0] for low, high in whiskers)


def test_axes_have_titles_with_units_and_the_legend_covers_no_data() -> None:
    axes = panel({1: VALUES, 1024: VALUES, 65_536: VALUES})
    assert (axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel()) == (
        "Time of a write",
        "record size, bytes",
        "µs per record",
    )
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "1Ki", "64Ki"]
    legend = axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["map", "call"]
    assert legend.get_window_extent().y1 < axes.get_window_extent().y0
    assert legend.get_window_extent().y1 <= axes.xaxis.label.get_window_extent().y0 + 2


def test_long_names_of_rows_do_not_meet_the_legend() -> None:
    axes = panel({"half of them take less than": VALUES, "the longest of them takes": VALUES})
    assert axes.get_legend().get_window_extent().y1 <= axes.xaxis.label.get_window_extent().y0 + 2


def test_an_axis_is_logarithmic_only_when_numbers_lie_far_apart() -> None:
    wide = {1: [1.0] * 5, 2: [10.0] * 5, 3: [100.0] * 5}
    assert panel(wide).get_yscale() == "log"
    assert panel(wide, Quantity("time", "Count", "faults", "n", linear=True)).get_yscale() == "linear"
    narrow = panel({1: [1.0] * 5, 2: [2.0] * 5, 3: [3.0] * 5})
    assert narrow.get_yscale() == "linear" and narrow.get_ylim()[0] == 0
    assert panel({1: [0.0] * 5, 2: [2.0] * 5, 3: [300.0] * 5}).get_yscale() == "linear"
