"""Which rows of a parametrized test run in ``make test``. The other rows are marked ``more``, for ``make test-more``.

``@pytest.mark.few`` keeps as many rows as are needed for each value of each argument to occur once. It is for tests
whose arguments are combined: ``sync`` and ``async`` with ``kill`` and ``restart`` are two rows instead of four.
``@pytest.mark.few(5)`` keeps five rows, evenly spread. It is for rows that are samples of one promise, such as seeds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import pytest

Row = Sequence[Hashable]
"""Something hashable for each argument of a row, the same for the same value."""


def mark_more(items: Iterable[pytest.Item]) -> None:
    """Marks the rows that ``few`` does not keep."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") is not None:
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for rows in tests.values():
        mark = rows[0].get_closest_marker("few")
        assert mark is not None
        kept = spread(len(rows), *mark.args) if mark.args else cover([_row_of(item) for item in rows])
        for place in set(range(len(rows))) - kept:
            rows[place].add_marker("more")


def _row_of(item: pytest.Item) -> Row:
    assert isinstance(item, pytest.Function)
    return [(name, type(value), _hashable(value)) for name, value in item.callspec.params.items()]


def _hashable(value: object) -> Hashable:
    """The value. One without a hash, such as a list, counts as the same where rows share it."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def spread(count: int, wanted: int) -> set[int]:
    """Returns ``wanted`` of ``count`` places, evenly spread, the first and the last among them."""
    if wanted >= count:
        return set(range(count))
    return {place * (count - 1) // max(wanted - 1, 1) for place in range(wanted)}


def cover(rows: Sequence[Row]) -> set[int]:
    """Returns places of rows in which all values of all arguments occur. Of equally good rows, the first is taken."""
    missing = {value for row in rows for value in row}
    kept = set()
    while missing:
        best = max(range(len(rows)), key=lambda place: len(missing.intersection(rows[place])))
        kept.add(best)
        missing.difference_update(rows[best])
    return kept
