"""Verdicts, medians and spreads, with made-up numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rucola.lab.lesson import Claim, Lesson, Quantity, Size
from rucola.lab.readings import REPETITIONS, Amount, Readings, Verdict, judge, middle_and_spread
from rucola.lab.text import claim_text, listed, paragraph, ratio, size_text, tables
from rucola.lab.workbench import Workbench

CLAIM = Claim(
    "A text",
    "the map is faster",
    lambda n: n["time"]["map"][64] < n["time"]["write"][64],
    "{time[map][64]} µs against {time[write][64]} µs",
    "Because of copies.",
    "The call is.",
)
LESSON = Lesson(
    "Made up", "An intro.", "A design.", (Quantity("time", "Time", "µs", "size"),), (CLAIM,), lambda size: 0, print
)


def readings_of(maps: list[float], writes: list[float]) -> Readings:
    readings = Readings("made-up", "small", 1.0)
    for left, right in zip(maps, writes, strict=True):
        readings.add("time", "map", 64, left)
        readings.add("time", "write", 64, right)
    return readings


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        (0, Verdict.FAILS),
        (1, Verdict.UNDECIDED),
        (2, Verdict.UNDECIDED),
        (3, Verdict.UNDECIDED),
        (4, Verdict.UNDECIDED),
        (5, Verdict.HOLDS),
    ],
)
def test_only_unanimous_repetitions_decide(held: int, verdict: Verdict) -> None:
    assert judge(held, REPETITIONS) is verdict
    maps = [1.0] * held + [9.0] * (REPETITIONS - held)
    assert readings_of(maps, [5.0] * REPETITIONS).verdict(CLAIM) == (verdict, held)


def test_a_conclusion_that_flips_is_called_undecided() -> None:
    """The median of the series ``map`` is far better, but one of its repetitions is worse."""
    text = claim_text(CLAIM, readings_of([1, 1, 1, 1, 6], [5, 5, 5, 5, 5]))
    assert text.startswith("**Undecided.** A text: the map is faster. Measured: 1 µs against 5 µs.")
    assert text.endswith("The claim held in 4 of 5 repetitions, so this run does not decide it.")
    assert "Because" not in text and "The call is" not in text


def test_text_follows_the_numbers() -> None:
    holds = claim_text(CLAIM, readings_of([1, 2, 3, 4, 4.5], [5] * 5))
    assert holds == "**Holds.** A text: the map is faster. Measured: 3 µs against 5 µs. Because of copies."
    fails = claim_text(CLAIM, readings_of([7, 8, 9, 8, 7], [5] * 5))
    assert fails == "**Does not hold here.** A text: the map is faster. Measured: 8 µs against 5 µs. The call is."


def test_words_are_chosen_by_the_numbers_and_may_name_the_spread() -> None:
    claim = replace(
        CLAIM,
        figures=lambda n: "at most {greatest time[map][64]} µs, at least {least time[map][64]} µs",
        because=lambda n: (
            f"{ratio(n['time']['write'][64], n['time']['map'][64])} times as fast as {{time[write][64]}} µs."
        ),
    )
    text = claim_text(claim, readings_of([1, 2, 3, 4, 4.5], [5] * 5))
    assert text.endswith("Measured: at most 4.5 µs, at least 1 µs. 1.67 times as fast as 5 µs.")


def test_words_of_lists_sizes_and_ratios() -> None:
    assert [listed(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert [size_text(count) for count in (128, 1024, 65_536)] == ["128 bytes", "1 KiB", "64 KiB"]
    assert f"{ratio(10, 4)}" == "2.5" and ratio(3, 0) == 3


def test_a_paragraph_ends_with_what_the_project_does() -> None:
    text = paragraph(LESSON, readings_of([1] * 5, [5] * 5))
    assert text.startswith("- **Holds.**") and text.endswith("\n\nA design.")


def test_tables_show_median_and_spread() -> None:
    readings = readings_of([1, 2, 3, 40, 5], [5] * 5)
    [(title, header, rows)] = tables(LESSON, readings)
    assert (title, header, rows) == ("Time, µs", ["size", "map", "write"], [["64", "3 (1 to 40)", "5"]])
    assert middle_and_spread([4.0, 1.0, 9.0, 2.0, 3.0]) == (3, 1, 9)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (1234, "1,234"),
        (1_234_567, "1,234,567"),
        (1_234_567.8, "1,230,000"),
        (12.34, "12.3"),
        (0.001234, "0.00123"),
        (999.6, "1,000"),
    ],
)
def test_amounts_have_three_digits_that_count(value: float, text: str) -> None:
    assert f"{Amount(value)}" == text


def test_rows_are_in_order_and_names_as_they_came() -> None:
    readings = Readings("made-up", "small")
    for row in (64, 4, "warm", 16, "cold"):
        readings.add("time", "map", row, 1.0)
    assert readings.rows("time") == [4, 16, 64, "warm", "cold"]


def test_json_brings_the_same_readings_back() -> None:
    readings = readings_of([1, 2, 3, 4, 5], [5] * 5)
    again = Readings.from_json(readings.to_json())
    assert again == readings and again.rows("time") == [64]


def test_a_number_missing_in_a_repetition_is_an_error() -> None:
    bench = Workbench("made-up", LESSON.quantities, Size.SMALL, None, lambda done: None)  # type: ignore[arg-type]
    for number in bench.repetitions():
        bench.note("time", "map", 64, 1.0)
        if number != 3:
            bench.note("time", "write", 64, 1.0)
    with pytest.raises(ValueError, match=r"time write 64': 4"):
        bench.check()
    with pytest.raises(ValueError, match="'tiem' is not among"):
        bench.note("tiem", "map", 64, 1.0)
