"""The figures computed from the CSV, and the comparison that names the differences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from demo.flights.compare import differences
from demo.flights.data import ROWS_ALL, data_directory
from demo.flights.expected import expected_figures
from demo.flights.figures import FIGURES, CarrierMonth, added
from tests.unit.demo.samples import write_sample_csv


def test_figures_of_a_few_rows(tmp_path: Path) -> None:
    write_sample_csv(tmp_path)
    assert expected_figures(tmp_path, 100) == [
        CarrierMonth("AA", 1, "American Airlines Inc.", 3, 1, 2, 7, 3.5, 1, -3, -3.0, 150),
        CarrierMonth("AA", 2, "American Airlines Inc.", 1, 1, 0, 0, None, 0, 0, None, 0),
        CarrierMonth("XX", 1, None, 1, 0, 1, 1, 1.0, 1, 2, 2.0, 150),
    ]


def test_rows_max_takes_the_first_rows(tmp_path: Path) -> None:
    write_sample_csv(tmp_path)
    assert [(row.place, row.flights) for row in expected_figures(tmp_path, 2)] == [(("AA", 1), 2)]


def test_figures_of_the_year() -> None:
    """Well-known totals of this data set."""
    rows = expected_figures(data_directory(), ROWS_ALL)
    assert len(rows) == 185
    assert sum(row.flights for row in rows) == ROWS_ALL
    assert sum(row.cancelled for row in rows) == 8_255
    assert sum(row.arrived for row in rows) == 327_346
    mean = sum(row.departure_delay_sum_min for row in rows) / sum(row.departed for row in rows)
    assert round(mean, 4) == 12.6391


ROWS = [
    CarrierMonth("AA", 1, "American Airlines Inc.", 3, 1, 2, 7, 3.5, 1, -3, -3.0, 150),
    CarrierMonth("AA", 2, "American Airlines Inc.", 1, 1, 0, 0, None, 0, 0, None, 0),
]


def test_equal_figures_have_no_difference() -> None:
    assert differences(ROWS, list(reversed(ROWS))) == []


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_is_compared(figure: str) -> None:
    wrong = [replace(ROWS[0], **{figure: -99}), ROWS[1]]
    (found,) = differences(wrong, ROWS)
    assert (found.carrier, found.month, found.figure, found.got) == ("AA", 1, figure, -99)
    assert str(found) == f"carrier AA, month 1, {figure}: gold has -99, the CSV gives {getattr(ROWS[0], figure)}"


def test_the_smallest_deviation_counts() -> None:
    wrong = [replace(ROWS[0], departure_delay_mean_min=3.5 + 2**-51), ROWS[1]]
    assert [one.figure for one in differences(wrong, ROWS)] == ["departure_delay_mean_min"]


def test_missing_surplus_and_repeated_rows_are_named() -> None:
    surplus = replace(ROWS[0], carrier="ZZ")
    found = differences([ROWS[0], ROWS[0], surplus], ROWS)
    assert [(one.carrier, one.month, one.figure, one.got, one.expected) for one in found] == [
        ("AA", 1, "rows", 2, 1),
        ("AA", 2, "rows", 0, 1),
        ("ZZ", 1, "rows", 1, 0),
    ]


def test_figures_of_batches_add_up() -> None:
    change = [
        CarrierMonth("AA", 2, "American Airlines Inc.", 2, 0, 2, 5, 2.5, 2, -1, -0.5, 300),
        CarrierMonth("AA", 3, None, 1, 1, 0, 0, None, 0, 0, None, 0),
    ]
    assert added([], change) == change
    assert added(ROWS, change) == [
        ROWS[0],
        CarrierMonth("AA", 2, "American Airlines Inc.", 3, 1, 2, 5, 2.5, 2, -1, -0.5, 300),
        change[1],
    ]
