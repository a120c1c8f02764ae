"""The columns of a table of messages: those of the source, day and life, and typed fields of the bodies.

A schema is kept in the JSON form that Spark and Delta share.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rucola.arrow.read_options import ReadOptions
from rucola.arrow.schema import LITE_COLUMNS, all_columns
from rucola.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

DAY = "storeDay"
"""The column by which tables are partitioned besides the topic: the day of the store time, UTC."""
_JSON_TYPES = {"string": "string", "bigint": "long"}
LIFE = "life"
"""The column with the number of the queue's life: 0, or more if the topic was deleted and created again."""


def source_columns(options: ReadOptions) -> pa.Schema:
    """The columns that a reader builds."""
    from rucola.arrow.columns import arrow_schema

    return arrow_schema(all_columns(options))


def table_schema(options: ReadOptions) -> dict[str, Any]:
    """The columns of a table without typed fields: those that a reader builds, and then ``DAY`` and ``LIFE``."""
    import pyarrow as pa

    return json_of(source_columns(options).append(pa.field(DAY, pa.date32())).append(pa.field(LIFE, pa.int32())))


def json_of(schema: pa.Schema) -> dict[str, Any]:
    """The JSON form of an Arrow schema."""
    from deltalake import Schema

    found: dict[str, Any] = json.loads(Schema.from_arrow(schema).to_json())
    return found


def arrow_of(schema: dict[str, Any]) -> pa.Schema:
    """The Arrow schema for a schema in JSON form; every column may be null.

    Raises:
        ConfigError: a table cannot have a column of this type.
    """
    import pyarrow as pa
    from deltalake import Schema
    from deltalake.exceptions import DeltaError

    try:
        fields = pa.schema(Schema.from_json(json.dumps(schema)).to_arrow())
    except (DeltaError, ValueError) as error:
        raise ConfigError("schema", str(error), "types that Delta tables have") from error
    return pa.schema([field.with_nullable(True) for field in fields])


def merged_schema(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any] | None:
    """The columns ``old`` of a table, extended by the columns ``new`` of further rows; None if ``old`` has them all.

    The result has every column of ``old`` and ``new``; a column that rows do not have is null in them.

    Raises:
        ConfigError: a column's type differs from its type in the table.
    """
    if old is None:
        return new
    known = {field["name"].lower(): field for field in old["fields"]}
    added = []
    for field in new["fields"]:
        before = known.get(field["name"].lower())
        if before is None:
            added.append(field)
        elif _plain(before["type"]) != _plain(field["type"]):
            raise ConfigError(
                "schema",
                f"{field['name']} {field['type']}",
                f"{before['type']}, the type of the column in the table; take another name, or another table",
            )
    return {"type": "struct", "fields": [*old["fields"], *added]} if added else None


def nullable(kind: Any) -> Any:
    """Fields or types in JSON form, of which everything may be null: rows of other topics lack these fields, and Delta
    would make each writer check the others.
    """
    if isinstance(kind, dict):
        return {name: True if name == "nullable" else nullable(value) for name, value in kind.items()}
    return [nullable(one) for one in kind] if isinstance(kind, list) else kind


def has_lite(schema: dict[str, Any]) -> bool:
    """Whether a table has the columns of lite topics; fields of bodies may have their names, but hardly both."""
    types = {field["name"]: _plain(field["type"]) for field in schema["fields"]}
    return all(types.get(column.name) == _JSON_TYPES[column.ddl_type] for column in LITE_COLUMNS)


def typed_names(schema: dict[str, Any], options: ReadOptions) -> list[str]:
    """The columns of a table that come from the bodies."""
    known = {column.name for column in all_columns(options)} | {DAY, LIFE, "record"}
    if has_lite(schema):
        known |= {column.name for column in LITE_COLUMNS}
    return [field["name"] for field in schema["fields"] if field["name"] not in known]


def _plain(kind: Any) -> Any:
    """A Spark type without nullability and metadata."""
    if isinstance(kind, dict):
        left_out = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {key: _plain(value) for key, value in kind.items() if key not in left_out}
    return [_plain(one) for one in kind] if isinstance(kind, list) else kind
