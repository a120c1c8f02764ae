"""Names the columns of the source in Spark's DDL, and checks the schema that a user gives. Spark prunes no columns for
Python sources, so users choose columns with option ``columns`` or ``.schema(...)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rucola.arrow.schema import BODIES, MAY_BE_ABSENT, Column, named_columns
from rucola.errors import ConfigError
from rucola.spark.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def to_ddl(columns: Iterable[Column]) -> str:
    """The columns in the form that ``DataSource.schema()`` returns."""
    return ", ".join(f"`{column.name}` {column.ddl_type}" for column in columns)


def check_schema(options: SourceOptions, schema: StructType) -> tuple[str, ...]:
    """Names of the columns to build for ``schema``, which comes from the user or from ``to_ddl``.

    Raises:
        ConfigError: a field is not a column of the source, has a wrong type, or is NOT NULL although the column may be
            null; or the list in option ``columns`` differs from the columns of ``schema``.
    """
    known = named_columns(options)
    for field in schema.fields:
        column = known.get(field.name.lower())
        if column is None:
            raise ConfigError("schema", field.name, "the columns " + ", ".join(c.name for c in known.values()))
        if field.dataType.simpleString() != column.ddl_type:
            raise ConfigError(
                "schema", f"{field.name} {field.dataType.simpleString()}", f"{column.name} {column.ddl_type}"
            )
        # A body is null if it cannot be decompressed and failOnDataLoss is off.
        nullable = column.name in MAY_BE_ABSENT or (column.name in BODIES and not options.fail_on_data_loss)
        if nullable and not field.nullable:
            raise ConfigError("schema", f"{field.name} NOT NULL", f"{column.name} {column.ddl_type} without NOT NULL")
    names = tuple(schema.fieldNames())
    if options.columns and [name.lower() for name in names] != [name.lower() for name in options.columns]:
        raise ConfigError(
            "columns",
            ", ".join(options.columns),
            "option columns or .schema(...), not both, because their lists of columns differ",
        )
    return names
