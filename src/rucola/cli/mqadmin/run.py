"""The command ``rucola mqadmin``: imports all groups of commands, runs one command and returns its exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

import typer

from rucola.cli.closed_output import OutputClosedError, drop_output
from rucola.cli.exit_codes import ExitCode
from rucola.cli.mqadmin import (
    acl,
    auth,
    broker,
    connection,
    consume,
    export,
    group,
    ha,
    message,
    namesrv,
    offset,
    produce,
    topic,
    trace,
)
from rucola.cli.mqadmin.command import app
from rucola.errors import ConfigError, RucolaError

FAMILIES = (acl, auth, broker, connection, consume, export, group, ha, message, namesrv, offset, produce, topic, trace)
"""Modules that register their commands when imported."""


def run(arguments: list[str]) -> int:
    """Run one ``rucola mqadmin`` command; returns the exit code.

    Raises:
        ConfigError: an option is invalid.
    """
    try:
        result = _command()(arguments, prog_name="rucola mqadmin", standalone_mode=False)
        sys.stdout.flush()
    except ConfigError:
        raise
    except RucolaError as error:
        print(f"rucola: {' '.join(str(error).split())}", file=sys.stderr)  # noqa: T201 - the one line
        return ExitCode.FAILED
    except (BrokenPipeError, OutputClosedError):
        drop_output()
        return ExitCode.CLEAN
    return result if isinstance(result, int) else ExitCode.CLEAN


@cache
def _command() -> Callable[..., object]:
    return typer.main.get_command(app)
