"""Encodes messages given as columns into the body of a batch request, and decodes such a body.

Source: protocol.md 2.3; RocketMQ 5.3.3, MessageDecoder#encodeMessages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from rucola.errors import FormatError
from rucola.protocol._batch_members_cy import append_property, pack_members

__all__ = ["ID_BYTES", "PACKED_PROPERTIES_BYTES_MAX", "BatchMember", "append_property", "members_of", "pack_members"]

ID_BYTES = 32
"""Length in bytes of the ids that ``pack_members`` writes."""
PACKED_PROPERTIES_BYTES_MAX = 32767 - 42
"""Largest size in bytes of a properties text for ``pack_members``, which adds the UNIQ_KEY."""

_HEAD = struct.Struct(">iiiii")  # total, magic, checksum, flag, body length
_SHORT = struct.Struct(">h")


class BatchMember(NamedTuple):
    """One message of a batch."""

    body: bytes
    flag: int
    properties: dict[str, str]


def members_of(body: bytes) -> Iterator[BatchMember]:
    """Decodes the messages in the body of a batch request.

    Raises:
        FormatError: the lengths do not add up.
    """
    position = 0
    while position < len(body):
        try:
            total, _, _, flag, size = _HEAD.unpack_from(body, position)
            end = position + _HEAD.size + size
            (length,) = _SHORT.unpack_from(body, end)
        except struct.error as error:
            raise FormatError("batch", position, "a whole message", str(error)) from error
        text = body[end + _SHORT.size : end + _SHORT.size + length].decode()
        if size < 0 or length < 0 or total != _HEAD.size + size + _SHORT.size + length or position + total > len(body):
            raise FormatError("batch", position, "lengths that add up", f"{total}, {size} and {length} bytes")
        pairs = (pair.partition("\x01") for pair in text.split("\x02") if pair)
        yield BatchMember(body[position + _HEAD.size : end], flag, {name: value for name, _, value in pairs})
        position += total
