"""Extension of a consume queue: filter data that a unit cannot hold (RocketMQ 5.3.3, ``ConsumeQueueExt``).

========= ===== ============================================================================================
position  bytes field
========= ===== ============================================================================================
0         2     size of this unit, 20 + b; -1 = the segment has no more units
2         8     tags code: the hash of TAGS with its sign, 0 without tags
10        8     store time of the record in ms
18        2     b, length of the bit map in bytes, 0 without a bit map
20        b     bloom filter bits of the subscriptions that match; bit k is ``1 << k % 8`` of byte ``k // 8``
========= ===== ============================================================================================

An extension unit's position does not follow from its index. Therefore the tags-code field of the consume-queue unit
holds an address, ``p - 2**63``; ``p`` is the byte position of the extension unit in the whole extension. All numbers
up to ``ADDRESS_MAX``, and only these, are addresses; no hash of tags is as small.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rucola.formats.layout import Field, Layout

EXT_UNIT: Final = Layout(
    "consume queue extension unit",
    20,
    Field("size", "h", "Size of this unit in bytes; -1 ends the segment."),
    Field("tags_code", "q", "Hash of the tags, 0 without tags."),
    Field("store_timestamp_ms", "q", "Store time of the record, ms since 1970."),
    Field("bit_map_length", "h", "Length of the bloom filter bits that follow, in bytes; 0 if there are none."),
)
EXT_UNIT_BYTES_MAX: Final = 32767
END_MARK: Final = b"\xff\xff"
END_BYTES: Final = 4
"""Units leave at least this many bytes at the end of a segment; ``END_MARK`` follows the last unit of a full segment.
"""

ADDRESS_MAX: Final = -0x80000001
_ADDRESS_ZERO: Final = -(1 << 63)


class ExtUnit(NamedTuple):
    """One unit."""

    tags_code: int
    store_timestamp_ms: int
    bit_map: bytes

    @property
    def size(self) -> int:
        """Length in bytes."""
        return EXT_UNIT.size + len(self.bit_map)


def is_address(tags_code: int) -> bool:
    """Whether the tags-code field of a consume-queue unit holds an address."""
    return tags_code <= ADDRESS_MAX


def address_of(position: int) -> int:
    """Returns the address by which a consume-queue unit refers to the extension unit at ``position``."""
    return position + _ADDRESS_ZERO


def position_of(address: int) -> int:
    """Returns the position in the extension to which ``address`` refers."""
    return address - _ADDRESS_ZERO


def encode_ext_unit(unit: ExtUnit) -> bytes:
    """Returns the bytes of a unit.

    Raises:
        ValueError: the bit map is too long.
    """
    if unit.size > EXT_UNIT_BYTES_MAX:
        raise ValueError(f"a bit map of {len(unit.bit_map)} bytes does not fit into a unit")
    return EXT_UNIT.pack(unit.size, unit.tags_code, unit.store_timestamp_ms, len(unit.bit_map)) + unit.bit_map


def decode_ext_unit(data: bytes | bytearray | memoryview, position: int = 0) -> ExtUnit | None:
    """Returns the unit at ``position``; None if the unit is incomplete or its size contradicts the bit map's length."""
    if position < 0 or position + EXT_UNIT.size > len(data):
        return None
    size, tags_code, store_timestamp_ms, length = EXT_UNIT.unpack(data, position)
    if length < 0 or size != EXT_UNIT.size + length or position + size > len(data):
        return None
    start = position + EXT_UNIT.size
    return ExtUnit(tags_code, store_timestamp_ms, bytes(data[start : start + length]))
