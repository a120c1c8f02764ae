"""A lesson: what it measures, its claims, and the program that measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rucola.lab.terms import Claim, Numbers, Quantity, Size, X

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rucola.lab.readings import Listing, Readings
    from rucola.lab.workbench import Workbench

__all__ = ["Claim", "Lesson", "Numbers", "Quantity", "Size", "X"]


@dataclass(frozen=True)
class Lesson:
    """One lesson.

    Attributes:
        title: heading of the lesson.
        intro: what the lesson is about, for readers who do not know the engine.
        design: how Rucola handles the subject of the lesson.
        quantities: what is measured.
        claims: what is checked.
        space_bytes: returns the largest total size of the lesson's files.
        run: the program; it measures each quantity five times.
        draw: draws the picture; if it is None, the picture has a panel for each quantity to be drawn.
        moment: returns the tables for ``--moment N``; None if the lesson has no moments.
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
