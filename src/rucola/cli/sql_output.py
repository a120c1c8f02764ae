"""The result of a query: a table for people, CSV and JSON lines for scripts, Parquet for other engines.

A binary value is shown as text if it is UTF-8. Otherwise it is shortened in a table, and is base64 in CSV and JSON.
"""

from __future__ import annotations

import csv
import sys
from io import TextIOWrapper
from typing import IO, BinaryIO

import pyarrow as pa

from rucola.cli.sql_values import plain, rows_of
from rucola.common.json_library import orjson
from rucola.errors import ConfigError, DiskError
from rucola.places.place import Place
from rucola.places.storage import open_place, scheme_of
from rucola.runtime.files import Files


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
        write_lines(result, form, sys.stdout)


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
                write_parquet(result, new.stream)
            else:
                output = TextIOWrapper(new.stream, encoding="utf-8", newline="", write_through=True)
                write_lines(result, form, output)
                output.detach()
        except BaseException:
            new.abandon()
            raise
        new.complete()
    except OSError as error:
        raise DiskError(f"{place.root}/{name}", "write", error.strerror or place.told(error)) from error


def write_parquet(result: pa.RecordBatchReader, stream: BinaryIO) -> None:
    """Writes a Parquet file.

    Raises:
        ConfigError: Parquet has no type for a column.
    """
    import pyarrow.parquet as pq

    schema = pa.schema([field.with_name(name) for field, name in zip(result.schema, column_names(result), strict=True)])
    try:
        writer = pq.ParquetWriter(stream, schema, compression="zstd")
    except pa.ArrowNotImplementedError as error:
        raise ConfigError("--format", "parquet", f"csv or json for this result ({error})") from error
    with writer:
        for batch in result:
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))


def column_names(result: pa.RecordBatchReader) -> list[str]:
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


def write_lines(result: pa.RecordBatchReader, form: str, output: IO[str]) -> None:
    """Writes the rows as ``csv`` or ``json``."""
    if form == "json":
        names = column_names(result)
        for row in rows_of(result):
            line = orjson.dumps(dict(zip(names, map(plain, row), strict=True)), option=orjson.OPT_NON_STR_KEYS)
            output.write(line.decode() + "\n")
        return
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(result.schema.names)
    for row in rows_of(result):
        writer.writerow([_csv_value(value) for value in row])


def _csv_value(value: object) -> object:
    made = plain(value)
    return orjson.dumps(made, option=orjson.OPT_NON_STR_KEYS).decode() if isinstance(made, dict | list) else made
