"""Collects the columns of one batch in one buffer, piece by piece.

The scanner walks a piece of the log and has the piece's columns copied at once, while its records and its rows are
still in the processor's cache. A piece is small, but a batch should not be, because every batch has fixed costs. The
buffer begins with room for the metadata of a record batch message. With the metadata, PyArrow makes the whole batch in
one call. Readers import this module only inside ``read()``, like ``rucola.arrow.rows``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa

from rucola.arrow.batch_message import batch_message
from rucola.arrow.rows import Rows, text
from rucola.formats import _batch_cy, _columns_cy
from rucola.formats.column_plan import PLAN_WIDTH, PlanField, PlanKind, Planned, new_plan

_DETAIL, _MISSING, _BITS = int(PlanField.DETAIL), int(PlanField.MISSING), int(PlanField.BITS)


def no_text(_rows: Rows) -> bytes:
    """The text of all rows, where there is no such text."""
    return b""


class BlockColumn(NamedTuple):
    """A column that kernels write."""

    planned: Planned
    field: pa.Field
    """Name and type; they do not matter if the kind is ``SAME``, as no column is made."""
    repeated: Callable[[Rows], bytes] = no_text
    """Returns the text of all rows, for the kind ``REPEATED``."""


class ColumnBlock:
    """The columns of the batch that is being collected.

    Args:
        columns: the columns that kernels write; may be none.
    """

    def __init__(self, columns: Sequence[BlockColumn]) -> None:
        self._plan = new_plan([column.planned for column in columns])
        is_made = [column.planned.kind is not PlanKind.SAME for column in columns]
        self._places = list(accumulate(is_made, initial=0))
        """For each column, its number among those that are made."""
        self._schema = pa.schema([column.field for column, made in zip(columns, is_made, strict=True) if made])
        self._metadata, self._message_places = batch_message(self._schema) if columns else (b"", array("q"))
        self._repeated = [
            (number * PLAN_WIDTH + _DETAIL, column.repeated)
            for number, column in enumerate(columns)
            if column.planned.kind is PlanKind.REPEATED
        ]
        self._texts = b""
        self._json_scale = 1
        self._rows_max = 0
        """Number of rows for which the plan is laid out."""
        self._size = 0
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
        if not self._plan:
            return
        while True:
            measured = False
            if self._out is None:
                measured = self._begin(rows, rows_max, bytes_max)
            full = _columns_cy.fill(rows.source, rows.table, self._filled, rows.count, self._plan, self._out)
            if full < 0:
                self._filled = rows.count
                return
            # The new rows are longer than those that were measured. Rows that were measured always fit, except as
            # JSON, whose length is not known before it is written.
            self._out = None
            self._rows_max = 0
            if measured:
                self._json_scale *= 2

    def _begin(self, rows: Rows, rows_max: int, bytes_max: int) -> bool:
        """Makes the buffer of a batch; returns whether its columns were laid out, and so ``rows`` were measured.

        The layout of the last batch usually fits, because consecutive batches have similar rows.
        """
        texts = [repeated(rows) for _, repeated in self._repeated]
        for (place, _), one in zip(self._repeated, texts, strict=True):
            if self._plan[place] != len(one):
                self._plan[place] = len(one)
                self._rows_max = 0
        self._texts = b"".join(texts)
        measures = rows_max > self._rows_max
        if measures:
            self._size = _columns_cy.lay_out(
                rows.table, rows.count, rows_max, bytes_max, self._json_scale, self._plan, len(self._metadata)
            )
            self._rows_max = rows_max
        self._out, self._filled = pa.allocate_buffer(self._size), 0
        return measures

    def take(self, rows: Rows) -> FilledColumns:
        """Returns the columns of a whole batch, and begins a new batch.

        Args:
            rows: all rows of the batch; either all or none of them were given to ``fill``.
        """
        if not self._plan:
            return FilledColumns(self._plan, self._places, pa.RecordBatch.from_arrays([], schema=self._schema))
        if self._out is None:
            self.fill(rows, rows.count, 0)
        used = _batch_cy.complete(
            rows.table, rows.count, self._texts, self._plan, self._metadata, self._message_places, self._out
        )
        if 2 * used < self._size:
            # Whoever keeps the batches of short rows must not keep room for long ones.
            self._rows_max = 0
        batch = pa.ipc.read_record_batch(self._out, self._schema)
        self._out = None
        return FilledColumns(self._plan, self._places, batch)


class FilledColumns:
    """The columns of a batch. A column is named by its number among the columns of the block.

    Attributes:
        batch: all columns that are made, in order.
    """

    def __init__(self, plan: array[int], places: Sequence[int], batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._plan = plan
        self._places = places

    def array(self, number: int, rows: Rows) -> pa.Array:
        """The values of a column in ``rows``, which are all rows or a part of them. Text that is not UTF-8 has U+FFFD
        in the place of wrong bytes.
        """
        values = self.batch.column(self._places[number])
        if not self.is_ascii(number):
            values = text(values.view(pa.binary()))
        return values if rows.count == len(values) else values.slice(rows.start, rows.count)

    def is_ascii(self, number: int) -> bool:
        """Whether a column of kind ``TEXT`` has only ASCII characters; True for all other kinds."""
        return self._plan[number * PLAN_WIDTH + _BITS] < 128

    def has_nulls(self, number: int) -> bool:
        """Whether a column has a row without a value."""
        return self._plan[number * PLAN_WIDTH + _MISSING] > 0

    def is_odd(self, number: int) -> bool:
        """Whether a row has a time that no column can have, for a column of times."""
        return self._plan[number * PLAN_WIDTH + _BITS] > 0

    def is_same(self, number: int) -> bool:
        """Whether all rows have the same bytes, for a column of kind ``SAME``."""
        return self._plan[number * PLAN_WIDTH + _BITS] == 0
