"""Reads and writes text and numbers of headers, for interpreted kernels; ``kernel_text.pxd`` is the compiled form and
uses raw pointers.

Nothing here checks a position. Before a kernel writes, it makes sure that there is enough space; before it reads, it
makes sure that the bytes lie inside the buffer.
"""

from __future__ import annotations

from typing import Any

NO_NUMBER = -(2**63) + 1
"""``integer`` returns this for a text that is not a number. No number of up to 18 digits has this value."""
QUOTE = 0x22
COMMA = 0x2C
COLON = 0x3A
BACKSLASH = 0x5C
BRACE_OPEN = 0x7B
BRACE_CLOSE = 0x7D


def put(out: Any, position: int, text: bytes, length: int) -> int:
    """Writes ``text``, which has ``length`` bytes; returns the position after it."""
    out[position : position + length] = text
    return position + length


def copy(out: Any, position: int, data: Any, start: int, length: int) -> int:
    """Copies ``length`` bytes of ``data``, which is not ``out``; returns the position after them."""
    out[position : position + length] = data[start : start + length]
    return position + length


def put_int32(out: Any, position: int, value: int) -> int:
    """Writes the low 32 bits of ``value``, big-endian; returns the position after them."""
    out[position : position + 4] = (value & 0xFFFFFFFF).to_bytes(4, "big")
    return position + 4


def decimal_size(value: int) -> int:
    """Returns the number of characters that ``put_decimal`` writes."""
    return len(str(value))


def put_decimal(out: Any, position: int, value: int) -> int:
    """Writes ``value`` as decimal digits, with a minus sign if it is negative; returns the position after them."""
    digits = str(value).encode()
    return put(out, position, digits, len(digits))


def holds(data: Any, position: int, length: int, text: bytes) -> bool:
    """Whether ``data`` holds ``text``, which has ``length`` bytes, at ``position``."""
    return bytes(data[position : position + length]) == text


def integer(data: Any, position: int, end: int) -> int:
    """Returns the decimal number in ``data[position:end]``, or ``NO_NUMBER`` if that is not a number of up to 18
    digits.
    """
    digits = bytes(data[position:end])
    unsigned = digits.removeprefix(b"-")
    return int(digits) if unsigned.isdigit() and len(unsigned) <= 18 else NO_NUMBER


def character_bytes(data: Any, position: int, end: int) -> int:
    """Returns the number of bytes of the UTF-8 character at ``position``; 0 if there is none before ``end``."""
    first = data[position]
    size = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    try:
        return size if len(str(bytes(data[position : min(position + size, end)]), "utf-8")) == 1 else 0
    except UnicodeDecodeError:
        return 0


def is_listed(data: Any, position: int, length: int, names: Any, starts: Any) -> bool:
    """Whether ``data`` holds one of the names in a list at ``position``. The names of ``length`` bytes follow each
    other in ``names``, from index ``starts[length]`` to ``starts[length + 1]``.
    """
    places = range(starts[length], starts[length + 1], length or 1)
    return any(all(names[at + i] == data[position + i] for i in range(length)) for at in places)
