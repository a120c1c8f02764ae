"""Lite topics: the files of ``rucola-lite`` (``store.lite``), which RocketMQ does not know.

Names are those of lite topics (``formats.light_queue``). Numbers are big-endian.

=========== ==========================================================================================================
file        content
=========== ==========================================================================================================
names       entries: id (uint32), length of the name (uint8), the name, CRC-32 of all before it. New ids count up
            from 0; a later entry with an id that was used before replaces the earlier one
units/      segments of ``LITE_UNIT``, in the order of dispatch, so their physical offsets never decrease
table       ``LITE_TABLE``, its CRC-32, then for each ``TABLE_ROWS`` names four columns: next queue offset, start,
            number of the last unit plus one (int64 each), and store time of the last message in seconds (uint32). A
            column begins with its length and its CRC-32 (uint32 each), and is compressed with zlib
synced      two slots of 64 bytes: ``LITE_SYNCED`` and its CRC-32; the valid slot with the higher sequence counts
=========== ==========================================================================================================

``back`` and ``jump`` of a unit are distances, in units, to earlier units of the same name: to its previous unit, and to
one further back (Myers, "An applicative random-access stack"). From any unit, a walk that jumps wherever a jump does
not go too far reaches every earlier unit in a logarithmic number of steps. 0 means that there is none. The first unit
of a topic that does not begin at offset 0, or begins anew at a lower offset, has ``back`` 0 and ``jump`` 2**32 - 1.
"""

from __future__ import annotations

import sys
from array import array
from typing import NamedTuple

from rucola.formats._lite_cy import (
    apply_units,
    check_units,
    checksum_names,
    count_live,
    fill_slots,
    find_name,
    find_rows,
    hash_name,
    hash_names,
    insert_name,
    read_links,
    refill_slots,
    remove_name,
    rows_above,
    set_parents,
    walk_names,
    write_unit,
)
from rucola.formats._lite_rows_cy import find_lite
from rucola.formats.checksum import crc32
from rucola.formats.layout import Field, Layout

__all__ = [
    "LITE_SYNCED",
    "LITE_TABLE",
    "LITE_UNIT",
    "LITE_UNIT_BYTES",
    "NAME_CRC_BYTES",
    "NAME_HEAD_BYTES",
    "TABLE_ROWS",
    "LiteUnit",
    "apply_units",
    "check_units",
    "checksum_names",
    "count_live",
    "decode_unit",
    "encode_name",
    "encode_unit",
    "fill_slots",
    "find_lite",
    "find_name",
    "find_rows",
    "hash_name",
    "hash_names",
    "insert_name",
    "name_at",
    "read_links",
    "refill_slots",
    "remove_name",
    "rows_above",
    "set_parents",
    "to_big_endian",
    "walk_names",
    "write_unit",
]

QUEUE_OFFSET_MAX = (1 << 40) - 1
PHYSICAL_OFFSET_MAX = (1 << 56) - 1
DISTANCE_MAX = (1 << 32) - 2
BEGINS = (1 << 32) - 1
"""``jump`` of a unit that begins its topic."""
NAME_HEAD_BYTES = 5
NAME_CRC_BYTES = 4
TABLE_ROWS = 65_536
"""Names whose columns are compressed together."""

LITE_UNIT = Layout(
    "lite unit",
    40,
    Field("id", "I", "Number of the name."),
    Field(
        "size",
        "i",
        "Length of the record in bytes; 0 in a start mark, which deletes all earlier messages; -1 in an end mark, "
        "which drops the name.",
    ),
    Field("place", "Q", "Physical offset of the record times 256, plus bits 32 to 39 of the queue offset."),
    Field("queue_offset_low", "I", "Bits 0 to 31 of the queue offset; in a start mark, of the first offset kept."),
    Field("tags_code", "i", "Hash of the message's tag; in a mark, CRC-32 of the name."),
    Field("store_time", "I", "Store time of the message in seconds since the epoch."),
    Field("back", "I", "Number of units back to the name's previous unit."),
    Field("jump", "I", "Number of units back to the unit to jump to."),
    Field("crc", "I", "CRC-32 of the fields before it."),
)
LITE_TABLE = Layout(
    "lite table",
    56,
    Field("magic", "8s", "`RUCOLAL1`."),
    Field("names", "q", "Number of names in the table."),
    Field("names_bytes", "q", "Length of the file `names` up to the last of them."),
    Field("from_unit", "q", "Number of the unit from which on units may be missing in the columns."),
    Field("to_unit", "q", "Number of the unit before which the columns end; all units before it were synced."),
    Field(
        "repeated_to",
        "q",
        "Physical offset up to which records are dispatched again after a cut: none of them begins a topic anew.",
    ),
    Field("parts", "q", "Number of groups of columns."),
)
LITE_SYNCED = Layout(
    "lite synced slot",
    40,
    Field("magic", "8s", "`RUCOLAL2`."),
    Field("sequence", "q", "Sequence number of this write."),
    Field("units", "q", "Number of units that are synced."),
    Field("names_bytes", "q", "Length of the file `names` that is synced."),
    Field("first_unit", "q", "Number of the oldest unit that must be there."),
)
LITE_UNIT_BYTES = LITE_UNIT.size
_UNIT = LITE_UNIT.struct
_CRC_AT = LITE_UNIT.position("crc")


class LiteUnit(NamedTuple):
    """The fields of a unit; ``LITE_UNIT`` describes them."""

    name_id: int
    size: int
    physical_offset: int
    queue_offset: int
    tags_code: int
    store_time_s: int
    back: int = 0
    jump: int = 0
    begins: bool = False


def name_at(blob: bytearray, position: int) -> bytes:
    """Returns the name in the entry of ``names`` at ``position``."""
    start = position + NAME_HEAD_BYTES
    return bytes(blob[start : start + blob[start - 1]])


def encode_name(name_id: int, name: bytes) -> bytes:
    """Returns an entry of the file ``names``."""
    head = name_id.to_bytes(4, "big") + bytes((len(name),)) + name
    return head + crc32(head).to_bytes(4, "big")


def encode_unit(unit: LiteUnit) -> bytes:
    """Returns the bytes of a unit. Queue offset and physical offset must be at most ``QUEUE_OFFSET_MAX`` and
    ``PHYSICAL_OFFSET_MAX``.
    """
    place = unit.physical_offset << 8 | unit.queue_offset >> 32
    head = _UNIT.pack(
        unit.name_id,
        unit.size,
        place,
        unit.queue_offset & 0xFFFFFFFF,
        unit.tags_code,
        unit.store_time_s,
        unit.back,
        BEGINS if unit.begins else unit.jump,
        0,
    )[:_CRC_AT]
    return head + crc32(head).to_bytes(4, "big")


def decode_unit(data: bytes) -> LiteUnit | None:
    """Returns the unit in 40 bytes; None if its checksum is wrong."""
    name_id, size, place, low, tags_code, time_s, back, jump, crc = _UNIT.unpack(data)
    if crc32(data[:_CRC_AT]) != crc:
        return None
    queue_offset = (place & 255) << 32 | low
    if back == 0 and jump == BEGINS:
        return LiteUnit(name_id, size, place >> 8, queue_offset, tags_code, time_s, 0, 0, True)
    return LiteUnit(name_id, size, place >> 8, queue_offset, tags_code, time_s, back, jump)


def to_big_endian(values: array[int]) -> array[int]:
    """Swaps the bytes of ``values`` where numbers in memory are little-endian; the same call swaps them back."""
    if sys.byteorder == "little":
        values.byteswap()
    return values
