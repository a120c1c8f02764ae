"""The table formats, and the log that belongs to each format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum

from rucola.errors import ConfigError
from rucola.lake.table_log import TableKind, TableLog
from rucola.places.place import Place
from rucola.places.storage import open_place
from rucola.runtime import extras

ODD = "%?#\\"


class TableFormat(StrEnum):
    """The format of the log that lists a table's files."""

    DELTA = "delta"
    ICEBERG = "iceberg"


_LOGS = {"_delta_log": TableFormat.DELTA, "metadata": TableFormat.ICEBERG}
"""Directories with the logs of tables."""


def open_table(
    table: str | os.PathLike[str],
    format: str = TableFormat.DELTA,
    kind: TableKind | None = TableKind.MESSAGES,
    catalog: str = "",
    identifier: str = "",
    storage_options: Mapping[str, str] | None = None,
) -> TableLog:
    """Opens the log of a table; the table need not exist yet.

    Args:
        table: directory of the table, or its URL.
        format: one of ``TableFormat``.
        kind: what a row is; None accepts an existing table of any kind.
        catalog: for Iceberg: name of a catalog in PyIceberg's configuration; empty for a SQLite file in the table.
        identifier: for Iceberg: namespace and name of the table in the catalog; empty for ``rucola.messages``.
        storage_options: how an object store is reached; see ``rucola.places.storage_options.OPTIONS``.

    Raises:
        ConfigError: the format is unknown, or arguments exclude each other.
        MissingExtraError: the format needs a package that is not installed.
    """
    try:
        chosen = TableFormat(format.lower())
    except ValueError as error:
        raise ConfigError("format", format, " or ".join(TableFormat)) from error
    extras.require(extras.LAKE, "a table")
    place = open_place(table, storage_options)
    if any(character in ODD or character < " " for character in place.root):
        # deltalake reads a name as a URL: another directory would get the log.
        raise ConfigError("table", place.root, "a name without %, ?, #, backslashes and control characters")
    place.check()
    found = found_format(place)
    if found not in (None, chosen):
        raise ConfigError("format", chosen, f"{found}, the format of the table at {place.root}")
    if chosen is TableFormat.DELTA:
        if catalog or identifier:
            raise ConfigError("catalog, identifier", "given", "no value for a Delta table, which has no catalog")
        from rucola.lake.delta_log import DeltaLog

        return DeltaLog(place, kind)
    extras.require(extras.ICEBERG, "an Iceberg table")
    from rucola.lake.iceberg_catalog import IDENTIFIER, IcebergCatalog
    from rucola.lake.iceberg_log import IcebergLog

    return IcebergLog(place, IcebergCatalog(place, catalog, identifier or IDENTIFIER), kind)


def found_format(place: Place) -> TableFormat | None:
    """The format of the table at a place; None if there is none.

    Raises:
        ConfigError: the table is in a format that earlier versions of Rucola had.
    """
    found = [format for directory, format in _LOGS.items() if place.has(directory)]
    if len(found) > 1:
        # An earlier version had no claim.
        raise ConfigError(
            "table",
            place.root,
            f"one table; there are two, {' and '.join(found)}, so move the log of one of them ({', '.join(_LOGS)})",
        )
    if found:
        return found[0]
    if place.is_local and place.has("_log"):
        raise ConfigError(
            "table",
            place.root,
            "a table of this version; an earlier version of Rucola made this one, so archive into another table",
        )
    return None
