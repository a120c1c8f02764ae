"""Java's arithmetic and text conventions, where files or peers depend on them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

INT32_MAX: Final = 0x7FFFFFFF
INT32_MIN: Final = -0x80000000
_MULTIPLIER: Final = 2862933555777941757
_TWO_TO_31: Final = float(1 << 31)
_UINT64_MAX: Final = (1 << 64) - 1


def to_int32(value: int) -> int:
    """Returns ``value`` wrapped to a signed 32-bit integer, as the cast ``(int)`` does."""
    value &= 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


def read_int32(value: Any) -> int:
    """Returns ``value``, a number or its text, as an int32.

    Raises:
        ValueError: the value is not a number, or does not fit.
        TypeError: the value is neither number nor text.
    """
    return _within(value, 31)


def read_int64(value: Any) -> int:
    """Returns ``value``, a number or its text, as an int64; raises the same errors as ``read_int32``."""
    return _within(value, 63)


def _within(value: Any, bits: int) -> int:
    try:
        number = int(value)
    except OverflowError:  # an infinite float
        raise ValueError(f"expected a {bits + 1}-bit number, got {value}") from None
    if not -(1 << bits) <= number < 1 << bits:
        raise ValueError(f"expected a {bits + 1}-bit number, got {str(value)[:40]}")
    return number


def string_hash(text: str) -> int:
    """Returns Java's ``String.hashCode``, which is computed over UTF-16 code units, so that characters outside the
    basic plane count as two.
    """
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
        return value if value < 0x80000000 else value - 0x100000000
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8) + units[at + 1]) & 0xFFFFFFFF
    return to_int32(value)


def consistent_hash(number: int, buckets: int) -> int:
    """Guava's ``Hashing.consistentHash``: if buckets are added at the end, few numbers change their bucket.

    Args:
        number: an int64.
        buckets: number of buckets, at least 1.

    Returns:
        A number from 0 to ``buckets - 1``.
    """
    state = number & _UINT64_MAX
    candidate = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _UINT64_MAX
        # as in Java: the division and the product are of doubles, and the cast drops the fraction
        following = int((candidate + 1) / (((state >> 33) + 1) / _TWO_TO_31))
        if not 0 <= following < buckets:
            return candidate
        candidate = following


_SPACES: Final = re.compile(r"[\t-\r\x1c-\x20\u1680\u2000-\u2006\u2008-\u200a\u2028\u2029\u205f\u3000]*")
"""What ``Character.isWhitespace`` accepts: not the spaces that forbid a line break, unlike Python's ``str.isspace``."""
_ISO_CONTROLS: Final = re.compile(r"[\0-\x1f\x7f-\x9f]")


def parse_boolean(text: str | None) -> bool:
    """Does what ``Boolean.parseBoolean`` does: "true", in upper or lower case, is true; everything else is false."""
    return text is not None and text.lower() == "true"


def is_blank(text: str) -> bool:
    """Whether ``text`` is empty or only white space (``StringUtils.isBlank``)."""
    return _SPACES.fullmatch(text) is not None


def has_iso_control(text: str) -> bool:
    """Whether ``text`` has a control character: U+0000 to U+001F, or U+007F to U+009F (``Character.isISOControl``)."""
    return _ISO_CONTROLS.search(text) is not None


def hash_map_order(names: Iterable[str], capacity: int = 16) -> list[str]:
    """Returns the distinct ``names`` in the iteration order of a ``java.util.HashMap`` filled with them.

    Java turns buckets of eight or more names into trees; this is not modelled.

    Args:
        capacity: initial number of buckets, a power of two: 16 for a new map, 128 for parsed properties.
    """
    distinct = list(dict.fromkeys(names))
    while len(distinct) > capacity * 3 // 4:
        capacity *= 2

    def bucket(name: str) -> int:
        value = string_hash(name) & 0xFFFFFFFF
        return (value ^ (value >> 16)) & (capacity - 1)

    return sorted(distinct, key=bucket)


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WHITE: Final = " \t\f"


def parse_properties(text: str) -> dict[str, str]:
    """Parses a Java properties file (``java.util.Properties#load``), for example ``broker.conf``.

    Comments start with ``#`` or ``!``; a key ends at ``=``, ``:`` or white space; a backslash at the end of a line
    continues it. The last of several equal keys counts.

    Raises:
        ValueError: a ``\\u`` escape is not followed by four hexadecimal digits.
    """
    result: dict[str, str] = {}
    for line in _logical_lines(text):
        end = 0
        while end < len(line) and line[end] not in "=:" + _WHITE:
            end += 2 if line[end] == "\\" else 1
        rest = line[end:].lstrip(_WHITE)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_WHITE)
        result[_unescape(line[:end])] = _unescape(rest)
    return result


def _logical_lines(text: str) -> list[str]:
    """Returns the lines except comments and blank ones; continued lines are joined."""
    lines: list[str] = []
    open_line: str | None = None
    for raw in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        line = raw.lstrip(_WHITE)
        if open_line is None:
            if not line or line[0] in "#!":
                continue
            open_line = ""
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            open_line += line[:-1]
        else:
            lines.append(open_line + line)
            open_line = None
    if open_line is not None:
        lines.append(open_line)
    return lines


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\" and at < len(text):
            char = text[at]
            at += 1
            if char == "u":
                digits = text[at : at + 4]
                if len(digits) < 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                    raise ValueError(f"\\u must be followed by four hexadecimal digits, got {digits!r}")
                char = chr(int(digits, 16))
                at += 4
            else:
                char = _ESCAPES.get(char, char)
        elif char == "\\":
            break  # a single backslash at the end of the text is dropped
        parts.append(char)
    # two escapes may form one character outside the basic plane
    return "".join(parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def format_properties(properties: Mapping[str, str]) -> str:
    """Returns the text of a Java properties file: one ``key=value`` per line, in order, readable by
    ``parse_properties``.
    """
    return "".join(f"{_escape(key, True)}={_escape(value, False)}\n" for key, value in properties.items())


def _escape(text: str, is_key: bool) -> str:
    parts: list[str] = []
    for at, char in enumerate(text):
        if char in "\t\n\r\f":
            parts.append("\\" + "tnrf"["\t\n\r\f".index(char)])
        elif char == "\\" or (char in "=:#!") or (char == " " and (is_key or at == 0)):
            parts.append("\\" + char)
        elif " " <= char <= "~":
            parts.append(char)
        else:
            units = char.encode("utf-16-be", "surrogatepass")
            parts.extend(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))
    return "".join(parts)
