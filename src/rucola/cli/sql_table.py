"""The result of a query as a table for people."""

from __future__ import annotations

import sys
from datetime import datetime

import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rucola.cli.closed_output import OutputClosedError
from rucola.cli.fitted_table import print_fitted
from rucola.cli.sql_output import plain, rows_of
from rucola.cli.store_text import body_text, shown

_PIPE_COLUMNS = 160


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise OutputClosedError


def print_table(result: pa.RecordBatchReader, most: int) -> None:
    """Prints the first ``most`` rows."""
    table = Table(show_edge=False)
    for field in result.schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        table.add_column(escape(shown(field.name)), justify="right" if number else "left", overflow="fold")
    more = False
    for number, row in enumerate(rows_of(result)):
        more = number >= most
        if more:
            break
        table.add_row(*(escape(_cell(value)) for value in row))
    console = _Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_COLUMNS)
    print_fitted(console, table)
    if more:
        _Console(stderr=True, highlight=False).print(f"the first {most} rows; --max N shows more")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return shown(body_text(value))
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return shown(str(plain(value)))
