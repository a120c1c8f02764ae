"""The plan by which a kernel writes the columns of a batch, side by side, into one buffer.

A plan is an ``array('q')`` with one row of ``PLAN_WIDTH`` integers for each column. ``_columns_cy.lay_out`` gives each
column its place in the buffer, and ``_columns_cy.fill`` appends rows. Values and offsets have Arrow's layout.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

PLAN_WIDTH = 9
"""Number of integers for each column."""


class PlanKind(IntEnum):
    """What ``fill`` does for a column."""

    INT32 = 0  # Copies the low 32 bits of an integer.
    INT64 = 1  # Copies an integer, multiplied by a factor.
    BYTES = 2  # Copies a byte string.
    TEXT = 3  # Copies a byte string and notes which bits occur in its bytes: ASCII needs no further check.
    JSON = 4  # Writes the properties as a JSON object.
    SAME = 5  # Writes nothing: finds out whether all rows have the same bytes.


class PlanField(IntEnum):
    """The integers of a column, by index."""

    KIND = 0
    COLUMN = 1  # Column of the record table with the integer, or with the position of the bytes.
    DETAIL = 2  # INT64: the factor. BYTES, TEXT, JSON: column with the length. SAME: number of bytes.
    # ``lay_out`` sets the fields below, ``fill`` changes them.
    VALUES = 3  # Position in the buffer.
    OFFSETS = 4  # Position in the buffer of the int32 offsets of BYTES, TEXT and JSON.
    ROOM = 5  # Number of bytes at VALUES.
    DONE = 6  # Number of bytes written.
    MISSING = 7  # Number of rows without a value.
    BITS = 8  # TEXT: all bits set in any byte. SAME: 1 if bytes differ.


class Planned(NamedTuple):
    """A column that ``fill`` writes; the fields are those of ``PlanField``."""

    kind: PlanKind
    column: int
    detail: int = 1


def new_plan(columns: Sequence[Planned]) -> array[int]:
    """Returns the plan of ``columns``, which have no places yet."""
    plan = array("q")
    for column in columns:
        plan.extend((column.kind, column.column, column.detail))
        plan.extend((0,) * (PLAN_WIDTH - len(column)))
    return plan
