"""The figures of gold as plain rows: the form in which Spark's result is compared with the result from the CSV.

Delays are whole minutes in the data, so both results have exact integer sums. The only division, `mean`, is the last
step: equal sums and counts give equal means (IEEE 754).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class CarrierMonth:
    """One row of gold. Delays are in minutes; a mean is None if no flight of the month departed (or arrived)."""

    carrier: str
    month: int
    airline: str | None
    flights: int
    cancelled: int
    departed: int
    departure_delay_sum_min: int
    departure_delay_mean_min: float | None
    arrived: int
    arrival_delay_sum_min: int
    arrival_delay_mean_min: float | None
    seats: int

    @property
    def place(self) -> tuple[str, int]:
        """The key of the row: carrier and month."""
        return self.carrier, self.month


MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
KEY_COLUMNS = ("carrier", "month")
FIGURES = tuple(field.name for field in fields(CarrierMonth) if field.name not in KEY_COLUMNS)
"""Every column that is compared."""


SUMS = ("flights", "cancelled", "departed", "departure_delay_sum_min", "arrived", "arrival_delay_sum_min", "seats")
"""The figures that are summed over all batches."""


def from_sums(carrier: str, month: int, airline: str | None, sums: dict[str, int]) -> CarrierMonth:
    """Makes a row of gold.

    Args:
        sums: the figures of `SUMS`.
    """
    return CarrierMonth(
        carrier=carrier,
        month=month,
        airline=airline,
        departure_delay_mean_min=mean(sums["departure_delay_sum_min"], sums["departed"]),
        arrival_delay_mean_min=mean(sums["arrival_delay_sum_min"], sums["arrived"]),
        **sums,
    )


def added(before: Iterable[CarrierMonth], change: Iterable[CarrierMonth]) -> list[CarrierMonth]:
    """Returns gold after a batch, in order of carrier and month.

    Args:
        before: gold before the batch.
        change: the gold of the batch's own flights.
    """
    rows = {row.place: row for row in before}
    for row in change:
        old = rows.get(row.place)
        if old is not None:
            sums = {name: getattr(old, name) + getattr(row, name) for name in SUMS}
            row = from_sums(row.carrier, row.month, old.airline or row.airline, sums)  # noqa: PLW2901
        rows[row.place] = row
    return sorted(rows.values(), key=lambda row: row.place)


def short_name(airline: str) -> str:
    """An airline's name without its legal form."""
    return " ".join(word for word in airline.split() if word not in {"Inc.", "Co.", "Corporation"})


def mean(total: int, count: int) -> float | None:
    """``total / count``; None if ``count`` is 0."""
    return total / count if count else None
