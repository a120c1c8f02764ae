"""The columns of the rows: names, types, and which of them a reader builds.

In style ``rocketmq``, the first nine columns have the same names and types as in RocketMQ's former Spark connector
(rocketmq-externals, ``rocketmq-spark``). Style ``kafka`` has the columns of Spark's Kafka source. Columns that are not
requested are not decoded. ``LITE_COLUMNS`` came later: readers have them only on request, so that tables of messages
keep their columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rucola.arrow.read_options import ReadOptions, SchemaStyle
from rucola.errors import ConfigError


@dataclass(frozen=True)
class Column:
    """One column: its name, and its Spark type as DDL."""

    name: str
    ddl_type: str


PROPERTIES = Column("properties", "string")
PROPERTIES_MAP = Column("properties", "map<string,string>")
RECORD = Column("record", "binary")
HEADERS = Column("headers", "array<struct<key:string,value:binary>>")
LITE_COLUMNS = (Column("liteTopic", "string"), Column("liteOffset", "bigint"))

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

MAY_BE_ABSENT = frozenset(("tags", "keys", "key", *(column.name for column in LITE_COLUMNS)))
BODIES = frozenset(("body", "value"))


def all_columns(options: ReadOptions) -> tuple[Column, ...]:
    """Every column that the options allow, in order."""
    if options.schema_style is SchemaStyle.KAFKA:
        return (*KAFKA_COLUMNS, HEADERS) if options.include_headers else KAFKA_COLUMNS
    columns = (*ROCKETMQ_COLUMNS, *LITE_COLUMNS) if options.include_lite else ROCKETMQ_COLUMNS
    if options.include_record:
        columns = (*columns, RECORD)
    if options.properties_as_map:
        return tuple(PROPERTIES_MAP if column is PROPERTIES else column for column in columns)
    return columns


def named_columns(options: ReadOptions) -> dict[str, Column]:
    """The columns that a query can name, by name in lower case: also those that it gets only on request."""
    columns = all_columns(replace(options, include_lite=True))
    return {column.name.lower(): column for column in columns}


def chosen_columns(options: ReadOptions) -> tuple[Column, ...]:
    """The columns of a query without a user schema: those listed in option ``columns``, in its order, or all columns.

    Raises:
        ConfigError: option ``columns`` names a column that does not exist, or names one twice.
    """
    if not options.columns:
        return all_columns(options)
    known = named_columns(options)
    chosen = []
    for name in options.columns:
        column = known.get(name.lower())
        if column is None or column in chosen:
            raise ConfigError("columns", name, "each at most once: " + ", ".join(c.name for c in known.values()))
        chosen.append(column)
    return tuple(chosen)
