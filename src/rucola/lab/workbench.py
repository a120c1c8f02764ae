"""What a lesson gets: the size of its workload, space on the disk, five repetitions, and a table for its numbers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rucola.errors import DiskFullError
from rucola.lab.readings import REPETITIONS, Listing, Readings
from rucola.lab.terms import Quantity, Size, X
from rucola.runtime.files import Files

Progress = Callable[[int], None]
"""Called with the number of repetitions done."""
MEBIBYTE = 1 << 20


class Workbench:
    """One run of one lesson.

    Attributes:
        size: how long the run is.
        readings: results so far.

    Args:
        quantities: what the lesson measures.
        room: an empty directory for its files.
        progress: called before each repetition, and after the last.
    """

    def __init__(self, name: str, quantities: Iterable[Quantity], size: Size, room: Path, progress: Progress) -> None:
        self.size = size
        self.readings = Readings(name, size.value)
        self._quantities = {quantity.name for quantity in quantities}
        self._room = room
        self._progress = progress

    def choose(self, small: int, normal: int, large: int) -> int:
        """Returns the argument that belongs to the size of this run."""
        return {Size.SMALL: small, Size.NORMAL: normal, Size.LARGE: large}[self.size]

    def repetitions(self) -> Iterator[int]:
        """Yields the index of each of the five repetitions; a repetition measures all variants, one after another."""
        for number in range(REPETITIONS):
            self._progress(number)
            yield number
        self._progress(REPETITIONS)

    def note(self, quantity: str, series: str, row: X, value: float) -> None:
        """Notes one number of this repetition."""
        if quantity not in self._quantities:
            raise ValueError(f"{quantity!r} is not among the quantities of the lesson: {sorted(self._quantities)}")
        self.readings.add(quantity, series, row, value)

    def show(self, title: str, header: list[str], rows: list[list[str]]) -> None:
        """Adds a table of text to the results."""
        self.readings.listings.append(Listing(title, header, rows))

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """Makes an empty directory, and removes it at the end."""
        path = Path(tempfile.mkdtemp(dir=self._room))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def check(self) -> None:
        """Checks that each number was noted once for each repetition.

        Raises:
            ValueError: a number was noted more or less often, or a quantity has no number.
        """
        counts = {f"{quantity} {series} {row}": len(values) for quantity, series, row, values in self.readings.cells()}
        wrong = {name: count for name, count in counts.items() if count != REPETITIONS}
        missing = self._quantities - self.readings.values.keys()
        if wrong or missing:
            raise ValueError(f"not noted exactly {REPETITIONS} times, once a repetition: {wrong or sorted(missing)}")


@contextmanager
def room(name: str, needed_bytes: int, below: Path, tell: Callable[[str], None]) -> Iterator[Path]:
    """Says how much space the files of a lesson may take, makes a directory for them, and removes it at the end.

    Raises:
        DiskFullError: less space is free than the files may take.
    """
    _, free = Files().disk_usage(str(below))
    if free < needed_bytes:
        raise DiskFullError(
            str(below),
            f"lesson {name}",
            f"its files need {mebibytes(needed_bytes)}, but only {mebibytes(free)} are free; "
            "choose another directory with --dir",
        )
    path = Path(tempfile.mkdtemp(prefix="rucola-lab-", dir=below))
    try:
        tell(f"{name}: up to {mebibytes(needed_bytes)} in {path}, removed at the end")
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def mebibytes(count: int) -> str:
    """Returns the size in MiB, rounded up."""
    return f"{-(-count // MEBIBYTE):,} MiB"
