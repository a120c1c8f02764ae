"""Charts: the line is where the values are, and numbers stand beside it as text."""

from __future__ import annotations

import re

from rucola.console.pages import charts, shown
from rucola.console.views.listing import Point
from rucola.console.views.sql import Bar


def chart(*values: float | None) -> str:
    points = [Point(at * 60_000, value) for at, value in enumerate(values)]
    return str(charts.chart(points, "lag", shown.number, shown.clock))


def lines(text: str) -> list[list[tuple[float, float]]]:
    found = re.findall(r'<polyline class="line" points="([^"]*)"', text)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in one.split())] for one in found]


def test_zero_is_at_the_bottom_and_the_largest_value_at_the_top() -> None:
    (line,) = lines(chart(0.0, 50.0, 100.0))
    assert line == [(0.0, charts.HEIGHT), (charts.WIDTH / 2, 51.5), (charts.WIDTH, 3.0)]


def test_a_gap_where_nothing_is_known() -> None:
    assert [len(line) for line in lines(chart(1.0, 2.0, None, 3.0, 4.0, 5.0))] == [2, 3]


def test_what_is_below_a_line_ends_where_the_line_does() -> None:
    (area,) = re.findall(r'<polygon class="area" points="([^"]*)"', chart(1.0, 1.0))
    assert area.split()[0] == f"0.0,{charts.HEIGHT}" and area.split()[-1] == f"{charts.WIDTH:.1f},{charts.HEIGHT}"


def test_numbers_and_times_are_text() -> None:
    text = chart(1_200.0, 0.0)
    assert "<span>1,200</span>" in text and "<span>00:01</span>" in text and "style=" not in text
    assert 'aria-label="lag: 0, 00:00 – 00:01, max 1,200"' in text


def test_one_value_is_no_chart() -> None:
    assert chart(1.0, None) == ""


def test_bars_are_as_long_as_their_part() -> None:
    rows = [Bar("new", 667.0, 1.0), Bar("<changed>" * 9, 334.0, 0.5)]
    text = str(charts.bars(rows, "messages", shown.rate))
    assert re.findall(r'<rect width="([0-9.]+)"', text) == [f"{charts.WIDTH:.1f}", f"{charts.WIDTH / 2:.1f}"]
    assert ">new<" in text and ">667<" in text and "<changed>" not in text and "…<" in text
    assert charts.bars([], "messages", shown.rate) == ""
