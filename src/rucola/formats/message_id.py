"""The offset message id: store host and physical offset of a record as upper-case hexadecimal digits.

It has 32 digits for an IPv4 host, 56 for IPv6 (RocketMQ 5.3.3, ``MessageDecoder#createMessageId``). The other id of a
message, its property UNIQ_KEY, is made by the client.
"""

from __future__ import annotations

from typing import NamedTuple

from rucola.common.ids import PhysicalOffset


class OffsetMessageId(NamedTuple):
    """The content of an offset message id: host bytes (8 or 20) and physical offset."""

    store_host: bytes
    physical_offset: PhysicalOffset


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Returns the id of the record at ``physical_offset`` that ``store_host`` (8 or 20 bytes) stored."""
    return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()


def parse_offset_message_id(text: str) -> OffsetMessageId:
    """Parses an offset message id; accepts upper-case and lower-case digits.

    Raises:
        ValueError: the text is not 32 or 56 hexadecimal digits.
    """
    if len(text) not in (32, 56) or any(digit not in "0123456789abcdefABCDEF" for digit in text):
        raise ValueError(f"{text!r} is not an offset message id: 32 or 56 hexadecimal digits expected")
    raw = bytes.fromhex(text)
    return OffsetMessageId(raw[:-8], PhysicalOffset(int.from_bytes(raw[-8:], "big", signed=True)))
