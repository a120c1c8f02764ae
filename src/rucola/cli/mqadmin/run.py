"""The command ``rucola mqadmin``: imports all groups of commands, runs one command and returns its exit code."""

from __future__ import annotations

from rucola.cli.exit_codes import ExitCode
from rucola.cli.lines import print_error
from rucola.cli.mqadmin import (
    acl,
    auth,
    broker,
    connection,
    consume,
    export,
    group,
    ha,
    lite,
    message,
    namesrv,
    offset,
    produce,
    topic,
    trace,
)
from rucola.cli.mqadmin.command import app
from rucola.cli.tool import run_app
from rucola.errors import ConfigError, RucolaError

FAMILIES = (
    *(acl, auth, broker, connection, consume, export, group),
    *(ha, lite, message, namesrv, offset, produce, topic, trace),
)
"""Modules that register their commands when imported."""


def run(arguments: list[str]) -> int:
    """Runs one ``rucola mqadmin`` command; returns the exit code.

    Raises:
        ConfigError: an option is invalid.
    """
    try:
        return run_app(app, arguments, interrupted=ExitCode.CLEAN)
    except ConfigError:
        raise
    except RucolaError as error:
        print_error(str(error))
        return ExitCode.FAILED
