"""Collects the columns of one batch in one buffer, piece by piece.

The scanner walks a piece of the log and has the piece's columns copied at once, while its records and its rows are
still in the processor's cache. A piece is small, but a batch should not be, because every batch has fixed costs.
Readers import this module only inside ``read()``, like ``rucola.arrow.rows``.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pyarrow as pa

from rucola.arrow.rows import Rows, text, validity
from rucola.formats import _columns_cy
from rucola.formats.column_plan import PLAN_WIDTH, PlanField, PlanKind, Planned, new_plan

WIDTHS = {int(PlanKind.INT32): 4, int(PlanKind.INT64): 8}
"""Size in bytes of a number of each kind."""
_DETAIL, _VALUES, _OFFSETS = int(PlanField.DETAIL), int(PlanField.VALUES), int(PlanField.OFFSETS)
_DONE, _MISSING, _BITS = int(PlanField.DONE), int(PlanField.MISSING), int(PlanField.BITS)


class ColumnBlock:
    """The columns of the batch that is being collected.

    Args:
        columns: the columns that a kernel writes.
        types: the Arrow type of each column.
    """

    def __init__(self, columns: Sequence[Planned], types: Sequence[pa.DataType]) -> None:
        self._plan = new_plan(columns)
        self._types = types
        self._json_scale = 1
        self._out: pa.Buffer | None = None
        self._filled = 0

    def begin(self) -> None:
        """Begins a new batch; drops the last one if it was not taken."""
        self._out = None

    def fill(self, rows: Rows, rows_max: int, bytes_max: int) -> None:
        """Copies the columns of the rows that the batch has got since the last call.

        Args:
            rows: all rows of the batch so far.
            rows_max: number of rows that the batch may get in the end.
            bytes_max: largest size in bytes that a column of strings is expected to get.
        """
        while True:
            measured = self._out is None
            if self._out is None:
                size = _columns_cy.lay_out(rows.table, rows.count, rows_max, bytes_max, self._json_scale, self._plan)
                self._out, self._filled = pa.allocate_buffer(size), 0
            full = _columns_cy.fill(rows.source, rows.table, self._filled, rows.count, self._plan, self._out)
            if full < 0:
                self._filled = rows.count
                return
            # The new rows are longer than those that were measured. Rows that were measured always fit, except as
            # JSON, whose length is not known before it is written.
            self._out = None
            if measured:
                self._json_scale *= 2

    def take(self, rows: Rows) -> FilledColumns:
        """Returns the columns of a whole batch, and begins a new batch.

        Args:
            rows: all rows of the batch; either all or none of them were given to ``fill``.
        """
        if self._out is None:
            self.fill(rows, rows.count, 0)
        filled = FilledColumns(self._plan, self._types, self._out, rows)
        self._out = None
        return filled


class FilledColumns:
    """The columns of a batch; columns are counted from 0."""

    def __init__(self, plan: array[int], types: Sequence[pa.DataType], out: pa.Buffer, rows: Rows) -> None:
        self._plan = plan.tolist()
        self._types = types
        self._cut = out.slice
        self._rows = rows
        self._count = rows.count

    def array(self, number: int, rows: Rows) -> pa.Array:
        """The values of a column in ``rows``, which are all rows or a part of them. Text that is not UTF-8 has U+FFFD
        in the place of wrong bytes.
        """
        plan, at, count = self._plan, number * PLAN_WIDTH, self._count
        if (width := WIDTHS.get(plan[at])) is not None:
            buffers = [None, self._cut(plan[at + _VALUES], width * count)]
            values = pa.Array.from_buffers(self._types[number], count, buffers, 0)
        else:
            offsets = self._cut(plan[at + _OFFSETS], 4 * (count + 1))
            buffers = [None, offsets, self._cut(plan[at + _VALUES], plan[at + _DONE])]
            if missing := plan[at + _MISSING]:
                buffers[0] = validity(self._rows.numbers(plan[at + _DETAIL]) >= 0)
            if plan[at + _BITS] < 128:
                values = pa.Array.from_buffers(self._types[number], count, buffers, missing)
            else:
                values = text(pa.Array.from_buffers(pa.binary(), count, buffers, missing))
        return values if rows.count == count else values.slice(rows.start, rows.count)

    def is_same(self, number: int) -> bool:
        """Whether all rows have the same bytes, for a column of kind ``SAME``."""
        return self._plan[number * PLAN_WIDTH + _BITS] == 0
