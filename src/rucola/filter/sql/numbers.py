"""Parses numbers as Java does (``Integer.parseInt``, ``Long.parseLong``, ``Double.parseDouble``)."""

from __future__ import annotations

import re
import unicodedata

_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?"
    r"|0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?)"
)
_WHITE = "".join(map(chr, range(0x21)))
_TEXT_MAX = 1024
"""Largest size in bytes of a text that is accepted as a number. Longer texts do not occur in practice, and parsing them
takes more than linear time.
"""


def parse_integer(text: bytes, bits: int) -> int | None:
    """The integer in ``text``, which must fit into a sign and ``bits`` bits. Accepts a sign and decimal digits of any
    script.
    """
    digits = text.decode("utf-8", "replace")
    negative = digits[:1] == "-"
    if digits[:1] in ("+", "-"):
        digits = digits[1:]
    if not digits or len(text) > _TEXT_MAX:
        return None
    value = 0
    for char in digits:
        digit = unicodedata.decimal(char, None) if char <= "\uffff" else None
        if digit is None:
            return None
        value = value * 10 + digit
    if negative:
        value = -value
    return value if -(1 << bits) <= value < 1 << bits else None


def parse_double(text: bytes) -> float | None:
    """The double in ``text``. Surrounding white space, hexadecimal digits and a type suffix are allowed."""
    digits = text.decode("utf-8", "replace").strip(_WHITE)
    if len(text) > _TEXT_MAX or not _DOUBLE.fullmatch(digits):
        return None
    if "x" in digits or "X" in digits:
        number, _, exponent = digits.replace("P", "p").partition("p")
        try:
            return float.fromhex(f"{number}p{exponent.rstrip('fFdD')}")
        except OverflowError:
            return float("-inf") if digits[0] == "-" else float("inf")
    if digits[-1] in "fFdD":
        digits = digits[:-1]
    return float(digits)
