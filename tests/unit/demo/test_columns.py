"""Flights as columns: what is no flight, names, sums, and each flight once in silver."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from demo.flights import columns, silver
from demo.flights.data import message_of
from demo.flights.expected import expected_figures
from demo.flights.figures import SUMS, from_sums
from demo.flights.silver import SilverPart
from demo.flights.tables import Tables
from tests.unit.demo.samples import sample_rows, write_sample_csv

MESSAGES = [message_of(row) for row in sample_rows()]
GOOD = MESSAGES[0].body
BORN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    write_sample_csv(tmp_path)
    return Tables(tmp_path, tmp_path)


def part(tables: Tables, batch_id: int) -> SilverPart:
    return tables.part(batch_id)


def records(*places: int, extra: bytes | None = None) -> pa.RecordBatch:
    rows = [(MESSAGES[place].key, BORN, MESSAGES[place].body) for place in places]
    if extra is not None:
        rows.append(("x", BORN, extra))
    ids, born, bodies = zip(*rows, strict=True)
    kinds = (pa.string(), pa.timestamp("us", "UTC"), pa.binary())
    arrays = [pa.array(values, kind) for values, kind in zip((ids, born, bodies), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["flight_id", "bornTimestamp", "body"])


def test_types_and_missing_fields() -> None:
    table, places = columns.decode([b"{}", GOOD, MESSAGES[1].body])
    assert (table.schema, places) == (columns.BODY, [0, 1, 2])
    first, second, third = table.to_pylist()
    assert set(first.values()) == {None}
    assert (second["dep_delay"], second["carrier"]) == (2, "AA")
    assert second["time_hour"] == dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC)
    assert third["dep_time"] is None


@pytest.mark.parametrize(
    "poison",
    [
        None, b"", b"null", b"[1]", b"5", b'{"year": 2013, "mon', b"{}{}", b"{}null{}", b'{"carrier": "\xff"}',
        b'{"year": "2013"}', b'{"year": 20.5}', b'{"year": true}', b'{"year": 3000000000}',
        b'{"year": 300000000000000000000}',
        b'{"carrier": 7}', b'{"carrier": {"a": 1}}', b'{"time_hour": "tomorrow"}', b'{"time_hour": 5}',
    ],
)  # fmt: skip
def test_what_is_no_flight(poison: bytes | None) -> None:
    for bodies in ([poison], [GOOD, poison], [poison, GOOD, GOOD], [GOOD] * 5 + [poison] * 2 + [GOOD]):
        table, places = columns.decode(bodies)
        assert places == [place for place, body in enumerate(bodies) if body is GOOD]
        assert table == columns.decode([GOOD] * len(places)).table


def test_a_task_adds_each_flight_once(tables: Tables, tmp_path: Path) -> None:
    first = list(part(tables, 0).add(iter([records(0, 1, 0), records(1, 2, extra=b"{")]), 1))
    assert sum(row["flights"] or 0 for batch in first for row in batch.to_pylist()) == 3
    assert [row["poison"] for batch in first for row in batch.to_pylist()] == [None, 1]
    second = list(part(tables, 1).add(iter([records(2, 3, 4)]), 1))
    assert sum(row["flights"] for batch in second for row in batch.to_pylist()) == 2
    again = list(part(tables, 1).add(iter([records(2, 3, 4)]), 1))  # in a worker that knows its flights
    assert again == second
    silver._ids.clear()
    assert list(part(tables, 1).add(iter([records(2, 3, 4)]), 1)) == second  # in a new worker
    assert list(part(tables, 2).add(iter([records(0, 4)]), 1)) == []
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.glob("silver/*/*")) == [
        "silver/batch=0/part-1.parquet",
        "silver/batch=1/part-1.parquet",
    ]


def test_silver_has_airline_and_plane(tables: Tables, tmp_path: Path) -> None:
    list(part(tables, 0).add(iter([records(0, 4)]), 0))
    row, unknown = pq.read_table(tmp_path / "silver/batch=0/part-0.parquet", partitioning=None).to_pylist()
    assert (row["flight_id"], row["airline"], row["plane_year"], row["manufacturer"], row["seats"]) == (
        MESSAGES[0].key, "American Airlines Inc.", 1999, "BOEING", 150,
    )  # fmt: skip
    assert row["bornTimestamp"] == BORN
    assert unknown["airline"] is None


def test_sums_are_those_of_the_csv(tables: Tables, tmp_path: Path) -> None:
    found = list(part(tables, 0).add(iter([records(0, 1, 2, 3, 4)]), 0))
    gold = [
        from_sums(row["carrier"], row["month"], row["airline"], {name: row[name] for name in SUMS})
        for batch in found
        for row in batch.to_pylist()
    ]
    wanted = expected_figures(tmp_path, len(MESSAGES))
    assert sorted(map(str, map(asdict, gold))) == sorted(map(str, map(asdict, wanted)))
