"""The findings and counts of an exploration do not depend on the number of processes."""

from __future__ import annotations

from functools import partial

import pytest
from tests.crash.jobs import Round, Tally, explore_rows

ROWS = ["a", "b", "c"]


def explore(broken: str, row: str, number: int) -> Round:
    """Returns a round with a few states; their number depends on its seed."""
    if f"{row}{number}" == broken:
        return Round((), f"{row} breaks at {number}")
    return Round((1, 3 + (ord(row) + number) % 4))


def told(jobs: int, broken: str = "") -> tuple[list[tuple[str, int, tuple[int, ...]]], tuple[int, str] | None]:
    rows: list[tuple[str, int, tuple[int, ...]]] = []

    def on_row(row: str, tally: Tally) -> None:
        rows.append((row, tally.rounds, tally.counts))

    found = explore_rows(ROWS, partial(explore, broken), 20, 1, jobs, on_row)
    return rows, None if found is None else found[1].violation


@pytest.mark.few(1)
@pytest.mark.parametrize("broken", ["", "b2", "c0"])
def test_the_outcome_is_the_same_for_all_numbers_of_processes(broken: str) -> None:
    alone = told(1, broken)
    assert told(3, broken) == alone
    assert alone[1] == (None if not broken else (int(broken[1]), f"{broken[0]} breaks at {broken[1]}"))


def test_rounds_count_until_the_share_is_reached() -> None:
    rows, _ = told(1)
    assert [row for row, _, _ in rows] == ROWS
    for _, rounds, (number, states) in rows:
        assert rounds == number
        assert 20 <= states < 27
