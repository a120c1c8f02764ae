"""Units of a consume queue. A unit has 20 bytes; unit n begins at byte 20 n (RocketMQ 5.3.3, ``ConsumeQueue``).

========= ===== ============================================================================================
position  bytes field
========= ===== ============================================================================================
0         8     physical offset of the record
8         4     size of the record
12        8     tags code: the signed hash of TAGS, 0 without tags; in the schedule topic, the due time in ms
========= ===== ============================================================================================

If a queue begins at a queue offset above 0, its first unit may lie in the middle of a segment. The earlier units of
this segment are then ``PRE_FILL_UNIT``.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from rucola.common.ids import PhysicalOffset
from rucola.formats._queue_cy import (
    PullLimits,
    collect_units,
    gather_units,
    join_slices,
    merge_neighbours,
    put_unit,
    select_units,
    sort_units,
)
from rucola.formats.layout import Field, Layout

__all__ = [
    "PRE_FILL_UNIT",
    "UNIT",
    "UNIT_BYTES",
    "CollectedColumn",
    "ConsumeQueueUnit",
    "PullLimits",
    "QueueColumn",
    "collect_units",
    "gather_units",
    "join_slices",
    "merge_neighbours",
    "put_unit",
    "read_units",
    "select_units",
    "sort_units",
]

UNIT_BYTES: Final = 20
UNIT: Final = Layout(
    "consume queue unit",
    UNIT_BYTES,
    Field("physical_offset", "q", "Offset of the record in the commit log."),
    Field("size", "i", "Bytes of the record."),
    Field("tags_code", "q", "Hash of the tags, 0 without tags. On the schedule topic: the due time in ms."),
)
PRE_FILL_UNIT: Final = UNIT.pack(0, 0x7FFFFFFF, 0)


class QueueColumn(IntEnum):
    """Columns of the table of queues that ``collect_units`` fills, one row per queue."""

    TOPIC_POS = 0
    TOPIC_LEN = 1
    QUEUE_ID = 2
    COUNT = 3
    FIRST = 4  # Queue offset of the first record.
    NEXT = 5  # Queue offset after the last record.
    BREAKS = 6  # Number of records whose queue offset does not follow the previous record's.
    TAGS_CODE = 7  # Tags code of the first record.
    OTHER_TAGS = 8  # Number of records with another tags code.


class CollectedColumn(IntEnum):
    """Columns of the table of units that ``collect_units`` fills, one row per unit."""

    QUEUE = 0  # Index of the queue's row in the table of queues.
    QUEUE_OFFSET = 1
    PHYSICAL_OFFSET = 2
    SIZE = 3
    TAGS_CODE = 4


class ConsumeQueueUnit(NamedTuple):
    """One unit."""

    physical_offset: PhysicalOffset
    size: int
    tags_code: int


def read_units(units: bytes | bytearray | memoryview) -> Iterator[ConsumeQueueUnit]:
    """Decodes the bytes ``units``; an incomplete unit at the end is ignored."""
    whole = len(units) - len(units) % UNIT_BYTES
    for physical_offset, size, tags_code in UNIT.struct.iter_unpack(memoryview(units)[:whole]):
        yield ConsumeQueueUnit(PhysicalOffset(physical_offset), size, tags_code)
