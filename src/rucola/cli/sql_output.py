"""The result of a query: a table for people, CSV and JSON lines for scripts, Parquet for other engines.

A binary value is shown as text if it is UTF-8. Otherwise it is shortened in a table, and is base64 in CSV and JSON.
"""

from __future__ import annotations

import base64
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from io import TextIOWrapper
from typing import IO, Any, BinaryIO

import pyarrow as pa

from rucola.common.json_library import orjson
from rucola.errors import ConfigError, DiskError
from rucola.places.place import Place
from rucola.places.storage import open_place, scheme_of
from rucola.runtime.files import Files

_JSON_WHOLE_END = 1 << 63
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH = datetime(1970, 1, 1)
_CYCLE_DAYS = 146_097
"""Days of 400 years, after which the calendar repeats."""


def write(result: pa.RecordBatchReader, form: str, most: int) -> None:
    """Prints the result.

    Args:
        result: the rows.
        form: ``table``, ``csv`` or ``json``.
        most: the largest number of rows in a table; the other forms have all rows.
    """
    if form == "table":
        from rucola.cli.sql_table import print_table  # importing rich takes as long as a query for one key

        print_table(result, most)
    else:
        _write_lines(result, form, sys.stdout)


def new_output(output: str) -> tuple[Place, str]:
    """The place and name of a new file.

    Args:
        output: path, or URL in an object store.

    Raises:
        ConfigError: the file exists, or ``output`` is another kind of URL.
    """
    path = output if scheme_of("--output", output) else Files().expand(output)
    directory, _, name = path.rpartition("/")
    place = open_place(directory or "/", name="--output")
    if place.is_local and not Files().is_directory(place.root):
        raise ConfigError("--output", output, "a file in a directory that exists")
    if not name or place.exists(name):
        raise ConfigError("--output", output, "a file that does not exist")
    return place, name


def write_file(result: pa.RecordBatchReader, place: Place, name: str, form: str) -> None:
    """Writes the result to a new file, which gets its name when it is complete.

    Raises:
        DiskError: the file cannot be written.
    """
    try:
        new = place.new_file(name)
        try:
            if form == "parquet":
                _write_parquet(result, new.stream)
            else:
                output = TextIOWrapper(new.stream, encoding="utf-8", newline="", write_through=True)
                _write_lines(result, form, output)
                output.detach()
        except BaseException:
            new.abandon()
            raise
        new.complete()
    except OSError as error:
        raise DiskError(f"{place.root}/{name}", "write", error.strerror or place.told(error)) from error


def _write_parquet(result: pa.RecordBatchReader, stream: BinaryIO) -> None:
    """Raises ConfigError if Parquet has no type for a column."""
    import pyarrow.parquet as pq

    schema = pa.schema([field.with_name(name) for field, name in zip(result.schema, _names(result), strict=True)])
    try:
        writer = pq.ParquetWriter(stream, schema, compression="zstd")
    except pa.ArrowNotImplementedError as error:
        raise ConfigError("--format", "parquet", f"csv or json for this result ({error})") from error
    with writer:
        for batch in result:
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))


def _names(result: pa.RecordBatchReader) -> list[str]:
    """The names of the columns. If a name occurs again, it gets a number: JSON would lose the first value, and other
    engines refuse a file with such columns.
    """
    names: list[str] = []
    free = {*result.schema.names}
    for name in result.schema.names:
        shown, number = name, 0
        while shown in names or (number and shown in free):
            number += 1
            shown = f"{name}_{number}"
        names.append(shown)
    return names


def _write_lines(result: pa.RecordBatchReader, form: str, output: IO[str]) -> None:
    if form == "json":
        names = _names(result)
        for row in rows_of(result):
            line = orjson.dumps(dict(zip(names, map(plain, row), strict=True)), option=orjson.OPT_NON_STR_KEYS)
            output.write(line.decode() + "\n")
        return
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(result.schema.names)
    for row in rows_of(result):
        writer.writerow([_csv_value(value) for value in row])


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


def _csv_value(value: object) -> object:
    made = plain(value)
    return orjson.dumps(made, option=orjson.OPT_NON_STR_KEYS).decode() if isinstance(made, dict | list) else made


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
