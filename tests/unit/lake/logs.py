"""Logs of tables in a directory."""

from __future__ import annotations

from pathlib import Path

from rucola.arrow.topic_dataset import topic_options
from rucola.lake.columns import table_schema
from rucola.lake.delta_log import DeltaLog
from rucola.lake.table_log import TableKind
from rucola.places.local_place import LocalPlace
from rucola.runtime.clock import Clock
from rucola.runtime.files import Files

SCHEMA = table_schema(topic_options("/no/store", "t", ""))
"""The columns of a table that gets no rows."""


def delta_log(
    table: Path | str,
    kind: TableKind | None = TableKind.MESSAGES,
    files: Files | None = None,
    clock: Clock | None = None,
) -> DeltaLog:
    """The log of a Delta table."""
    return DeltaLog(LocalPlace(table, files), kind, clock)
