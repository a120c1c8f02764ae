"""What a table demands of its writers.

Rucola writes the commits itself, so it refuses a table with demands that it does not meet: columns that others dropped,
other partitions, constraints, and features of Delta that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rucola.arrow.schema import ROCKETMQ_COLUMNS
from rucola.errors import ConfigError
from rucola.lake.columns import DAY
from rucola.lake.raw_rows import raw_schema
from rucola.lake.table_log import PARTITIONS, TableKind

WRITER_VERSION_MAX = 7
"""The version of Delta's protocol since which a table lists its features."""
MET = frozenset(
    (
        "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping",
        "identityColumns", "deletionVectors", "domainMetadata", "timestampNtz", "timestampNtz-preview",
    )
)  # fmt: skip
"""Features that a table may list. Those that make a demand only where they are used are looked for in its columns and
properties. Commits with whole files need nothing for ``changeDataFeed``, and no files are read that have
``deletionVectors``.
"""
APPEND_ONLY = "delta.appendOnly"
_PROPERTIES = {"delta.constraints.": "checkConstraints"}
_METADATA = {
    "delta.invariants": "invariants",
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
    "CURRENT_DEFAULT": "allowColumnDefaults",
}


def check_columns(table: str, kind: TableKind, partitions: Sequence[str], columns: Iterable[str]) -> None:
    """Checks that a table still has the partitions and the columns that Rucola made.

    Args:
        table: its path or URL, for the error.
        kind: what a row is.
        partitions: the columns by which it is partitioned.
        columns: all columns.

    Raises:
        ConfigError: another program has changed them.
    """
    if (wanted := PARTITIONS[kind]) != tuple(partitions):
        raise ConfigError(
            "table",
            table,
            f"a table partitioned by {', '.join(wanted)}; another program has partitioned it by "
            f"{', '.join(partitions) or 'nothing'}, so archive into another table",
        )
    needed = raw_schema().names if kind is TableKind.RAW else [*(one.name for one in ROCKETMQ_COLUMNS), DAY]
    there = set(columns)
    if missing := [name for name in needed if name not in there]:
        raise ConfigError(
            "table",
            table,
            f"a table with all columns that Rucola made; another program has removed {', '.join(missing)}, so archive "
            "into another table",
        )


def check_demands(
    table: str, protocol: Any, properties: Mapping[str, str], fields: Sequence[Mapping[str, Any]]
) -> None:
    """Checks that Rucola may write a Delta table.

    Args:
        table: its path or URL, for the error.
        protocol: deltalake's ``ProtocolVersions``.
        properties: its properties.
        fields: the columns, in the JSON form.

    Raises:
        ConfigError: the table uses a feature that Rucola does not honour.
    """
    found = {feature for start, feature in _PROPERTIES.items() if any(name.startswith(start) for name in properties)}
    if properties.get("delta.columnMapping.mode", "none").lower() != "none":
        found.add("columnMapping")
    found |= set(protocol.writer_features or ()) - MET
    found |= set(_used(fields))
    if protocol.min_writer_version > WRITER_VERSION_MAX:
        found.add(f"writer version {protocol.min_writer_version}")
    if found:
        raise ConfigError(
            "table",
            table,
            f"a table without {', '.join(sorted(found))}: Rucola would not honour it; remove it, or archive into "
            "another table",
        )


def check_not_null(table: str, names: Sequence[str]) -> None:
    """Raises ``ConfigError`` if there are columns that may not be null."""
    if names:
        raise ConfigError(
            "table",
            table,
            f"a table whose columns may be null; {', '.join(names)} may not, so drop NOT NULL, or archive into another "
            "table",
        )


def not_null(fields: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns in JSON form that may not be null, or have a field that may not."""
    return [one["name"] for one in fields if any(not inner.get("nullable", True) for inner in _inside(one))]


def _used(fields: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for one in fields:
        for inner in _inside(one):
            yield from (feature for name, feature in _METADATA.items() if name in inner.get("metadata", {}))


def _inside(field: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A field, and all fields in it."""
    waiting: list[Any] = [field]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            if "name" in one:
                yield one
            waiting += [one[name] for name in ("type", "elementType", "keyType", "valueType") if name in one]
            waiting += one.get("fields", ())
