"""The table formats, and the log that belongs to each format."""

from __future__ import annotations

import os
from enum import StrEnum

from rucola.errors import ConfigError
from rucola.runtime import extras
from rucola.spark.archive.manifest_log import ManifestLog
from rucola.spark.archive.table_files import check_table, table_root
from rucola.spark.archive.table_log import TableLog


class TableFormat(StrEnum):
    """The format of the log that lists a table's files."""

    PARQUET = "parquet"
    """Plain Parquet with a log of its own."""
    DELTA = "delta"
    ICEBERG = "iceberg"


def open_table(table: str | os.PathLike[str], format: str = TableFormat.PARQUET) -> TableLog:
    """Opens the log of a table of messages; the table need not exist yet.

    Raises:
        ConfigError: the format is unknown.
        MissingExtraError: the format needs a package that is not installed.
    """
    try:
        kind = TableFormat(format.lower())
    except ValueError as error:
        raise ConfigError("format", format, " or ".join(TableFormat)) from error
    if kind is not TableFormat.PARQUET:
        check_table(table_root(table))
    if kind is TableFormat.DELTA:
        extras.require(extras.LAKE, "a Delta table")
        from rucola.spark.archive.delta_log import DeltaLog

        return DeltaLog(os.fspath(table))
    if kind is TableFormat.ICEBERG:
        extras.require(extras.ICEBERG, "an Iceberg table")
        from rucola.spark.archive.iceberg_log import IcebergLog

        return IcebergLog(os.fspath(table))
    return ManifestLog(os.fspath(table))
