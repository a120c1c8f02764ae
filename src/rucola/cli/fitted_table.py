"""Prints tables on terminals that are too narrow for them: texts are folded; numbers and times are not."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table

_FOLDED_COLUMNS = 12
"""Smallest width, in characters, to which a column of texts is folded."""
_UNLIMITED = 1_000_000
_PADDING = 3
"""Largest number of characters between two columns: two spaces and a vertical line."""


def print_fitted(console: Console, table: Table) -> None:
    """Prints ``table``. Right-aligned columns and columns with ``no_wrap`` keep their width. If the table is too
    wide even after folding, the terminal wraps the table's lines.
    """
    for column in table.columns:
        column.no_wrap = column.no_wrap or column.justify == "right"
    width = console.width
    console.width = max(width, sum(_needed(console, column) + _PADDING for column in table.columns))
    console.print(table)
    console.width = width


def _needed(console: Console, column: Column) -> int:
    widest = max(_width(console, cell) for cell in (column.header, *column.cells))
    return widest if column.no_wrap else min(widest, _FOLDED_COLUMNS)


def _width(console: Console, cell: RenderableType) -> int:
    return Measurement.get(console, console.options.update(max_width=_UNLIMITED), cell).maximum
