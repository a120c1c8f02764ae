"""The per-row work on flights, column by column with Arrow. Pure functions; a task calls them for its records.

Java would take 30 to 80 µs per row for the same work until it has compiled the code, after some 100,000 rows. These
functions take a few microseconds per row from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc

_NUMBERS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "flight", "air_time", "distance", "hour", "minute",
)  # fmt: skip
_TEXTS = ("carrier", "tailnum", "origin", "dest")
_TIME = pa.timestamp("us", "UTC")
BODY = pa.schema(
    [(name, pa.int32()) for name in _NUMBERS] + [(name, pa.string()) for name in _TEXTS] + [("time_hour", _TIME)]
)
"""Columns of ``flights.csv``, with their types in the JSON body."""
_VALUES = itemgetter(*BODY.names)
SUMS_SCHEMA = pa.schema(
    [("carrier", pa.string()), ("month", pa.int32()), ("airline", pa.string())]
    + [
        (name, pa.int64())
        for name in (
            "flights", "cancelled", "departed", "departure_delay_sum_min", "arrived", "arrival_delay_sum_min", "seats",
        )
    ]
)  # fmt: skip
"""The columns of the gold table for one batch of flights: counts, and sums in minutes. Counts and sums of several
batches can be added.
"""


class Decoded(NamedTuple):
    """The result of ``decode``. ``places`` holds, for each row of ``table``, the index of its body."""

    table: pa.Table
    places: list[int]


def decode(bodies: Sequence[bytes | None]) -> Decoded:
    """Decodes the bodies that are flights to columns of ``BODY``. Missing fields become null; other fields are
    ignored.
    """
    rows, places = [], []
    for place, body in enumerate(bodies):
        try:
            row = orjson.loads(body or b"")
        except orjson.JSONDecodeError:
            continue
        if isinstance(row, dict):
            rows.append(row)
            places.append(place)
    return _of_schema(rows, places)


def with_names(flights: pa.Table, airlines: pa.Table, planes: pa.Table) -> pa.Table:
    """Adds airline and plane; flights with an unknown airline or plane get nulls.

    Args:
        flights: rows with ``carrier`` and ``tailnum``.
        airlines: rows with ``carrier`` and ``airline``.
        planes: rows with ``tailnum`` and further columns.
    """
    for key, names in (("carrier", airlines), ("tailnum", planes)):
        found = pc.index_in(flights[key], value_set=names[key].combine_chunks())
        for name in names.column_names:
            if name != key:
                flights = flights.append_column(name, names[name].take(found))
    return flights


def sums(flights: pa.Table) -> pa.Table:
    """Counts and sums per carrier and month, with the columns of ``SUMS_SCHEMA``."""
    groups = flights.group_by(["carrier", "month"]).aggregate([
        ("airline", "max"),
        ([], "count_all"),
        ("dep_time", "count", pc.CountOptions(mode="only_null")),
        ("dep_delay", "count"),
        ("dep_delay", "sum"),
        ("arr_delay", "count"),
        ("arr_delay", "sum"),
        ("seats", "sum"),
    ])  # fmt: skip
    names = ("carrier", "month", "airline_max", "count_all", "dep_time_count", "dep_delay_count", "dep_delay_sum")
    found = [groups[name] for name in (*names, "arr_delay_count", "arr_delay_sum", "seats_sum")]
    columns = [column if at < 3 else pc.fill_null(column.cast(pa.int64()), 0) for at, column in enumerate(found)]
    return pa.Table.from_arrays(columns, schema=SUMS_SCHEMA)


def _of_schema(rows: list[dict[str, Any]], places: list[int]) -> Decoded:
    """The rows whose values have the types of ``BODY``; a faulty row is found by halving the rows."""
    try:
        return Decoded(_table(rows), places)
    except (pa.ArrowException, OverflowError):
        if len(rows) == 1:
            return Decoded(BODY.empty_table(), [])
    half = len(rows) // 2
    parts = _of_schema(rows[:half], places[:half]), _of_schema(rows[half:], places[half:])
    return Decoded(pa.concat_tables([part.table for part in parts]), [*parts[0].places, *parts[1].places])


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    columns: list[Sequence[Any]]
    try:
        columns = list(zip(*map(_VALUES, rows), strict=True))
    except KeyError:  # a row lacks one of the fields
        columns = [[row.get(field.name) for row in rows] for field in BODY]
    return pa.Table.from_arrays(list(map(_column, columns or [()] * len(BODY), BODY)), schema=BODY)


def _column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    if field.type != pa.int32():
        # A time must be a text; numbers would be read as microseconds.
        return pa.array(values, pa.string()).cast(field.type)
    # If a type were given, Arrow would drop the digits after the decimal point.
    found = pa.array(values)
    if not (pa.types.is_integer(found.type) or pa.types.is_null(found.type)):
        raise pa.ArrowInvalid(f"{field.name}: {found.type}")
    return found.cast(field.type)
