"""The terms that all lessons share: the size of a run, the quantities that it measures, and claims about them."""

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
"""A text of a lesson: fixed, or chosen and filled in from the medians. A field such as ``{append[map][64]}`` stands for
a median; ``{least append[map][64]}`` and ``{greatest ...}`` stand for the least and the greatest value.
"""


class Size(Enum):
    """The size of a run: how long a lesson takes."""

    SMALL = "small"
    """A lesson takes about a second. The numbers mean little; this size is for tests."""
    NORMAL = "normal"
    """A lesson takes less than a minute."""
    LARGE = "large"
    """A lesson takes minutes. This size is for a machine on which the repetitions of a measurement differ a lot."""


@dataclass(frozen=True)
class Quantity:
    """A measured quantity. It has a table of its own and, if ``drawn``, a panel of the picture.

    Attributes:
        name: its name in programs and texts.
        title: title of its panel and its table.
        unit: unit of the measured values.
        rows: what the rows of the table stand for; if the rows are numbers, also their unit.
        drawn: whether it has a panel.
        linear: whether the axis always begins at zero and is never logarithmic.
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
        source: name of the text that makes the claim.
        text: the claim in our words, as a main clause without a full stop.
        check: returns whether the numbers of one repetition agree with the claim.
        figures: the measured numbers, as a main clause without a full stop.
        because: why the claim holds; printed if the claim holds.
        instead: what is true instead; printed if the claim does not hold.
    """

    source: str
    text: str
    check: Callable[[Numbers], bool]
    figures: Words
    because: Words
    instead: Words
