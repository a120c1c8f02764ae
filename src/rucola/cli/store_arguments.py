"""Arguments that the commands over store directories share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rucola.errors import ConfigError


def existing(directory: str) -> str:
    """The directory, which must exist.

    Raises:
        ConfigError: it does not.
    """
    if not Path(directory).expanduser().is_dir():
        raise ConfigError("DIR", directory, "an existing directory")
    return directory


Directory = Annotated[
    str, typer.Argument(metavar="DIR", help="Store directory.", show_default=False, callback=existing)
]
CommitLog = Annotated[
    str | None,
    typer.Option(
        "--commit-log", metavar="PATHS", help="storePathCommitLog: directories of the commit log, separated by commas."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Config = Annotated[str | None, typer.Option("-c", "--config", metavar="FILE", help="The broker's configuration file.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]
