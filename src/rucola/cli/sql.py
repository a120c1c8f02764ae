"""``rucola sql``: queries over the topics of a store directory, or of brokers.

Exit codes: 0 the query ran, 1 brokers do not answer, 2 usage or a wrong query, 5 the store cannot be read, 6 the output
cannot be written.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rucola.cli import sql_output
from rucola.cli.closed_output import OutputClosedError, drop_output
from rucola.cli.exit_codes import ExitCode
from rucola.errors import ConfigError

app = typer.Typer(
    name="sql",
    help="Query topics with SQL.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_INTERRUPTED = 130


class Form(StrEnum):
    """Forms of the result."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


_BY_ENDING = {".csv": Form.CSV, ".json": Form.JSON, ".jsonl": Form.JSON, ".parquet": Form.PARQUET}


def run(arguments: list[str]) -> int:
    """Run ``rucola sql``; returns the exit code.

    Raises:
        RucolaError: the query failed.
    """
    try:
        typer.main.get_command(app)(arguments, prog_name="rucola sql", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except (BrokenPipeError, OutputClosedError):
        drop_output()
    return ExitCode.CLEAN


@app.command()
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One statement of DuckDB's SQL.", show_default=False)],
    store: Annotated[
        str | None, typer.Option("--store", metavar="DIR", help="Store directory to read in place.")
    ] = None,
    namesrv: Annotated[
        str | None, typer.Option("-n", "--namesrv", metavar="ADDRESSES", help="Name servers: read through brokers.")
    ] = None,
    form: Annotated[
        Form | None, typer.Option("--format", help="Form of the result. [default: by --output, or table]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json: one object per line.")] = False,
    target: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Write to this file; it must not exist.")
    ] = None,
    most: Annotated[int, typer.Option("--max", min=1, help="Rows of a table at most; other forms have all.")] = 100,
    no_index: Annotated[bool, typer.Option("--no-index", help="Find keys by a scan, not by the index.")] = False,
) -> None:
    """Query topics with SQL. Each topic is a view; so are messages, keys, queues and findings."""
    from rucola.sql import connect

    form = _form(form, json, target)
    if store is not None and not Path(store).expanduser().is_dir():
        raise ConfigError("--store", store, "an existing directory")
    if (store is None) is (namesrv is None):
        raise ConfigError("--store, -n", "both" if store else "neither", "exactly one of the two")
    with connect(store, name_server=namesrv or "", use_index=not no_index) as session:
        result = session.run(query)
        if target is not None:
            sql_output.write_file(result, Path(target).expanduser(), form)
        else:
            sql_output.write(result, form, most)


def _form(form: Form | None, json: bool, target: str | None) -> Form:
    if json and form not in (None, Form.JSON):
        raise ConfigError("--format", form or "", "json, which --json asks for")
    if json:
        return Form.JSON
    form = form or (_BY_ENDING.get(Path(target).suffix.lower()) if target is not None else Form.TABLE)
    if form is None or (target is not None and form is Form.TABLE):
        raise ConfigError("--output", target or "", "a name that ends in .csv, .json or .parquet, or --format")
    if form is Form.PARQUET and target is None:
        raise ConfigError("--format", "parquet", "with --output FILE only")
    return form
