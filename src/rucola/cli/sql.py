"""``rucola sql``: queries over the topics of a store directory, or of brokers.

Exit codes: 0 the query ran, 1 brokers do not answer, 2 usage or a wrong query, 5 the store cannot be read, 6 the output
cannot be written.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

from rucola.cli import sql_output
from rucola.cli.closed_output import OutputClosedError, drop_output
from rucola.cli.exit_codes import ExitCode
from rucola.errors import ConfigError
from rucola.runtime.files import Files

_BY_ENDING = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def run(options: argparse.Namespace) -> int:
    """Runs ``rucola sql``; returns the exit code.

    Raises:
        RucolaError: the query failed.
    """
    try:
        _query(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except (BrokenPipeError, OutputClosedError):
        drop_output()
    finally:
        gc.unfreeze()
    return ExitCode.CLEAN


def _query(options: argparse.Namespace) -> None:
    from rucola.sql import connect

    store, namesrv = options.store, options.namesrv
    form = _form(options.format, options.json, options.output)
    target = None if options.output is None else sql_output.new_output(options.output)
    if store is not None and not Files().is_directory(store):
        raise ConfigError("--store", store, "an existing directory")
    if (store is None) is (namesrv is None):
        raise ConfigError("--store, -n", "both" if store else "neither", "exactly one of --store and -n")
    with connect(store, name_server=namesrv or "", use_index=not options.no_index) as session:
        result = session.run(options.query)
        gc.freeze()  # The imported modules are never garbage, so the collector skips them.
        gc.enable()
        if target is not None:
            sql_output.write_file(result, *target, form)
        else:
            sql_output.write(result, form, options.max)


def _form(form: str | None, json: bool, target: str | None) -> str:
    if json and form not in (None, "json"):
        raise ConfigError("--format", form or "", "json, because the option --json is set")
    if json:
        return "json"
    form = form or (_BY_ENDING.get(Path(target).suffix.lower()) if target is not None else "table")
    if form is None or (target is not None and form == "table"):
        raise ConfigError("--output", target or "", "a file in csv, json or parquet (by --format, or by its ending)")
    if form == "parquet" and target is None:
        raise ConfigError("--format", "parquet", "table, csv or json; parquet needs --output FILE")
    return form
