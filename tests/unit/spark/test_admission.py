"""How a backlog is divided among micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rucola.arrow.admission import admit_bytes, admit_rows
from rucola.common.message_queue import MessageQueue


def offsets(*values: int) -> dict[MessageQueue, int]:
    return {MessageQueue("t", "b", queue_id): value for queue_id, value in enumerate(values)}


@pytest.mark.parametrize(
    ("start", "available", "rows_max", "expected"),
    [
        ((0, 0), (10, 10), 100, (10, 10)),
        ((0, 0), (10, 10), 20, (10, 10)),
        ((0, 0), (10, 30), 8, (2, 6)),
        ((5, 0), (5, 30), 8, (5, 8)),
        ((0, 0), (1, 1_000_000), 10, (1, 9)),
        ((0, 0, 0), (5, 6, 7), 1, (0, 0, 1)),
        ((9, 0), (3, 4), 100, (9, 4)),
        ((0, 0), (0, 0), 1, (0, 0)),
    ],
)
def test_rows(start: tuple[int, ...], available: tuple[int, ...], rows_max: int, expected: tuple[int, ...]) -> None:
    assert admit_rows(offsets(*start), offsets(*available), rows_max) == offsets(*expected)


backlogs = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=12)


@given(backlogs, st.integers(1, 10**6))
def test_rows_take_exactly_the_limit_or_all(backlog: list[tuple[int, int]], rows_max: int) -> None:
    start = offsets(*(one[0] for one in backlog))
    available = offsets(*(one[0] + one[1] for one in backlog))
    end = admit_rows(start, available, rows_max)
    assert all(start[queue] <= end[queue] <= available[queue] for queue in start)
    total = sum(one[1] for one in backlog)
    assert sum(end[queue] - start[queue] for queue in start) == min(total, rows_max)


@given(backlogs, st.integers(1, 5000))
def test_a_query_reaches_its_end(backlog: list[tuple[int, int]], rows_max: int) -> None:
    at = offsets(*(0 for _ in backlog))
    available = offsets(*(one[1] % 300 for one in backlog))
    for _ in range(300 * len(backlog) + 1):
        if at == available:
            break
        at = admit_rows(at, available, rows_max)
    assert at == available


def test_bytes_are_about_the_limit() -> None:
    start, available = offsets(0, 0), offsets(1000, 1000)
    sizes = offsets(100, 300)
    end = admit_bytes(start, available, 40_000, sizes)
    assert end == offsets(100, 100)
    assert admit_bytes(start, available, 400_000, sizes) == available


def test_bytes_always_move_on() -> None:
    assert admit_bytes(offsets(4, 2), offsets(9, 2), 1, offsets(5_000_000, 1)) == offsets(5, 2)
