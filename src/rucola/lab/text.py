"""Explains the numbers of a run, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rucola.lab.lesson import Lesson
from rucola.lab.readings import REPETITIONS, Amount, Readings, Verdict, middle_and_spread
from rucola.lab.terms import Claim, Quantity, Words, X


def claim_text(claim: Claim, readings: Readings) -> str:
    """Returns the claim, its verdict and its figures, followed by what the outcome means."""
    verdict, held = readings.verdict(claim)
    figures = filled(claim.figures, readings)
    opening = f"**{verdict.value.capitalize()}.** {claim.source}: {claim.text}. Measured: {figures}."
    if verdict is Verdict.HOLDS:
        return f"{opening} {filled(claim.because, readings)}"
    if verdict is Verdict.FAILS:
        return f"{opening} {filled(claim.instead, readings)}"
    return f"{opening} The claim held in {held} of {REPETITIONS} repetitions, so this run does not decide it."


def filled(words: Words, readings: Readings) -> str:
    """Returns the text with the numbers of the run filled in."""
    numbers = readings.printed()
    text = words if isinstance(words, str) else words(numbers)
    return text.format_map(numbers)


def listed(names: Sequence[str]) -> str:
    """Joins at least one name: ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def ratio(number: float, unit: float) -> Amount:
    """Returns ``number`` divided by ``unit``; a ``unit`` of 0 is replaced by 1."""
    return Amount(number / (unit or 1))


def size_text(count: int) -> str:
    """``128 bytes``, ``4 KiB``."""
    return f"{count} bytes" if count % 1024 else f"{count >> 10} KiB"


def paragraph(lesson: Lesson, readings: Readings) -> str:
    """Returns all claims of a lesson with their verdicts, followed by the lesson's ``design``."""
    return "\n\n".join([*(f"- {claim_text(claim, readings)}" for claim in lesson.claims), lesson.design])


def tables(lesson: Lesson, readings: Readings) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yields the title, header and rows of each table."""
    for listing in readings.listings:
        yield listing.title, listing.header, listing.rows
    for quantity in lesson.quantities:
        yield _measured(quantity, readings)


def _measured(quantity: Quantity, readings: Readings) -> tuple[str, list[str], list[list[str]]]:
    by_series = readings.values[quantity.name]
    rows = []
    for row in readings.rows(quantity.name):
        rows.append([row_text(row), *(_cell(by_row.get(row)) for by_row in by_series.values())])
    return f"{quantity.title}, {quantity.unit}", [quantity.rows, *by_series], rows


def row_text(row: X) -> str:
    """Returns the label of a row: text as it is, a number with thousands separators."""
    return f"{row:,}" if isinstance(row, int) else row


def _cell(values: list[float] | None) -> str:
    """Returns the median and the spread, or one number if all values are equal."""
    if values is None:
        return "-"
    middle, least, greatest = middle_and_spread(values)
    return f"{middle}" if least == greatest else f"{middle} ({least} to {greatest})"


def is_listing(title: str, readings: Readings) -> bool:
    """Whether the table called ``title`` contains text."""
    return any(listing.title == title for listing in readings.listings)
