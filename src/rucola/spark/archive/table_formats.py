"""The formats of tables, and which log belongs to each."""

from __future__ import annotations

import os
from enum import StrEnum

from rucola.errors import ConfigError
from rucola.spark.archive.manifest_log import ManifestLog
from rucola.spark.archive.table_log import TableLog


class TableFormat(StrEnum):
    """How a table says which files it has."""

    PARQUET = "parquet"
    """Plain Parquet with a log of its own."""


def open_table(table: str | os.PathLike[str], format: str = TableFormat.PARQUET) -> TableLog:
    """The log of a table of messages, which need not exist yet.

    Raises:
        ConfigError: the format is unknown.
    """
    try:
        TableFormat(format.lower())
    except ValueError as error:
        raise ConfigError("format", format, " or ".join(TableFormat)) from error
    return ManifestLog(os.fspath(table))
