"""Numbers in texts that others wrote: properties of messages, bodies of stored records."""

from __future__ import annotations

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
POP_MESSAGES_MAX = 32
"""Largest number of messages in one pop; RocketMQ's checkpoint has 32 bits, one for each message."""
_DIGITS_MAX = 19
"""No number of 64 bits has more digits. ``int`` is never called with more, because it raises an error from 4,300 digits
on.
"""


def number_in(text: str, low: int, high: int) -> int | None:
    """The decimal number that ``text`` is, if it lies from ``low`` to ``high``; otherwise None.

    Only the digits 0 to 9 count, at most 19 of them, after an optional sign. ``int`` also takes spaces, underscores and
    the digits of other scripts.
    """
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > _DIGITS_MAX:
        return None
    value = int(text)
    return value if low <= value <= high else None
