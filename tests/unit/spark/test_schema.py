"""The columns of the Spark source, and how a query selects some of them."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rucola.arrow.schema import all_columns, chosen_columns
from rucola.errors import ConfigError
from rucola.spark.options import SourceOptions, parse_options
from rucola.spark.schema import check_schema, to_ddl

CONNECTOR_COLUMNS = [
    ("topic", "string"),
    ("flag", "int"),
    ("body", "binary"),
    ("properties", "string"),
    ("brokerName", "string"),
    ("queueId", "int"),
    ("queueOffset", "bigint"),
    ("bornTimestamp", "timestamp"),
    ("storeTimestamp", "timestamp"),
]


def options(**given: str) -> SourceOptions:
    return parse_options({"storePath": "d", "topic": "t", **given})


def test_the_former_connectors_columns_come_first() -> None:
    columns = [(column.name, column.ddl_type) for column in all_columns(options())]
    assert columns[:9] == CONNECTOR_COLUMNS
    assert [name for name, _ in columns[9:]] == [
        "msgId", "tags", "keys", "sysFlag", "reconsumeTimes", "bornHost", "storeHost", "bodyCrc", "physicalOffset",
        "storeSize", "preparedTransactionOffset",
    ]  # fmt: skip


def test_kafka_style() -> None:
    assert to_ddl(chosen_columns(options(schemaStyle="kafka"))) == (
        "`key` binary, `value` binary, `topic` string, `partition` int, `offset` bigint, `timestamp` timestamp, "
        "`timestampType` int"
    )
    names = [column.name for column in all_columns(options(schemaStyle="kafka", includeHeaders="true"))]
    assert names[-1] == "headers"


def test_properties_as_map() -> None:
    types = {column.name: column.ddl_type for column in all_columns(options(propertiesAsMap="true"))}
    assert types["properties"] == "map<string,string>"


def test_columns_option_keeps_its_order() -> None:
    assert to_ddl(chosen_columns(options(columns="queueOffset, BODY"))) == "`queueOffset` bigint, `body` binary"


@pytest.mark.parametrize("columns", ["nothing", "body,body", "key"])
def test_columns_option_refuses(columns: str) -> None:
    with pytest.raises(ConfigError) as caught:
        chosen_columns(options(columns=columns))
    assert caught.value.key == "columns"


def schema(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields])


def test_user_schema() -> None:
    wanted = schema(("queueOffset", LongType()), ("topic", StringType()), ("storeTimestamp", TimestampType()))
    assert check_schema(options(), wanted) == ("queueOffset", "topic", "storeTimestamp")
    mapped = schema(("properties", MapType(StringType(), StringType())))
    assert check_schema(options(propertiesAsMap="true"), mapped) == ("properties",)
    header = schema(("key", StringType()), ("value", BinaryType()))
    style = options(schemaStyle="kafka", includeHeaders="true")
    assert check_schema(style, schema(("headers", ArrayType(header)))) == ("headers",)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("queueOffset", IntegerType()), ("value", BinaryType()), ("properties", MapType(StringType(), StringType()))],
)
def test_user_schema_refused(name: str, kind: DataType) -> None:
    with pytest.raises(ConfigError) as caught:
        check_schema(options(), schema((name, kind)))
    assert name in caught.value.value


def test_names_of_a_user_schema_are_case_insensitive() -> None:
    assert check_schema(options(), schema(("BODY", BinaryType()), ("queueoffset", LongType()))) == (
        "BODY",
        "queueoffset",
    )


def test_not_null_over_what_may_be_null_is_refused() -> None:
    def not_null(name: str, kind: DataType) -> StructType:
        return StructType([StructField(name, kind, nullable=False)])

    for name in ("tags", "keys"):
        with pytest.raises(ConfigError, match=f"{name} NOT NULL"):
            check_schema(options(), not_null(name, StringType()))
    assert check_schema(options(), not_null("body", BinaryType())) == ("body",)
    with pytest.raises(ConfigError, match="body NOT NULL"):
        check_schema(options(failOnDataLoss="false"), not_null("body", BinaryType()))


def test_a_schema_beside_other_columns_is_refused() -> None:
    wanted = schema(("body", BinaryType()))
    assert check_schema(options(columns="BODY"), wanted) == ("body",)
    with pytest.raises(ConfigError, match="columns"):
        check_schema(options(columns="queueOffset"), wanted)
