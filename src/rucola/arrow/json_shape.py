"""What the fields of a JSON body may hold: the declared types, without Spark or DuckDB."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum


class Kind(Enum):
    """Groups of types that one rule checks."""

    ANY = "any"
    STRING = "string"
    BOOLEAN = "boolean"
    WHOLE = "whole"
    REAL = "real"
    DECIMAL = "decimal"
    DATE = "date"
    TIMESTAMP = "timestamp"
    LOCAL_TIMESTAMP = "timestamp_ntz"
    BINARY = "binary"
    ARRAY = "array"
    MAP = "map"
    OBJECT = "object"


class TimeUnit(StrEnum):
    """The unit of whole numbers in fields of type timestamp, counted from 1970 in UTC."""

    SECONDS = "seconds"
    MILLIS = "millis"
    MICROS = "micros"


@dataclass(frozen=True)
class Shape:
    """A declared type.

    Attributes:
        kind: decides the rule.
        name: the type as users write it; for errors.
        bits: size of a whole number or a floating-point number.
        precision: digits of a decimal.
        scale: how many of these digits are after the point.
        item: type of the elements of an array, or of the values of a map.
        fields: types of the declared fields of an object; others may hold anything.
    """

    kind: Kind
    name: str
    bits: int = 0
    precision: int = 0
    scale: int = 0
    item: Shape | None = None
    fields: Mapping[str, Shape] = field(default_factory=dict)

    def has(self, kind: Kind) -> bool:
        """Whether this type or a type in it is of ``kind``."""
        return self.kind is kind or any(one.has(kind) for one in (self.item, *self.fields.values()) if one is not None)


ANY = Shape(Kind.ANY, "any")
STRING = Shape(Kind.STRING, "string")
BOOLEAN = Shape(Kind.BOOLEAN, "boolean")
LONG = Shape(Kind.WHOLE, "bigint", bits=64)
DOUBLE = Shape(Kind.REAL, "double", bits=64)


def object_of(fields: Mapping[str, Shape]) -> Shape:
    """An object with these declared fields."""
    return Shape(Kind.OBJECT, "an object", fields=fields)
