"""The queue of one lite topic, as readers see it. An object exists only while it is used; it keeps nothing."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from rucola.formats.consume_queue import PRE_FILL_UNIT, UNIT, UNIT_BYTES, PullLimits, select_units
from rucola.formats.lite import LiteUnit
from rucola.store.log.segment_list import SegmentList
from rucola.store.results import Boundary

if TYPE_CHECKING:
    from rucola.store.lite.lite_topics import LiteTopics

_WINDOW_MAX = 1024
"""Largest number of units that one pull looks at."""


class LiteQueue:
    """See ``store.queue.readable_queue``.

    Args:
        name_id: id of the lite topic.
    """

    queue_id = 0
    unit_bytes = UNIT_BYTES
    found_offset = 0

    def __init__(self, topics: LiteTopics, topic: bytes, name_id: int) -> None:
        self.topic = topic
        self._topics = topics
        self._id = name_id

    @property
    def segments(self) -> SegmentList:
        """The segments of units of all lite topics."""
        return self._topics.units.segments

    @property
    def max_offset(self) -> int:
        """Queue offset after the newest message."""
        return self._topics.columns.nexts[self._id]

    @property
    def min_offset(self) -> int:
        """Queue offset of the oldest message that is neither deleted nor expired; ``max_offset`` if there is none."""
        return self._topics.min_offset(self._id)

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Returns physical offset, size and tags code of a unit; zeros if there is none."""
        cell = self._topics.cell_at(self._id, queue_offset)
        unit = None if cell < 0 else self._topics.units.unit(cell)
        if unit is None or unit.queue_offset != queue_offset:
            return 0, 0, 0
        return unit.physical_offset, unit.size, unit.tags_code

    def entry(self, queue_offset: int) -> tuple[int, int, int]:
        """See ``unit``."""
        return self.unit(queue_offset)

    def place_at(self, queue_offset: int) -> tuple[int, int]:
        """Returns the physical offset and the size in a unit; zeros if there is none."""
        return self.unit(queue_offset)[:2]

    def leads_to(self, physical_offset: int, size: int) -> bool:
        """False: a record of a lite topic has no other place that could prove a damaged field wrong."""
        return False

    def messages_in(self, chosen: array[int], count: int) -> int:
        """Returns the number of messages in the ``count`` chosen records."""
        return count

    def offset_after(self, path: str, position: int) -> int:
        """Returns 0: which units lie behind a damaged page of a file says nothing about this queue."""
        return 0

    def select(
        self,
        queue_offset: int,
        chosen: array[int],
        tag_codes: array[int],
        max_messages: int,
        max_bytes: int,
        scan_bytes_max: int,
        limits: PullLimits,
    ) -> tuple[int, int, int] | None:
        """See ``ConsumeQueue.select``. Offsets without a unit count as units without a record."""
        count = min(
            self.max_offset - queue_offset,
            max(max_messages, 1) if not tag_codes else max(scan_bytes_max // UNIT_BYTES, 1),
            _WINDOW_MAX,
        )
        units = self.read_units(queue_offset, count)
        return select_units(units, 0, len(units), chosen, max_messages, max_bytes, scan_bytes_max, tag_codes, limits)

    def read_units(self, queue_offset: int, count: int) -> bytearray:
        """Returns ``count`` units as those of a ``ConsumeQueue``."""
        units = bytearray(PRE_FILL_UNIT * count)
        cells = self._topics.units
        cell = self._topics.cell_at(self._id, queue_offset + count - 1)
        while cell >= 0:
            unit = cells.unit(cell)
            if unit is None or unit.queue_offset < queue_offset:
                break
            UNIT.struct.pack_into(units, (unit.queue_offset - queue_offset) * UNIT_BYTES, *unit_fields(unit))
            if unit.back == 0:
                break
            cell -= unit.back
        return units

    def offset_by_time(
        self, timestamp_ms: int, boundary: Boundary, store_time: Callable[[int], int] | None = None
    ) -> int:
        """See ``ConsumeQueue.offset_by_time``."""
        time_of = store_time or self._topics.store_time
        end_ms = timestamp_ms if boundary is Boundary.LOWER else timestamp_ms + 1
        found = self._first_not(lambda queue_offset: time_of(self.unit(queue_offset)[0]) < end_ms)
        return max(found - 1, self.min_offset) if boundary is Boundary.UPPER else found

    def offset_since(self, seconds: int) -> int:
        """Returns the offset of the first message stored at ``seconds`` since the epoch or later; the offset after
        the last message if there is none. Reads no record: units have store times in seconds.
        """

        def is_earlier(queue_offset: int) -> bool:
            unit = self._topics.units.unit(self._topics.cell_at(self._id, queue_offset))
            return unit is not None and unit.store_time_s < seconds

        return self._first_not(is_earlier)

    def _first_not(self, is_earlier: Callable[[int], bool]) -> int:
        """Returns the offset after the last message that is earlier; ``is_earlier`` is asked of offsets with units."""
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            known = self._next_known(middle, high)
            if known < high and is_earlier(known):
                low = known + 1
            else:
                high = middle
        return low

    def _next_known(self, queue_offset: int, end: int) -> int:
        """Returns the first offset from ``queue_offset`` on that has a unit; ``end`` if there is none."""
        found = end
        cell = self._topics.cell_at(self._id, end - 1)
        while cell >= 0:
            unit = self._topics.units.unit(cell)
            if unit is None or unit.queue_offset < queue_offset:
                break
            found = unit.queue_offset
            further = cell - unit.jump
            jump = self._topics.units.unit(further) if unit.jump else None
            if jump is not None and jump.queue_offset >= queue_offset:
                cell = further
            elif unit.back:
                cell -= unit.back
            else:
                break
        return found


def unit_fields(unit: LiteUnit) -> tuple[int, int, int]:
    """Returns the fields that a unit of a plain queue would have."""
    return unit.physical_offset, unit.size, unit.tags_code
