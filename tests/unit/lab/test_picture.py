"""Panels of pictures: medians, whiskers from least to greatest, titles with units, a legend below the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rucola.lab.lesson import Quantity, X
from rucola.lab.picture import Scale, draw_panels
from rucola.lab.readings import Readings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTITY = Quantity("time", "Time of a write", "µs per record", "record size, bytes")


def panel(rows: dict[X, list[float]], quantity: Quantity = QUANTITY, series: tuple[str, ...] = ("map", "call")):  # type: ignore[no-untyped-def]
    readings = Readings("made-up", "small")
    for name in series:
        for row, values in rows.items():
            for value in values:
                readings.add("time", name, row, value)
    return drawn(readings, quantity).axes[0]


def drawn(readings: Readings, *quantities: Quantity) -> Figure:
    from matplotlib.figure import Figure  # not in each process that collects the tests

    figure = Figure(figsize=(10.8, 4), layout="constrained")
    draw_panels(figure, quantities, readings)
    figure.draw_without_rendering()
    return figure


VALUES = [3.0, 1.0, 2.0, 9.0, 2.5]


@pytest.mark.parametrize("rows", [{1: VALUES, 1024: VALUES, 65_536: VALUES}, {"cold": VALUES, "warm": VALUES}])
def test_whiskers_go_from_the_least_to_the_greatest(rows: dict[X, list[float]]) -> None:
    axes = panel(rows)
    whiskers = [segment for collection in axes.collections for segment in getattr(collection, "get_segments", list)()]
    assert len(whiskers) == 2 * len(rows)
    assert all(sorted([float(low[1]), float(high[1])]) == [1.0, 9.0] for low, high in whiskers)


def test_axes_have_titles_with_units_and_say_when_they_are_logarithmic() -> None:
    axes = panel({1: VALUES, 1024: VALUES, 65_536: VALUES})
    assert (axes.get_title("left"), axes.get_xlabel(), axes.get_ylabel()) == (
        "Time of a write",
        "record size, bytes (log scale)",
        "µs per record",
    )
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "1Ki", "64Ki"]
    assert panel({1: [1.0] * 5, 2: [10.0] * 5, 3: [100.0] * 5}).get_ylabel() == "µs per record (log scale)"


def test_series_lie_beside_each_other() -> None:
    for rows in ({1: VALUES, 1024: VALUES, 65_536: VALUES}, {10: VALUES, 20: VALUES, 30: VALUES}):
        left, right = (container[0].get_xdata() for container in panel(rows).containers)
        assert all(a < b < 1.2 * a for a, b in zip(left, right, strict=True))


def made_up(series: dict[str, tuple[str, ...]]) -> Readings:
    readings = Readings("made-up", "small")
    for quantity, names in series.items():
        for place, name in enumerate(names):
            for row in ("cold", "warm"):
                for _ in range(5):
                    readings.add(quantity, name, row, 1.0 + place)
    return readings


def quantity(name: str, unit: str = "µs") -> Quantity:
    return Quantity(name, name.title(), unit, "state")


def test_one_legend_in_the_free_quarter_and_one_look_for_each_series() -> None:
    readings = made_up({"near": ("a", "b"), "far": ("a", "b"), "filter": ("b",)})
    figure = drawn(readings, quantity("near"), quantity("far"), quantity("filter"))
    *panels, quarter = figure.axes
    assert all(axes.get_legend() is None for axes in panels) and not quarter.axison
    assert [text.get_text() for text in quarter.get_legend().get_texts()] == ["a", "b"]
    near, far, only = ({patch.get_facecolor() for patch in axes.patches} for axes in panels)
    assert near == far and len(near) == 2 and only < near


def test_panels_with_other_series_are_told_apart_in_the_legend() -> None:
    readings = made_up({"near": ("a", "b"), "far": ("b", "c"), "engine": ("d",)})
    quarter = drawn(readings, quantity("near"), quantity("far"), quantity("engine")).axes[-1]
    texts = [text.get_text() for text in quarter.get_legend().get_texts()]
    assert texts == ["Near\nFar", "a", "b", "c", "", "Engine", "d"]


def test_without_a_free_quarter_legends_are_below_the_panels() -> None:
    figure = drawn(made_up({"near": ("a", "b"), "far": ("a", "b")}), quantity("near"), quantity("far"))
    [legend] = figure.legends
    assert legend.get_window_extent().y1 <= min(axes.get_tightbbox().y0 for axes in figure.axes)
    figure = drawn(made_up({"near": ("a", "b"), "far": ("c",)}), quantity("near"), quantity("far"))
    assert not figure.legends
    for axes in figure.axes:
        assert axes.get_legend().get_window_extent().y1 <= axes.xaxis.label.get_window_extent().y0 + 2


def test_long_names_of_rows_do_not_meet_the_legend() -> None:
    readings = Readings("made-up", "small")
    for name, series in (("near", "a"), ("far", "b")):
        for value in VALUES:
            readings.add(name, series, "half of them take less than", value)
    for axes in drawn(readings, quantity("near"), quantity("far")).axes:
        assert axes.get_legend().get_window_extent().y1 <= axes.xaxis.label.get_window_extent().y0 + 2


def test_panels_with_the_same_unit_have_the_same_scale() -> None:
    readings = made_up({"near": ("a",), "far": ("a",)})
    readings.values["far"]["a"]["warm"] = [1000.0] * 5
    near, far = drawn(readings, quantity("near"), quantity("far")).axes
    assert near.get_yscale() == "log" and near.get_ylim() == far.get_ylim()
    near, far = drawn(readings, quantity("near", "KiB"), quantity("far")).axes
    assert near.get_yscale() == "linear" and far.get_yscale() == "log"


def test_an_axis_is_logarithmic_only_when_numbers_lie_far_apart() -> None:
    wide = {1: [1.0] * 5, 2: [10.0] * 5, 3: [100.0] * 5}
    assert panel(wide).get_yscale() == "log"
    linear = Quantity("time", "Count", "faults", "n", linear=True)
    assert panel(wide, linear).get_yscale() == "linear"
    narrow = panel({1: [1.0] * 5, 2: [2.0] * 5, 3: [3.0] * 5})
    assert narrow.get_yscale() == "linear" and narrow.get_ylim()[0] == pytest.approx(-0.03 * narrow.get_ylim()[1])


def test_zeros_have_a_place() -> None:
    zeros = {1: [0.0] * 5, 2: [2.0] * 5, 3: [300.0] * 5}
    axes = panel(zeros)
    assert axes.get_yscale() == "symlog" and axes.get_ylim()[0] < 0
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "10", "100"]
    assert Scale.of([0.0, 0.0], linear=False) == Scale(0, 1e-9, False)
    bars = panel({"cold": [0.0] * 5, "warm": [2.0] * 5})
    assert [text.get_text() for text in bars.texts] == ["0", "0"], "one whisker for each series"
