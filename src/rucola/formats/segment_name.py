"""Names of segment files: the position of the first byte as 20 decimal digits, with leading zeros."""

from __future__ import annotations

from typing import Final

NAME_DIGITS: Final = 20


def segment_name(start: int) -> str:
    """Returns the name of the segment whose first byte has the position ``start`` in its log or queue.

    Raises:
        ValueError: if ``start`` is negative or does not fit a signed 64-bit integer.
    """
    if not 0 <= start < 1 << 63:
        raise ValueError(f"no segment can start at {start}")
    return f"{start:0{NAME_DIGITS}d}"


def segment_start(name: str) -> int | None:
    """Returns the position of the first byte of the segment called ``name``; None if ``name`` is no segment name."""
    if len(name) != NAME_DIGITS or not name.isascii() or not name.isdigit():
        return None
    start = int(name)
    return start if start < 1 << 63 else None


def is_segment_name(name: str) -> bool:
    """Whether ``name`` is the name of a segment."""
    return segment_start(name) is not None
