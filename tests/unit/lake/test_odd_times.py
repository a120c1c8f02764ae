"""Times that no column can have: a sender's clock, or the broker's, may have been anything."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import open_store

from rucola.arrow.topic_dataset import TopicDataset, topic_options
from rucola.lake import archive, archive_raw, compact, restore
from rucola.lake.file_rows import joined_rows
from rucola.lake.table_formats import open_table
from rucola.lake.table_log import TableKind, is_own_file
from rucola.sql import connect
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock

PLAIN = 1_700_000_000_000
LAST = 253_402_300_799_999
FIRST = -62_135_596_800_000
BORN = (PLAIN, 1 << 62, LAST, LAST + 1, FIRST, FIRST - 1, -1, -(1 << 63))
SHOWN = (True, False, True, False, True, False, True, False)
"""Whether a column can have the times of ``BORN``."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """A message for each of ``BORN``, which is its born time; the last four are stored at the end of all times."""
    clock = ManualClock(PLAIN)
    one = open_store(tmp_path / "store", clock=clock)
    for number, born in enumerate(BORN):
        clock.set_wall_ms(1 << 60 if number >= 4 else PLAIN)
        put_one(one, number, born)
    one.dispatch()
    yield one
    one.shutdown()


def put_one(store: MessageStore, number: int, born: int) -> None:
    new = message(number, b"flights")
    new.queue_id, new.born_timestamp_ms, new.store_host = 0, born, store.store_host
    store.put_message(new)


def micros(rows: pa.Table, name: str) -> list[int | None]:
    found: list[int | None] = rows.column(name).cast(pa.int64()).to_pylist()
    return found


def test_values_that_no_column_can_have_are_null_in_every_reader(tmp_path: Path, store: MessageStore) -> None:
    born = [1000 * one if shown else None for one, shown in zip(BORN, SHOWN, strict=True)]
    stored = [1000 * PLAIN if number < 4 else None for number in range(len(BORN))]
    rows = TopicDataset(topic_options(tmp_path / "store", "flights", "")).to_table()
    assert micros(rows, "bornTimestamp") == born
    assert micros(rows, "storeTimestamp") == stored
    rows.validate(full=True)
    rows.to_pylist()
    with connect(tmp_path / "store") as session:
        found = session.run("select bornTimestamp, storeTimestamp from flights order by queueOffset").read_all()
        assert (micros(found, "bornTimestamp"), micros(found, "storeTimestamp")) == (born, stored)
        extent = session.run("select min(storeTimestamp) as a, max(storeTimestamp) as b from flights").read_all()
        assert micros(extent, "a") == micros(extent, "b") == [1000 * PLAIN]
        last = session.run("select lastTimestamp from rucola.queues where topic = 'flights'").read_all()
        assert micros(last, "lastTimestamp") == [None]


def test_an_archive_has_them_as_null_and_goes_on(tmp_path: Path, store: MessageStore, format: str) -> None:
    table = tmp_path / "table"
    assert archive(table, store=tmp_path / "store", format=format) == len(BORN)
    put_one(store, 8, 1 << 62)
    store.dispatch()
    assert archive(table, store=tmp_path / "store", format=format) == 1
    assert days_of(table, format) == {"2023-11-14": 4, None: 5}
    done = compact(table, format=format, keep_days=1)
    assert (done.expired, done.joined, done.made) == (1, 2, 1)
    assert days_of(table, format) == {None: 5}
    assert archive(table, store=tmp_path / "store", format=format) == 0


def days_of(table: Path, format: str) -> dict[str | None, int]:
    """Number of rows by day, as the files and the log have it."""
    log = open_table(table, format)
    counts: dict[str | None, int] = {}
    for one in log.snapshot().files.values():
        day = one.partition.get("storeDay")
        schema = pa.schema([("storeDay", pa.date32()), ("storeTimestamp", pa.timestamp("us", "UTC"))])
        assert is_own_file(one.path.removeprefix("data/"), TableKind.MESSAGES)
        if day is None:  # Spark takes the day from the name of the directory
            assert "/storeDay=__HIVE_DEFAULT_PARTITION__/" in one.path
        for row in pa.Table.from_batches(joined_rows(log.place, schema, [one])).to_pylist():
            assert row["storeDay"] == (None if day is None else date.fromisoformat(day))
            assert (row["storeTimestamp"] is None) == (day is None)
            counts[day] = counts.get(day, 0) + 1
    return counts


def test_a_raw_table_goes_on_after_them(tmp_path: Path, store: MessageStore, format: str) -> None:
    table = tmp_path / "table"
    archive_raw(table, tmp_path / "store", format=format)
    snapshot = open_table(table, format, TableKind.RAW).snapshot()
    (mark,) = snapshot.offsets.marks.values()
    assert mark.store_timestamp_ms == PLAIN  # of the last record that has a time
    put_one(store, 8, 1 << 62)
    store.dispatch()
    assert archive_raw(table, tmp_path / "store", format=format) > 0
    (restored,) = restore(table, tmp_path / "restored", format=format)
    log = (tmp_path / "store" / "commitlog" / restored.name).read_bytes()
    assert (tmp_path / "restored" / "commitlog" / restored.name).read_bytes() == log
