"""The parts of a lesson: what it measures, the claims about that, and the program that measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rucola.lab.readings import Listing, Readings
    from rucola.lab.workbench import Workbench

X: TypeAlias = "int | str"
"""What one row of a table is about: a number such as a record size, or a name."""
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


@dataclass(frozen=True)
class Lesson:
    """One lesson.

    Attributes:
        title: in the list.
        intro: its subject, for readers who do not know the engine.
        design: what this project does because of it.
        quantities: what is measured.
        claims: what is checked.
        space_bytes: largest size of its files.
        run: the program; it notes five values for each number.
        draw: draws the picture; None = a panel for each quantity.
        moment: returns the tables for ``--moment N``; None = the lesson has no moments.
        parts: modules of this package that are shown with the program.
    """

    title: str
    intro: str
    design: str
    quantities: tuple[Quantity, ...]
    claims: tuple[Claim, ...]
    space_bytes: Callable[[Size], int]
    run: Callable[[Workbench], None]
    draw: Callable[[Figure, Readings], None] | None = None
    moment: Callable[[int], list[Listing]] | None = None
    parts: tuple[str, ...] = ()
