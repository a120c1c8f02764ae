"""The result of a query as a table for people."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
from rich.markup import escape
from rich.table import Table

from rucola.cli.fitted_table import print_fitted
from rucola.cli.sql_values import plain, rows_of
from rucola.cli.store_text import body_text, shown
from rucola.cli.terminal import Terminal


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
    console = Terminal()
    print_fitted(console, table)
    if more:
        Terminal(error=True).print(f"the first {most} rows; --max N shows more")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return shown(body_text(value))
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return shown(str(plain(value)))
