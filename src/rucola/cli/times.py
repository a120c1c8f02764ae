"""Times as a user writes them."""

from __future__ import annotations

from datetime import UTC, datetime

from rucola.errors import ConfigError

_DIGITS_MAX = 18
"""A number of milliseconds with more digits does not fit into 64 bits."""


def time_ms(name: str, text: str) -> int:
    """Returns a time in milliseconds since 1970. ``text`` is this number, or a time in ISO 8601, which is in UTC if it
    names no zone.

    Raises:
        ConfigError: the value of option ``name`` is neither.
    """
    if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(name, text, "a time such as 2024-05-01T12:00:00, or milliseconds since 1970") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
