"""Numbers, times and sizes as text. What is not known is a dash, never a zero."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

UNKNOWN: Final = "—"
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_MS_MAX: Final = 253_402_300_799_999


def number(value: float | None) -> str:
    """A whole number with separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """A rate, with as many digits as help."""
    if value is None:
        return UNKNOWN
    if value and abs(value) < 10:
        return f"{value:,.2f}"
    return f"{value:,.0f}" if abs(value) >= 100 or not value else f"{value:,.1f}"


def signed(value: float | None) -> str:
    """A change, with its sign."""
    if value is None:
        return UNKNOWN
    return f"+{rate(value)}" if value > 0 else rate(value).replace("-", "−")


def percent(value: float | None) -> str:
    """A part of 1 as percent."""
    return UNKNOWN if value is None else f"{value * 100:.0f} %"


def turn(value: float | None) -> str:
    """The longest turn of an event loop in ms; RocketMQ's brokers have none."""
    return UNKNOWN if value is None else f"{value:,.0f} ms"


def size(value: float | None) -> str:
    """Bytes with a unit."""
    if value is None:
        return UNKNOWN
    if value < 1024:
        return f"{value:.0f} B"
    power = 0
    while value >= 1024 and power < len(_UNITS):
        value, power = value / 1024, power + 1
    return f"{value:,.1f} {_UNITS[power - 1]}"


def utc(time_ms: int | None) -> str:
    """A time in UTC, ``2026-05-01 12:00:00``."""
    if time_ms is None or not 0 <= time_ms <= _TIME_MS_MAX:
        return UNKNOWN
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def clock(time_ms: int) -> str:
    """Hour and minute in UTC."""
    return utc(time_ms)[11:16]


def moment(time_ms: int | None) -> Markup:
    """A time as an element that the script can show in local time; without the script it is in UTC."""
    if time_ms is None or not 0 <= time_ms <= _TIME_MS_MAX:
        return Markup(UNKNOWN)
    text = utc(time_ms)
    return Markup('<time datetime="{}Z" data-ms="{}">{}</time>').format(text.replace(" ", "T"), time_ms, text)


def ago(time_ms: int | None, now_ms: int) -> str:
    """How long ago a time was, in one unit; a time in the future by the clock of another machine is 0 s ago."""
    if time_ms is None:
        return UNKNOWN
    seconds = max(now_ms - time_ms, 0) // 1000
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
