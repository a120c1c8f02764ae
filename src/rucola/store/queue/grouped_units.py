"""The units of a batch of records, grouped by queue.

A log whose topics and queues alternate record by record would otherwise cost a search for the queue at each record.
Kernels group the records; per queue, what remains is one copy of its units.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

from rucola.formats.consume_queue import UNIT_BYTES, CollectedColumn, QueueColumn, collect_units, sort_units
from rucola.formats.message import ROWS_MAX
from rucola.store.log.mapped_file import MappedFile

_WIDTH = len(QueueColumn)
_NO_SLOTS = array("q", bytes(8 * 2 * ROWS_MAX))


QueueGroup: TypeAlias = "tuple[bytes, int, int, int, int, int, int | None]"
"""The units of one queue: topic, queue id, the first unit's queue offset; which of the ``units`` they are, the end
excluded; how many of them have a queue offset that does not follow that of the unit before; and the tags code that all
of them share (None if their codes differ).
"""


class GroupedUnits:
    """Groups one batch after the other.

    Attributes:
        units: the units of the newest batch, queue by queue.
    """

    def __init__(self) -> None:
        self.units = bytearray(ROWS_MAX * UNIT_BYTES)
        self._slots = _NO_SLOTS[:]
        self._queues = array("q", bytes(8 * ROWS_MAX * _WIDTH))
        self._collected = array("q", bytes(8 * ROWS_MAX * len(CollectedColumn)))
        self._ends = array("q", bytes(8 * ROWS_MAX))
        self._offsets = array("q", bytes(8 * ROWS_MAX))

    def group(self, file: MappedFile, table: array[int], rows: int) -> list[QueueGroup]:
        """Returns a group for each queue that gets units, in the order in which the log names them.

        Args:
            file: the segment to which the rows refer.
            table: rows of ``walk_records``; the first ``rows``, at most ``ROWS_MAX``, are used. Prepared and rollback
                records get no unit.
        """
        segment, queues = file.map, self._queues
        self._slots[:] = _NO_SLOTS
        _, count, units = collect_units(
            segment.buffer, table, rows, file.start, self._slots, queues, 0, self._collected, 0
        )
        sort_units(self._collected, units, queues, count, self._ends, self.units, self._offsets)
        view, begin, groups = segment.view, 0, []
        fields, ends = queues[: count * _WIDTH].tolist(), self._ends[:count].tolist()
        for at, end in zip(range(0, count * _WIDTH, _WIDTH), ends, strict=True):
            position, length, queue_id, _, queue_offset, _, breaks, tags_code, others = fields[at : at + _WIDTH]
            topic = bytes(view[position : position + length])
            groups.append((topic, queue_id, queue_offset, begin, end, breaks, None if others else tags_code))
            begin = end
        return groups
