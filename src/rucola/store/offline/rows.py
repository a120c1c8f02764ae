"""Records of a store directory as rows of a table, together with the bytes that the rows describe. Used by code that
prints or copies many records.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rucola.common.columns import ROW_WIDTH, new_table
from rucola.common.kernel_columns import RECORD_SIZE
from rucola.formats.checksum import crc32
from rucola.formats.message import CHECK_ALL, ROWS_MAX, walk_records
from rucola.store.log.mapped_file import MappedFile

Unit = tuple[int, int, int, int]
"""Queue offset, physical offset, size and tags code."""


class SegmentRows(NamedTuple):
    """Some records of one segment.

    Attributes:
        view: the segment; positions in the table refer to it.
        table: rows of ``RecordColumn``; the next ``SegmentRows`` of the same source overwrites them.
        chosen: the indices of the selected rows.
    """

    view: memoryview
    table: array[int]
    chosen: Sequence[int]


class UnitRows:
    """Produces rows for the records to which a queue's units point, in the order of the units.

    Args:
        find: returns the segment that holds a physical offset.
        damaged: returns the error for a unit whose record does not match it.
        stretches: see ``LogReader``.
    """

    def __init__(
        self,
        find: Callable[[int], MappedFile | None],
        damaged: Callable[[Unit], Exception],
        stretches: array[int] | None,
    ) -> None:
        self._find = find
        self._damaged = damaged
        self._stretches = stretches
        self._table = new_table(ROWS_MAX)
        self._wide = memoryview(self._table)

    def of(self, units: Iterator[Unit], end: int) -> Iterator[SegmentRows]:
        """Yields the rows for ``units``, whose records all lie below the physical offset ``end``.

        Raises:
            StoreDamagedError: a record does not match its unit.
        """
        batch: list[Unit] = []
        file: MappedFile | None = None
        for unit in units:
            if file is None or len(batch) == ROWS_MAX or not file.start <= unit[1] < file.end:
                if batch and file is not None:
                    yield self._rows(file, batch)
                    batch = []
                file = self._find(unit[1])
            if file is None or unit[2] <= 0 or unit[1] + unit[2] > min(end, file.end):
                if batch and file is not None:
                    yield self._rows(file, batch)
                raise self._damaged(unit)
            batch.append(unit)
        if batch and file is not None:
            yield self._rows(file, batch)

    def _rows(self, file: MappedFile, batch: list[Unit]) -> SegmentRows:
        """Walks consecutive records in one call; a queue has such records when nothing was written for other queues in
        between.
        """
        row = 0
        while row < len(batch):
            start = end = batch[row][1]
            last = row
            while last < len(batch) and batch[last][1] == end:
                end += batch[last][2]
                last += 1
            found, _, _ = walk_records(
                file.map.buffer,
                file.map.view,
                start - file.start,
                end - file.start,
                file.start,
                self._wide[row * ROW_WIDTH :],
                last - row,
                crc32,
                CHECK_ALL,
                self._stretches,
            )
            for number in range(row, last):
                if number - row >= found or self._table[number * ROW_WIDTH + RECORD_SIZE] != batch[number][2]:
                    raise self._damaged(batch[number])
            row = last
        return SegmentRows(file.map.view, self._table, range(len(batch)))
