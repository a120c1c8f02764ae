"""The result of a query: a table for people, CSV and JSON lines for scripts, Parquet for other engines.

A binary value is shown as text if it is UTF-8. Otherwise it is shortened in a table, and is base64 in CSV and JSON.
"""

from __future__ import annotations

import base64
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from io import TextIOWrapper
from typing import IO, Any, BinaryIO

import orjson
import pyarrow as pa

from rucola.errors import ConfigError, DiskError
from rucola.places.place import Place
from rucola.places.storage import open_place, scheme_of
from rucola.runtime.files import Files

_JSON_WHOLE_END = 1 << 63


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
    import pyarrow.parquet as pq

    with pq.ParquetWriter(stream, result.schema, compression="zstd") as writer:
        for batch in result:
            writer.write_batch(batch)


def _write_lines(result: pa.RecordBatchReader, form: str, output: IO[str]) -> None:
    names = result.schema.names
    if form == "json":
        for row in rows_of(result):
            line = orjson.dumps(dict(zip(names, map(plain, row), strict=True)), option=orjson.OPT_NON_STR_KEYS)
            output.write(line.decode() + "\n")
        return
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(names)
    for row in rows_of(result):
        writer.writerow([_csv_value(value) for value in row])


def rows_of(result: pa.RecordBatchReader) -> Iterator[Sequence[Any]]:
    """The values of each row."""
    for batch in result:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


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
