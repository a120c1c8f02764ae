"""The terms of all lessons: how long a run is, the numbers that it measures, and claims about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

X: TypeAlias = "int | str"
"""The subject of one row of a table: a number such as a record size, or a name."""
Numbers: TypeAlias = Mapping[str, Mapping[str, Mapping[X, float]]]
"""One number for each quantity, series and row."""
Words: TypeAlias = "str | Callable[[Numbers], str]"
"""A text of a lesson: fixed, or chosen and filled in from the medians. Fields such as
``{append[map][64]}`` stand for medians, ``{least append[map][64]}`` and ``{greatest ...}`` for the spread."""


class Size(Enum):
    """How long a lesson runs."""

    SMALL = "small"
    """For tests: a second; the numbers say little."""
    NORMAL = "normal"
    """Under a minute."""
    LARGE = "large"
    """Minutes, for a machine whose numbers vary."""


@dataclass(frozen=True)
class Quantity:
    """A measured quantity: a block of the table and a panel of the picture.

    Attributes:
        name: its name in programs and texts.
        title: of the panel.
        unit: of the numbers.
        rows: what the rows of the table stand for, with its unit.
        drawn: whether it has a panel.
        linear: the axis begins at zero and is never logarithmic.
    """

    name: str
    title: str
    unit: str
    rows: str
    drawn: bool = True
    linear: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim from a text, as a predicate over the numbers of one repetition.

    Attributes:
        source: name of the text.
        text: the claim in our words: a main clause without a full stop.
        check: whether the numbers of one repetition agree.
        figures: the numbers that belong to it: a main clause without a full stop.
        because: the reason, printed when the claim holds.
        instead: the right conclusion, printed when it does not hold.
    """

    source: str
    text: str
    check: Callable[[Numbers], bool]
    figures: Words
    because: Words
    instead: Words
