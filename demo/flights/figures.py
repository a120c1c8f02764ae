"""The figures of gold as plain rows, the common ground on which Spark's road and the CSV's road are compared.

Delays are whole minutes in the data, so sums are integers and exact on both roads; the only division is `mean`, the
last step, of the same two integers by the same IEEE 754 division.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class CarrierMonth:
    """One row of gold. Delays in minutes; a mean is None when no flight of the month departed (or arrived)."""

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
        """What identifies the row."""
        return self.carrier, self.month


MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
KEY_COLUMNS = ("carrier", "month")
FIGURES = tuple(field.name for field in fields(CarrierMonth) if field.name not in KEY_COLUMNS)
"""Every column that is compared."""


def short_name(airline: str) -> str:
    """An airline's name without its legal form."""
    return " ".join(word for word in airline.split() if word not in {"Inc.", "Co.", "Corporation"})


def mean(total: int, count: int) -> float | None:
    """``total / count``, None for no values at all."""
    return total / count if count else None
