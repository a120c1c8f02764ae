"""Units of a batch consume queue, 46 bytes each, one per record (RocketMQ 5.3.3, ``BatchConsumeQueue``).

========= ===== ============================================================================================
position  bytes field
========= ===== ============================================================================================
0         8     physical offset of the record
8         4     size of the record
12        8     tags code: the hash of TAGS with its sign, 0 without tags
20        8     store time of the record in ms
28        8     queue offset of the record's first message
36        2     number of messages in the record
38        4     compacted offset, -1
42        4     reserved, 0
========= ===== ============================================================================================

Units follow each other in the order of their records; a unit's position cannot be computed from its queue offset.
Topics with the attribute ``queue.type=BatchCQ`` have such queues.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rucola.formats.layout import Field, Layout

BATCH_UNIT_BYTES: Final = 46
BATCH_UNIT: Final = Layout(
    "batch consume queue unit",
    BATCH_UNIT_BYTES,
    Field("physical_offset", "q", "Offset of the record in the commit log."),
    Field("size", "i", "Bytes of the record."),
    Field("tags_code", "q", "Hash of the tags, 0 without tags."),
    Field("store_timestamp_ms", "q", "Store time of the record, ms since 1970."),
    Field("base_offset", "q", "Queue offset of the first message in the record."),
    Field("batch_size", "h", "Messages in the record."),
    Field("compacted_offset", "i", "Always -1."),
    Field("reserved", "i", "Always 0."),
)
BATCH_SIZE_MAX: Final = 32767
"""Largest number of messages in one record: ``batch_size`` is a signed 16-bit integer."""

_NO_COMPACTED_OFFSET: Final = -1


class BatchUnit(NamedTuple):
    """One unit, without its two constant fields."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp_ms: int
    base_offset: int
    batch_size: int

    @property
    def next_offset(self) -> int:
        """Queue offset after the last message of the record."""
        return self.base_offset + self.batch_size

    @property
    def valid(self) -> bool:
        """Whether the field values are possible in a unit; False if all bytes are zero."""
        return self.physical_offset >= 0 and self.size > 0 and self.base_offset >= 0 and self.batch_size > 0


def encode_batch_unit(unit: BatchUnit) -> bytes:
    """Returns the 46 bytes of a unit."""
    return BATCH_UNIT.pack(*unit, _NO_COMPACTED_OFFSET, 0)


def decode_batch_unit(data: bytes | bytearray | memoryview, position: int = 0) -> BatchUnit:
    """Returns the unit at ``position``.

    Raises:
        struct.error: ``data`` is too short.
    """
    return BatchUnit(*BATCH_UNIT.unpack(data, position)[:6])
