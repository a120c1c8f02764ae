"""Output of ``rucola mqadmin``: tables for people; with ``--json`` one object per line for scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime

from rich.table import Table
from rich.text import Text

from rucola.cli.fitted_table import print_fitted
from rucola.cli.lines import print_json_line
from rucola.cli.store_text import shown
from rucola.cli.terminal import Terminal
from rucola.common.json_library import orjson

JSON: ContextVar[bool] = ContextVar("json", default=False)
_PIPE_COLUMNS = 1000
_FIGURE = re.compile("[-+0-9.,:% ]*")
"""Matches a number, a time or an empty text."""


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints rows of values under column names."""
    if JSON.get():
        for row in rows:
            _json(dict(zip(columns, row, strict=True)))
        return
    shown = Table(box=None, pad_edge=False, header_style="bold")
    cells = [[_text(value) for value in row] for row in rows]
    for number, column in enumerate(columns):
        is_figures = all(_FIGURE.fullmatch(row[number]) for row in cells)
        shown.add_column(column, overflow="fold", no_wrap=is_figures)
    for row in cells:
        shown.add_row(*map(Text, row))
    print_fitted(_console(), shown)


def facts(values: Mapping[str, object]) -> None:
    """Prints names and values, one per line."""
    if JSON.get():
        _json(dict(values))
        return
    console = _console()
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        console.print(Text(f"{name:<{width}}  = {_text(value)}"))


def say(text: str, **values: object) -> None:
    """Prints a sentence for people, or ``values`` alone for scripts."""
    if JSON.get():
        _json(values)
    else:
        _console().print(Text(shown(text)))


def document(value: object) -> None:
    """Prints indented JSON, as RocketMQ's tool does for some responses."""
    _console().print(Text(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2).decode()))


def list_text(value: object) -> str:
    """A list in the format of RocketMQ's tool; ``null`` if the value is not a list."""
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else "null"


def time_text(wall_ms: int) -> str:
    """``yyyy-MM-dd HH:mm:ss,SSS`` in local time; ``-`` if there is no time."""
    if wall_ms <= 0:
        return "-"
    return datetime.fromtimestamp(wall_ms / 1000).strftime("%Y-%m-%d %H:%M:%S,") + f"{wall_ms % 1000:03d}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.2f}"
    return "" if value is None else shown(str(value))


def _json(value: Mapping[str, object]) -> None:
    print_json_line(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))


def _console() -> Terminal:
    return Terminal(pipe_columns=_PIPE_COLUMNS, soft_wrap=True)
