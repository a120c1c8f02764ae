"""The columns of the source, and how a user narrows them.

Spark prunes no columns for Python sources, so narrowing is by option ``columns`` or by ``.schema(...)``: what is not
asked for is neither decoded nor sent to the JVM. The first nine columns are those of the former RocketMQ connector,
same names and types; ``schemaStyle=kafka`` gives the columns of Spark's Kafka source instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rucola.errors import ConfigError
from rucola.spark.options import SchemaStyle, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Column:
    """One column: its name and Spark type as DDL."""

    name: str
    ddl_type: str


PROPERTIES = Column("properties", "string")
PROPERTIES_MAP = Column("properties", "map<string,string>")
HEADERS = Column("headers", "array<struct<key:string,value:binary>>")

ROCKETMQ_COLUMNS: tuple[Column, ...] = (
    Column("topic", "string"),
    Column("flag", "int"),
    Column("body", "binary"),
    PROPERTIES,
    Column("brokerName", "string"),
    Column("queueId", "int"),
    Column("queueOffset", "bigint"),
    Column("bornTimestamp", "timestamp"),
    Column("storeTimestamp", "timestamp"),
    Column("msgId", "string"),
    Column("tags", "string"),
    Column("keys", "string"),
    Column("sysFlag", "int"),
    Column("reconsumeTimes", "int"),
    Column("bornHost", "string"),
    Column("storeHost", "string"),
    Column("bodyCrc", "int"),
    Column("physicalOffset", "bigint"),
    Column("storeSize", "int"),
    Column("preparedTransactionOffset", "bigint"),
)
KAFKA_COLUMNS: tuple[Column, ...] = (
    Column("key", "binary"),
    Column("value", "binary"),
    Column("topic", "string"),
    Column("partition", "int"),
    Column("offset", "bigint"),
    Column("timestamp", "timestamp"),
    Column("timestampType", "int"),
)

MAY_BE_ABSENT = frozenset(("tags", "keys", "key"))
BODIES = frozenset(("body", "value"))


def all_columns(options: SourceOptions) -> tuple[Column, ...]:
    """Every column the options allow, in order."""
    if options.schema_style is SchemaStyle.KAFKA:
        return (*KAFKA_COLUMNS, HEADERS) if options.include_headers else KAFKA_COLUMNS
    if options.properties_as_map:
        return tuple(PROPERTIES_MAP if column is PROPERTIES else column for column in ROCKETMQ_COLUMNS)
    return ROCKETMQ_COLUMNS


def chosen_columns(options: SourceOptions) -> tuple[Column, ...]:
    """The columns of a query without a user schema: those of option ``columns`` in its order, or all.

    Raises:
        ConfigError: ``columns`` names one that does not exist, or one twice.
    """
    known = {column.name.lower(): column for column in all_columns(options)}
    if not options.columns:
        return tuple(known.values())
    chosen = []
    for name in options.columns:
        column = known.get(name.lower())
        if column is None or column in chosen:
            raise ConfigError("columns", name, "each at most once: " + ", ".join(c.name for c in known.values()))
        chosen.append(column)
    return tuple(chosen)


def to_ddl(columns: Iterable[Column]) -> str:
    """The columns as Spark reads them from ``DataSource.schema()``."""
    return ", ".join(f"`{column.name}` {column.ddl_type}" for column in columns)


def check_schema(options: SourceOptions, schema: StructType) -> tuple[str, ...]:
    """Names of the columns to build for ``schema``, which the user gave or which came from ``to_ddl``.

    Raises:
        ConfigError: a field is not a column of the source, has another type or cannot be NOT NULL, or option
            ``columns`` says something else.
    """
    known = {column.name.lower(): column for column in all_columns(options)}
    for field in schema.fields:
        column = known.get(field.name.lower())
        if column is None:
            raise ConfigError("schema", field.name, "the columns " + ", ".join(c.name for c in known.values()))
        if field.dataType.simpleString() != column.ddl_type:
            raise ConfigError(
                "schema", f"{field.name} {field.dataType.simpleString()}", f"{column.name} {column.ddl_type}"
            )
        # A body is null when it cannot be decompressed and failOnDataLoss is off.
        nullable = column.name in MAY_BE_ABSENT or (column.name in BODIES and not options.fail_on_data_loss)
        if nullable and not field.nullable:
            raise ConfigError("schema", f"{field.name} NOT NULL", f"{column.name} {column.ddl_type}: it may be null")
    names = tuple(schema.fieldNames())
    if options.columns and [name.lower() for name in names] != [name.lower() for name in options.columns]:
        raise ConfigError("columns", ", ".join(options.columns), "either columns or .schema(...), which names others")
    return names
