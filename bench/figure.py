"""A measured figure, the figure for comparison, and its budgets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True)
class Budget:
    """A limit on the ratio of two figures, on our own figure, or on our figure as a multiple of the floor."""

    on: Literal["ratio", "ours", "floor"]
    bound: Literal["min", "max"]
    value: float

    def met(self, figure: Figure) -> bool | None:
        """Whether ``figure`` keeps the limit; None when there is nothing to compare it with."""
        got = {"ours": figure.ours, "ratio": figure.ratio, "floor": figure.of_floor}[self.on]
        if got is None:
            return None
        return got >= self.value if self.bound == "min" else got <= self.value

    def text(self, unit: str) -> str:
        """The text shown in the table."""
        sign = "≥" if self.bound == "min" else "≤"
        wanted = f"{sign} {self.value:g}"
        return {"ours": f"{wanted} {unit}", "ratio": f"{wanted}×", "floor": f"{wanted} × floor"}[self.on]


@dataclass(frozen=True)
class Figure:
    """One row of the report.

    Attributes:
        group: heading of the table.
        what: what was measured, and under which conditions.
        unit: unit of ``ours`` and ``peer``.
        ours: our figure.
        peer: the figure of ``peer_name``.
        ratio: how many times better ``ours`` is than ``peer``; this is what ``budgets`` limit.
        budgets: limits; none for a figure that is only shown.
        floor: the figure of the smallest server that does the same; None where none was measured.
    """

    group: str
    what: str
    unit: str
    ours: float
    peer: float | None = None
    peer_name: str = ""
    ratio: float | None = None
    budgets: tuple[Budget, ...] = ()
    floor: float | None = None

    @property
    def of_floor(self) -> float | None:
        """Our figure as a multiple of the floor."""
        return self.ours / self.floor if self.floor else None

    @property
    def met(self) -> bool | None:
        """Whether all budgets are kept; None if there are none."""
        states = [budget.met(self) for budget in self.budgets]
        return None if not states or None in states else all(states)

    def as_json(self) -> dict[str, object]:
        """Returns the fields for ``results.json``."""
        fields = asdict(self)
        fields["budgets"] = [budget.text(self.unit) for budget in self.budgets]
        return {**fields, "met": self.met}


def at_least(ratio: float) -> Budget:
    """Limits a ratio: our figure must be at least this many times better than the figure for comparison."""
    return Budget("ratio", "min", ratio)


def at_most(ratio: float) -> Budget:
    """Limits a ratio: our figure may be at most this many times the figure for comparison."""
    return Budget("ratio", "max", ratio)


def within_floor(multiple: float) -> Budget:
    """Limits a cost: our figure may be at most this many times the floor."""
    return Budget("floor", "max", multiple)


def rate(group: str, what: str, ours: float, peer: float, peer_name: str, *budgets: Budget, unit: str = "/s") -> Figure:
    """Makes a figure for which more is better; the ratio is ours / peer."""
    return Figure(group, what, unit, ours, peer, peer_name, ours / peer, budgets)


def cost(group: str, what: str, ours: float, peer: float, peer_name: str, *budgets: Budget, unit: str = "µs") -> Figure:
    """Makes a figure for which less is better; the ratio is peer / ours."""
    return Figure(group, what, unit, ours, peer, peer_name, peer / ours, budgets)


def share(
    group: str, what: str, ours: float, peer: float, peer_name: str, *budgets: Budget, unit: str = "ms"
) -> Figure:
    """Makes a figure for which less is better; the ratio is ours / peer."""
    return Figure(group, what, unit, ours, peer, peer_name, ours / peer, budgets)
