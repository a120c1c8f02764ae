"""Compares gold with the CSV: row by row, column by column, exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .figures import FIGURES, CarrierMonth


@dataclass(frozen=True, slots=True)
class Difference:
    """One wrong figure. ``got`` or ``expected`` is None for a missing value or row."""

    carrier: str
    month: int
    figure: str
    got: object
    expected: object

    def __str__(self) -> str:
        place = f"carrier {self.carrier}, month {self.month}, {self.figure}"
        return f"{place}: gold has {self.got}, the CSV gives {self.expected}"


def differences(gold: Sequence[CarrierMonth], expected: Sequence[CarrierMonth]) -> list[Difference]:
    """Every figure that differs, by carrier, month and column; a row that only one side has is one difference."""
    found: list[Difference] = []
    got_rows, expected_rows = {row.place: row for row in gold}, {row.place: row for row in expected}
    for place, count in Counter(row.place for row in gold).items():
        if count > 1:
            found.append(Difference(*place, "rows", count, 1))
    for place in got_rows.keys() | expected_rows.keys():
        got, wanted = got_rows.get(place), expected_rows.get(place)
        if got is None or wanted is None:
            found.append(Difference(*place, "rows", int(got is not None), int(wanted is not None)))
            continue
        for figure in FIGURES:
            value, wanted_value = getattr(got, figure), getattr(wanted, figure)
            if value != wanted_value:
                found.append(Difference(*place, figure, value, wanted_value))
    return sorted(found, key=lambda one: (one.carrier, one.month, one.figure))
