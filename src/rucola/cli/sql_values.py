"""The values of a query's result, as types that texts can be made of."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

_JSON_WHOLE_END = 1 << 63
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH = datetime(1970, 1, 1)
_CYCLE_DAYS = 146_097
"""Days of 400 years, after which the calendar repeats."""


def rows_of(result: pa.RecordBatchReader) -> Iterator[Sequence[Any]]:
    """The values of each row."""
    for batch in result:
        yield from zip(*map(_values, batch.columns), strict=True)


def _values(column: pa.Array) -> list[Any]:
    """The values of a column; dates and timestamps of years that Python does not have are texts."""
    try:
        values: list[Any] = column.to_pylist()
    except OverflowError:
        values = [_value(scalar) for scalar in column]
    return values


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except OverflowError:
        if isinstance(scalar, pa.MapScalar):
            return [tuple(map(_value, entry.values())) for entry in scalar.values]
        if isinstance(scalar, pa.ListScalar | pa.FixedSizeListScalar):
            return [_value(one) for one in scalar.values]
        if isinstance(scalar, pa.StructScalar):
            return {name: _value(one) for name, one in scalar.items()}
        return _time_text(scalar.type, scalar.value)


def _time_text(kind: pa.DataType, number: int) -> str:
    """A date or timestamp of any year in ISO 8601. PyArrow's own texts are wrong from year 32768 on."""
    if pa.types.is_date32(kind):
        cycle, days = divmod(number, _CYCLE_DAYS)
        moment, clock = _EPOCH + timedelta(days), ""
    else:
        cycle, units = divmod(number, _CYCLE_DAYS * 86_400 * _PER_SECOND[kind.unit])
        seconds, part = divmod(units, _PER_SECOND[kind.unit])
        moment = _EPOCH + timedelta(seconds=seconds, microseconds=part * 1_000_000 // _PER_SECOND[kind.unit])
        clock = "T" + moment.time().isoformat() + ("+00:00" if kind.tz else "")
    return f"{moment.year + 400 * cycle:04}{moment:-%m-%d}{clock}"


def plain(value: Any) -> object:
    """The value as a type that JSON has."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, Decimal):  # DuckDB's sums of whole numbers also have this type.
        whole = value == value.to_integral_value() and abs(value) < _JSON_WHOLE_END
        return int(value) if whole else str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)
