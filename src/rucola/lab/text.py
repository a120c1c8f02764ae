"""What a lesson says about the numbers of a run, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from rucola.lab.lesson import Claim, Lesson, Quantity, X
from rucola.lab.readings import REPETITIONS, Readings, Verdict, middle_and_spread


def claim_text(claim: Claim, readings: Readings) -> str:
    """Claim, verdict and figures, followed by what the outcome means."""
    verdict, held = readings.verdict(claim)
    figures = claim.figures.format_map(readings.medians())
    opening = f"**{verdict.value.capitalize()}.** {claim.source}: {claim.text}. Measured: {figures}."
    if verdict is Verdict.HOLDS:
        return f"{opening} {claim.because}"
    if verdict is Verdict.FAILS:
        return f"{opening} {claim.instead}"
    return f"{opening} It held in {held} of {REPETITIONS} repetitions, so this run does not tell."


def paragraph(lesson: Lesson, readings: Readings) -> str:
    """All claims of a lesson, each checked, and what this project does."""
    return "\n\n".join([*(f"- {claim_text(claim, readings)}" for claim in lesson.claims), lesson.design])


def tables(lesson: Lesson, readings: Readings) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, header and rows of each table."""
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
    """A row's name, or its number with thousands apart."""
    return f"{row:,}" if isinstance(row, int) else row


def _cell(values: list[float] | None) -> str:
    """Median and spread; one number when they do not differ."""
    if values is None:
        return "-"
    middle, least, greatest = middle_and_spread(values)
    return f"{middle}" if least == greatest else f"{middle} ({least} to {greatest})"


def is_listing(title: str, readings: Readings) -> bool:
    """Whether the table of this title holds text."""
    return any(listing.title == title for listing in readings.listings)
