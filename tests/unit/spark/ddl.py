"""Makes schemas without a Spark session, which Spark's own DDL parser in the JVM would need."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "array<string>": ArrayType(StringType()),
    "map<string;string>": MapType(StringType(), StringType()),
}


def schema_of(ddl: str) -> StructType:
    """Returns the schema of ``name type, name type``."""
    schema = StructType()
    for column in ddl.replace("string,string>", "string;string>").split(", "):
        name, kind = column.split()
        schema.add(name, _TYPES[kind])
    return schema
