"""JSON bodies in Spark: Python tasks check each body, and the JVM's ``from_json`` makes the columns of those that fit.

The check decides; ``from_json`` alone takes texts that are no JSON, and changes values without an error. It makes the
columns, because it knows all types of Spark and the session's time zone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rucola.arrow.json_shape import ANY, BOOLEAN, DOUBLE, STRING, Kind, Shape, TimeUnit, object_of
from rucola.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_PLAIN = {"string": STRING, "boolean": BOOLEAN, "double": DOUBLE, "float": Shape(Kind.REAL, "float", bits=32)}
_TIMES = {
    "date": Kind.DATE,
    "timestamp": Kind.TIMESTAMP,
    "timestamp_ntz": Kind.LOCAL_TIMESTAMP,
    "binary": Kind.BINARY,
}
RECORD = "_rucola_record"
"""The field into which ``from_json`` puts a body that it refuses."""
STRICT = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": RECORD,
    "allowNonNumericNumbers": "false",
    "allowSingleQuotes": "false",
}
"""Options of ``from_json``."""


def check_column(body: Column, schema: StructType, unit: TimeUnit | None) -> Column:
    """A struct with ``error`` and ``text`` for each body, as ``Checker.checked`` makes it.

    Raises:
        ConfigError: a field has no name, or two fields have the same.
    """
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.types import StringType, StructField, StructType

    returned: Any = StructType([StructField("error", StringType()), StructField("text", StringType())])
    function: Any = arrow_udf(_checking(shape_of(schema), unit), returned)
    column: Column = function(body)
    return column


def shape_of(kind: DataType) -> Shape:
    """The rules for values of a Spark type. A type without rules takes any value that ``from_json`` takes.

    Raises:
        ConfigError: a field has no name, or two fields have the same.
    """
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructType

    name = kind.simpleString()
    if isinstance(kind, StructType):
        names = kind.fieldNames()
        if "" in names or len({*names}) < len(names):
            raise ConfigError("schema", name, "a schema whose fields have names, each another one")
        return object_of({field.name: shape_of(field.dataType) for field in kind.fields})
    if isinstance(kind, ArrayType):
        return Shape(Kind.ARRAY, "an array", item=shape_of(kind.elementType))
    if isinstance(kind, MapType):
        return Shape(Kind.MAP, "a map", item=shape_of(kind.valueType))
    if isinstance(kind, DecimalType):
        return Shape(Kind.DECIMAL, name, precision=kind.precision, scale=kind.scale)
    if name in _BITS:
        return Shape(Kind.WHOLE, name, bits=_BITS[name])
    return Shape(_TIMES[name], name) if name in _TIMES else _PLAIN.get(name, ANY)


def _checking(shape: Shape, unit: TimeUnit | None) -> Any:
    import pyarrow as pa

    from rucola.arrow.json_columns import Checker

    checker = Checker(shape, unit)

    def check_bodies(bodies: pa.Array) -> pa.Array:
        return checker.checked(bodies)

    check_bodies.__annotations__ = {"bodies": pa.Array, "return": pa.Array}
    return check_bodies
