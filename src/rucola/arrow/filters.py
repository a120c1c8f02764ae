"""Derives from a PyArrow filter which messages cannot pass it, so that these messages need not be read.

PyArrow reveals the parts of an ``Expression`` only in its pickle, which ``parse_filter`` parses. The pickle is a record
batch with the literals; the metadata of the batch's schema holds the calls in prefix order. An unknown part of a filter
excludes no message. PyArrow always applies the filter itself to the rows that are read, so an unknown part costs time
but never a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

OTHER = object()
"""Stands for a literal of any type except null, Boolean, integer, text, bytes and time in UTC."""
Bounds = tuple[Any, Any]
"""Least and greatest value of a column, both inclusive, in the form of a ``Literal`` value."""

_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}
_ENTRY = re.compile(r"^(call|end|field_ref|nested_field_ref|literal|options): '(.*)'$")
_FLIPPED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}
_COMPARISONS = {"equal", *_FLIPPED}


@dataclass(frozen=True)
class ColumnRef:
    """A column."""

    name: str


@dataclass(frozen=True)
class Literal:
    """A constant; a time is the number of nanoseconds since the epoch."""

    value: object


@dataclass(frozen=True)
class Call:
    """A function of other nodes; ``values`` is the value list of ``is_in``, or the pattern of a search in texts, and
    empty for other functions.
    """

    function: str
    arguments: tuple[Node, ...]
    values: tuple[object, ...] = ()


Node = ColumnRef | Literal | Call
_UNKNOWN = Call("unknown", ())


def parse_filter(expression: Any) -> Node:
    """Parses a ``pyarrow.compute.Expression`` into a tree; a part of unknown form becomes the function ``unknown``."""
    try:
        buffer = expression.__reduce__()[1][0]
        reader = pa.ipc.open_file(buffer)
        constants = reader.get_batch(0)
        # The text of the metadata is parsed, because a mapping would keep only one entry for each name.
        text = reader.schema.to_string(truncate_metadata=False, show_field_metadata=False)
        lines = text.partition("-- schema metadata --\n")[2].splitlines()
        entries = iter([(found[1], found[2]) for found in map(_ENTRY.match, lines) if found is not None])
        return _node(next(entries), entries, constants)
    except (pa.ArrowException, LookupError, StopIteration, TypeError, ValueError, AttributeError):
        return _UNKNOWN


def may_match(node: Node, bounds: Mapping[str, Bounds]) -> bool:
    """Whether a row whose columns lie within ``bounds`` can pass the filter; columns without bounds may have any value.

    Args:
        node: the filter.
        bounds: least and greatest value by column name; these columns have no nulls.
    """
    if isinstance(node, Literal):
        return node.value not in (False, None)
    if isinstance(node, ColumnRef):
        return True
    match node.function:
        case "and" | "and_kleene":
            return all(may_match(one, bounds) for one in node.arguments)
        case "or" | "or_kleene":
            return any(may_match(one, bounds) for one in node.arguments)
        case "if_else":
            return any(may_match(one, bounds) for one in node.arguments[1:])
        case "is_in" if isinstance(node.arguments[0], ColumnRef) and node.arguments[0].name in bounds:
            held = bounds[node.arguments[0].name]
            return any(_compares("equal", held, value) for value in node.values if value is not None)
        case function if function in _COMPARISONS:
            column, value, function = _sides(node)
            return column not in bounds or _compares(function, bounds[column], value)
    return True


def values_of(node: Node, column: str) -> frozenset[Any] | None:
    """The values of ``column`` that can pass the filter; None if they are not known or include null."""
    if isinstance(node, Literal):
        return frozenset() if node.value in (False, None) else None
    if isinstance(node, ColumnRef):
        return None
    match node.function:
        case "and" | "and_kleene":
            known = [found for one in node.arguments if (found := values_of(one, column)) is not None]
            return frozenset.intersection(*known) if known else None
        case "or" | "or_kleene":
            return _union([values_of(one, column) for one in node.arguments])
        case "if_else":
            return _union([values_of(one, column) for one in node.arguments[1:]])
        case "is_in" if node.arguments[0] == ColumnRef(column) and None not in node.values and OTHER not in node.values:
            return frozenset(node.values)
        case "equal":
            name, value, _ = _sides(node)
            if name != column or value is OTHER:
                return None
            return frozenset() if value is None else frozenset([value])
    return None


def columns_of(node: Node) -> frozenset[str] | None:
    """Names of the columns that the filter uses; None if they are not known."""
    if isinstance(node, ColumnRef):
        return frozenset([node.name])
    if isinstance(node, Literal):
        return frozenset()
    return None if node.function == "unknown" else _union([columns_of(one) for one in node.arguments])


def _union(parts: list[frozenset[Any] | None]) -> frozenset[Any] | None:
    known = [part for part in parts if part is not None]
    return frozenset().union(*known) if len(known) == len(parts) else None


def _sides(node: Call) -> tuple[str, object, str]:
    """Column, value and function of a comparison. If the column is on the right, the function is mirrored.

    The column is "" if the comparison is not between a column and a literal.
    """
    first, second = node.arguments
    if isinstance(first, ColumnRef) and isinstance(second, Literal):
        return first.name, second.value, node.function
    if isinstance(first, Literal) and isinstance(second, ColumnRef):
        return second.name, first.value, _FLIPPED.get(node.function, node.function)
    return "", OTHER, node.function


def _compares(function: str, bounds: Bounds, value: Any) -> bool:
    """Whether comparison ``function`` with ``value`` holds for some value within ``bounds``."""
    least, most = bounds
    if value is None:
        return False  # a comparison with null is null
    if type(value) is not type(least):
        return True
    match function:
        case "equal":
            return bool(least <= value <= most)
        case "less":
            return bool(least < value)
        case "less_equal":
            return bool(least <= value)
        case "greater":
            return bool(most > value)
    return bool(most >= value)


def _node(entry: tuple[str, str], entries: Iterator[tuple[str, str]], constants: pa.RecordBatch) -> Node:
    """Parses the node that begins with ``entry``; consumes the node's other entries."""
    kind, text = entry
    if kind == "literal":
        return Literal(_value(constants.column(int(text))[0]))
    if kind == "field_ref":
        return ColumnRef(text)
    if kind == "nested_field_ref":
        for _ in range(int(text)):
            next(entries)
        return _UNKNOWN
    arguments: list[Node] = []
    values: tuple[object, ...] = ()
    while (inner := next(entries))[0] != "end":
        if inner[0] == "options":
            values = _listed(constants.column(int(inner[1]))[0])
        else:
            arguments.append(_node(inner, entries, constants))
    if (text in _COMPARISONS and len(arguments) != 2) or (text == "is_in" and not values):
        return _UNKNOWN
    return Call(text, tuple(arguments), values)


def _listed(options: Any) -> tuple[object, ...]:
    """The value list of ``is_in``, or the pattern of a search that does not ignore case."""
    if not isinstance(options.type, pa.StructType):
        return ()
    if options.type.get_field_index("pattern") >= 0 and not _value(options["ignore_case"]):
        return (_value(options["pattern"]),)
    return tuple(_value(one) for one in options["value_set"]) if options.type.get_field_index("value_set") >= 0 else ()


def _value(scalar: Any) -> object:
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_boolean(kind):
        return bool(scalar.as_py())
    if pa.types.is_integer(kind):
        return int(scalar.as_py())
    if pa.types.is_timestamp(kind):
        return int(scalar.value) * _NANOSECONDS[kind.unit] if kind.tz is not None else OTHER
    if isinstance(value := scalar.as_py(), str | bytes):
        return value
    return OTHER
