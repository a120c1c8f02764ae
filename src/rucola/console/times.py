"""Times as visitors write them."""

from __future__ import annotations

from datetime import UTC, datetime

from rucola.common.numbers import INT64_MAX, number_in
from rucola.console.visit import BadQueryError


def time_ms(name: str, text: str) -> int | None:
    """A time in ms since 1970; None for an empty text. ``text`` is this number, or a time in ISO 8601, which is in UTC
    if it names no zone.

    Raises:
        BadQueryError: it is neither.
    """
    text = text.strip()
    if not text:
        return None
    value = number_in(text, 0, INT64_MAX)
    if value is not None:
        return value
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise BadQueryError(name, text, "a time such as 2026-05-01T12:00:00, or ms since 1970") from None
