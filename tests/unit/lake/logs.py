"""Logs of tables in a directory."""

from __future__ import annotations

from pathlib import Path

from rucola.lake.delta_log import DeltaLog
from rucola.lake.table_log import TableKind
from rucola.places.local_place import LocalPlace
from rucola.runtime.clock import Clock
from rucola.runtime.files import Files

SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in {"topic": "string", "storeDay": "date"}.items()
    ],
}
"""The columns of a table that gets no rows."""


def delta_log(
    table: Path | str,
    kind: TableKind | None = TableKind.MESSAGES,
    files: Files | None = None,
    clock: Clock | None = None,
) -> DeltaLog:
    """The log of a Delta table."""
    return DeltaLog(LocalPlace(table, files), kind, clock)
