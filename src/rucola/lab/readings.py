"""The numbers of a run, the verdicts on its claims, and their form as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from typing import Any

from rucola.lab.terms import Claim, Numbers, X

REPETITIONS = 5
REPETITIONS_TEXT = "five"


class Verdict(Enum):
    """What a run says about a claim."""

    HOLDS = "holds"
    """The claim held in each repetition."""
    FAILS = "does not hold here"
    """The claim held in no repetition."""
    UNDECIDED = "undecided"
    """The claim held in some repetitions."""


class Amount(float):
    """A number in its printed form: three significant digits (``12.3``, ``0.00123``), whole numbers with all digits."""

    def __format__(self, specification: str) -> str:
        if specification:
            return super().__format__(specification)
        if self.is_integer():
            return f"{int(self):,}"
        rounded = float(f"{float(self):.3g}")
        if abs(rounded) >= 1000:
            return f"{rounded:,.0f}"
        return f"{rounded:.3g}"


class Rows(dict[X, float]):
    """Numbers by row. ``first``, ``middle`` and ``last`` also name rows, because runs of different size have different
    rows.
    """

    def __missing__(self, row: X) -> float:
        values = list(self.values())
        places = {"first": 0, "middle": len(values) // 2, "last": -1}
        if row not in places:
            raise KeyError(row)
        return values[places[str(row)]]


@dataclass
class Listing:
    """A table that is not a measurement, such as the bytes of a file.

    Attributes:
        title: text above the table.
        header: names of the columns.
        rows: cells of each row, as text.
    """

    title: str
    header: list[str]
    rows: list[list[str]]


@dataclass
class Readings:
    """Results of one run of a lesson.

    Attributes:
        lesson: name of the lesson.
        size: the chosen ``Size``, as text.
        seconds: duration of the run.
        values: one value per repetition, by quantity, series and row.
        listings: tables that are not measurements.
    """

    lesson: str
    size: str
    seconds: float = 0.0
    values: dict[str, dict[str, dict[X, list[float]]]] = field(default_factory=dict)
    listings: list[Listing] = field(default_factory=list)

    def add(self, quantity: str, series: str, row: X, value: float) -> None:
        """Adds the value of the next repetition."""
        self.values.setdefault(quantity, {}).setdefault(series, {}).setdefault(row, []).append(float(value))

    def cells(self) -> Iterator[tuple[str, str, X, list[float]]]:
        """Yields all numbers, in the order in which they were first noted."""
        for quantity, by_series in self.values.items():
            for series, by_row in by_series.items():
                for row, values in by_row.items():
                    yield quantity, series, row, values

    def rows(self, quantity: str) -> list[X]:
        """Returns the rows of a quantity: numbers in ascending order, names in the order of their first use."""
        found: dict[X, None] = {}
        for by_row in self.values[quantity].values():
            found.update(dict.fromkeys(by_row))
        names = [row for row in found if isinstance(row, str)]
        return [*sorted(row for row in found if isinstance(row, int)), *names]

    def repetition(self, number: int) -> Numbers:
        """Returns the numbers of one repetition."""
        return self._each(lambda values: values[number])

    def medians(self) -> Numbers:
        """Returns the medians, in their printed form."""
        return self._each(lambda values: Amount(median(values)))

    def printed(self) -> Numbers:
        """Returns the numbers that a sentence may contain: for each quantity the medians, and the least and greatest
        values.
        """
        named = dict(self.medians())
        for word, end in (("least", 0), ("greatest", -1)):
            ends = self._each(lambda values, end=end: Amount(sorted(values)[end]))
            named |= {f"{word} {quantity}": by_series for quantity, by_series in ends.items()}
        return named

    def _each(self, take: Any) -> Numbers:
        return {
            quantity: {
                series: Rows({row: take(values) for row, values in by_row.items()})
                for series, by_row in by_series.items()
            }
            for quantity, by_series in self.values.items()
        }

    def verdict(self, claim: Claim) -> tuple[Verdict, int]:
        """Returns the verdict of this run on ``claim``, and the number of repetitions in which the claim held."""
        held = sum(bool(claim.check(self.repetition(number))) for number in range(REPETITIONS))
        return judge(held, REPETITIONS), held

    def to_json(self) -> dict[str, Any]:
        """Returns plain lists and dicts, which ``from_json`` reads."""
        return {
            "lesson": self.lesson,
            "size": self.size,
            "seconds": self.seconds,
            "values": [[quantity, series, row, values] for quantity, series, row, values in self.cells()],
            "listings": [[one.title, one.header, one.rows] for one in self.listings],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Readings:
        """Makes readings from what ``to_json`` returned."""
        readings = cls(data["lesson"], data["size"], data["seconds"])
        for quantity, series, row, values in data["values"]:
            for value in values:
                readings.add(quantity, series, row, value)
        readings.listings = [Listing(*one) for one in data["listings"]]
        return readings


def judge(held: int, repetitions: int) -> Verdict:
    """Returns the verdict: a claim holds if it held in every repetition, and does not hold if it held in none."""
    if held == repetitions:
        return Verdict.HOLDS
    return Verdict.UNDECIDED if held else Verdict.FAILS


def middle_and_spread(values: Sequence[float]) -> tuple[Amount, Amount, Amount]:
    """Returns the median, the minimum and the maximum."""
    return Amount(median(values)), Amount(min(values)), Amount(max(values))
