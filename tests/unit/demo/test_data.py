"""Rows of the packaged CSV files as messages."""

from __future__ import annotations

import orjson
import pytest
from demo.flights.data import ROWS_ALL, data_directory, flight_id, flight_rows, message_of

FIRST_ROW = {
    "year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2, "arr_time": 830,
    "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR",
    "dest": "IAH", "air_time": 227, "distance": 1400, "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z",
}  # fmt: skip


def test_first_message() -> None:
    message = message_of(next(flight_rows()))
    assert message.key == "20130101-0515-UA1545-EWR"
    assert message.tag == "UA"
    assert message.properties == {"origin": "EWR", "dest": "IAH"}
    assert orjson.loads(message.body) == FIRST_ROW


def test_missing_values_are_null() -> None:
    cancelled = next(row for row in flight_rows() if row["dep_time"] == "NA")
    body = orjson.loads(message_of(cancelled).body)
    assert [body[name] for name in ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")] == [None] * 5
    assert body["sched_dep_time"] == int(cancelled["sched_dep_time"])


def test_flight_ids_name_one_row_each() -> None:
    ids = [flight_id(row) for row in flight_rows()]
    assert len(ids) == ROWS_ALL
    assert len(set(ids)) == ROWS_ALL
    assert not any(" " in name for name in ids), "a space separates keys"


@pytest.mark.parametrize(("rows_max", "parts"), [(1000, 1), (1000, 2), (1001, 2), (7, 3), (1, 2)])
def test_parts_together_are_all_rows(rows_max: int, parts: int) -> None:
    whole = [flight_id(row) for row in flight_rows(rows_max)]
    shares = [[flight_id(row) for row in flight_rows(rows_max, part, parts)] for part in range(parts)]
    assert len(whole) == rows_max
    assert sorted(name for share in shares for name in share) == sorted(whole)


def test_directory_holds_the_three_tables() -> None:
    names = {path.name for path in data_directory().iterdir()}
    assert {"flights.csv.zip", "airlines.csv", "planes.csv"} <= names
