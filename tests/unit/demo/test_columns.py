"""Flights as columns: rows that are not flights, names, sums, and each flight once in silver."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from demo.flights import columns, tasks
from demo.flights.data import message_of
from demo.flights.expected import expected_figures
from demo.flights.figures import SUMS, from_sums
from demo.flights.tables import Tables
from tests.unit.demo.samples import sample_rows, write_sample_csv

MESSAGES = [message_of(row) for row in sample_rows()]
GOOD = MESSAGES[0].body
BORN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    write_sample_csv(tmp_path)
    return Tables(tmp_path, tmp_path)


def records(*places: int, extra: bytes | None = None, queue_id: int = 1) -> pa.RecordBatch:
    rows = [("broker-a", queue_id, MESSAGES[place].key, BORN, MESSAGES[place].body) for place in places]
    if extra is not None:
        rows.append(("broker-a", queue_id, "x", BORN, extra))
    names = ["brokerName", "queueId", "keys", "bornTimestamp", "body"]
    kinds = (pa.string(), pa.int32(), pa.string(), pa.timestamp("us", "UTC"), pa.binary())
    arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def run(tables: Tables, batch_id: int, *batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    return list(tables.task(batch_id)(iter(batches)))


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
def test_other_rows_are_no_flights(poison: bytes | None) -> None:
    for bodies in ([poison], [GOOD, poison], [poison, GOOD, GOOD], [GOOD] * 5 + [poison] * 2 + [GOOD]):
        table, places = columns.decode(bodies)
        assert places == [place for place, body in enumerate(bodies) if body is GOOD]
        assert table == columns.decode([GOOD] * len(places)).table


def test_a_task_adds_each_flight_once(tables: Tables, tmp_path: Path) -> None:
    first = run(tables, 0, records(0, 1, 0), records(1, 2, extra=b"{"))
    assert sum(row["flights"] or 0 for batch in first for row in batch.to_pylist()) == 3
    counts = [(row["records"], row["poison"]) for batch in first for row in batch.to_pylist()]
    assert counts == [(None, None), (6, 1)]
    second = run(tables, 1, records(2, 3, 4))
    assert sum(row["flights"] or 0 for batch in second for row in batch.to_pylist()) == 2
    again = run(tables, 1, records(2, 3, 4))  # in a worker that has already seen these flights
    assert again == second
    tasks._ids.clear()
    assert run(tables, 1, records(2, 3, 4)) == second  # in a new worker
    assert [row["flights"] for batch in run(tables, 2, records(0, 4)) for row in batch.to_pylist()] == [None]
    files = {name: sorted(tmp_path.glob(f"{name}/batch=*/broker-a-1.parquet")) for name in ("bronze", "silver")}
    assert [pq.read_table(file, partitioning=None).num_rows for file in files["bronze"]] == [6, 3, 2]
    assert [file.parent.name for file in files["silver"]] == ["batch=0", "batch=1"]
    assert len([file for file in tmp_path.glob("*/batch=*/*") if file.is_file()]) == 5


def test_a_task_takes_records_of_one_queue(tables: Tables) -> None:
    assert run(tables, 0) == []
    with pytest.raises(ValueError, match="records from 2 queues"):
        run(tables, 0, records(0, queue_id=1), records(1, queue_id=2))


def test_silver_has_airline_and_plane(tables: Tables, tmp_path: Path) -> None:
    run(tables, 0, records(0, 4))
    row, unknown = pq.read_table(tmp_path / "silver/batch=0/broker-a-1.parquet", partitioning=None).to_pylist()
    assert (row["flight_id"], row["airline"], row["plane_year"], row["manufacturer"], row["seats"]) == (
        MESSAGES[0].key, "American Airlines Inc.", 1999, "BOEING", 150,
    )  # fmt: skip
    assert row["bornTimestamp"] == BORN
    assert unknown["airline"] is None


def test_sums_are_those_of_the_csv(tables: Tables, tmp_path: Path) -> None:
    found = run(tables, 0, records(0, 1, 2, 3, 4))
    gold = [
        from_sums(row["carrier"], row["month"], row["airline"], {name: row[name] for name in SUMS})
        for batch in found
        for row in batch.to_pylist()
        if row["records"] is None
    ]
    wanted = expected_figures(tmp_path, len(MESSAGES))
    assert sorted(map(str, map(asdict, gold))) == sorted(map(str, map(asdict, wanted)))
