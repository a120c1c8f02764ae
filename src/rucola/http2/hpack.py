"""Header blocks (HPACK, RFC 7541): the decoder of a connection, and an encoder without a table.

The encoder refers to the static table only, so a block does not depend on the connection that sends it: what answers
have in common is encoded once and sent on every stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rucola.http2._hpack_cy import HeaderDecoder, WantedNames
from rucola.http2.hpack_tables import STATIC_TABLE

__all__ = ["HeaderDecoder", "WantedNames", "encode_block"]

_WHOLE = {field: number for number, field in reversed(list(enumerate(STATIC_TABLE, 1)))}
_NAMES = {name: number for number, (name, _) in reversed(list(enumerate(STATIC_TABLE, 1)))}
_NAME = re.compile(rb":?[!-9;-@\[-~]+")
_VALUE = re.compile(rb"(?![ \t])[^\0\r\n]*(?<![ \t])")


def encode_block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encodes names and values, the pseudo-header fields first. The block may be sent any number of times.

    Raises:
        ValueError: no peer would accept such a name or value (RFC 9113 8.2.1).
    """
    block = bytearray()
    for name, value in fields:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"no header field: {name!r}: {value!r}")
        if whole := _WHOLE.get((name, value)):
            block += _number(whole, 0x7F, 0x80)
            continue
        known = _NAMES.get(name, 0)
        block += _number(known, 0x0F, 0)
        if not known:
            block += _number(len(name), 0x7F, 0) + name
        block += _number(len(value), 0x7F, 0) + value
    return bytes(block)


def _number(value: int, mask: int, first: int) -> bytes:
    """Encodes a number whose first byte has room for ``mask`` beside the bits ``first`` (RFC 7541 5.1)."""
    if value < mask:
        return bytes((first | value,))
    octets = bytearray((first | mask,))
    value -= mask
    while value >= 0x80:
        octets.append(value & 0x7F | 0x80)
        value >>= 7
    octets.append(value)
    return bytes(octets)
