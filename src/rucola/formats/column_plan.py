"""The plan by which kernels write the columns of a batch, side by side, into one buffer.

A plan is an ``array('q')`` with one row of ``PLAN_WIDTH`` integers for each column. ``_columns_cy.lay_out`` gives each
column its place in the buffer, ``_columns_cy.fill`` appends rows, and ``_batch_cy.complete`` writes what is left when
all rows are there. Validity, offsets and values have Arrow's layout.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

PLAN_WIDTH = 10
"""Number of integers for each column."""
TIMES_MS = (-62_135_596_800_000, 253_402_300_799_999)
"""First and last time that a column can have, in milliseconds: the years 1 to 9999 (UTC), which Python and every table
can hold. A record may have any 64 bits, since a sender's clock may be wrong.
"""
ALIGNMENT = 64
"""Arrow recommends that buffers begin at multiples of 64 bytes."""


class PlanKind(IntEnum):
    """What ``fill`` does for a column."""

    INT32 = 0  # Copies the low 32 bits of an integer.
    INT64 = 1  # Copies an integer. With a factor, it is a time: one outside ``TIMES_MS`` becomes 0, and is noted.
    BYTES = 2  # Copies a byte string.
    TEXT = 3  # Copies a byte string and notes which bits occur in its bytes: ASCII needs no further check.
    JSON = 4  # Writes the properties as a JSON object.
    SAME = 5  # Writes nothing: finds out whether all rows have the same bytes.
    REPEATED = 6  # Writes nothing: ``complete`` writes the same text for all rows.


class PlanField(IntEnum):
    """The integers of a column, by index."""

    KIND = 0
    COLUMN = 1  # Column of the record table with the integer, or with the position of the bytes.
    DETAIL = 2  # INT64: the factor. BYTES, TEXT, JSON: column with the length. SAME, REPEATED: number of bytes.
    # ``lay_out`` sets the fields below.
    VALUES = 3  # Position in the buffer.
    OFFSETS = 4  # Position in the buffer of the int32 offsets of BYTES, TEXT, JSON and REPEATED.
    VALIDITY = 5  # Position in the buffer of the validity bitmap of BYTES and TEXT.
    ROOM = 6  # Number of bytes at VALUES.
    # ``fill`` sets the fields below, and begins them anew with row 0.
    DONE = 7  # Number of bytes written.
    MISSING = 8  # Number of rows without a value.
    BITS = 9  # TEXT: all bits set in any byte. SAME: 1 if bytes differ. INT64: 1 if a time was outside.


class MessagePlace(IntEnum):
    """What stands at each of the places of a message's metadata that change from batch to batch; all numbers are
    int64.
    """

    ROWS = 0  # Number of rows.
    BODY_SIZE = 1  # Size of the body in bytes.
    NODES = 2  # Number of rows and number of nulls of each column.
    BUFFERS = 3  # Position in the body and size of each buffer.


class Planned(NamedTuple):
    """A column to write; the fields are those of ``PlanField``."""

    kind: PlanKind
    column: int = 0
    detail: int = 1


def new_plan(columns: Sequence[Planned]) -> array[int]:
    """Returns the plan of ``columns``, which have no places yet."""
    plan = array("q")
    for column in columns:
        plan.extend((column.kind, column.column, column.detail))
        plan.extend((0,) * (PLAN_WIDTH - len(column)))
    return plan
