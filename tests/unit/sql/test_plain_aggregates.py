"""Counts, and least and greatest offsets and times: the queues answer them as a scan of the messages does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import open_store

from rucola.arrow import selection, topic_dataset
from rucola.arrow.store_catalog import StoreCatalog
from rucola.common.columns import RecordColumn
from rucola.common.sysflag import MessageSysFlag
from rucola.sql import connect
from rucola.store.offline.offline_store import OfflineStore

COUNT = 600
TOPICS = (b"flights", b"Orders", b"orders", b"keys", b"flights")


def filled(path: Path) -> Path:
    store = open_store(path)
    for number in range(COUNT):
        one = message(number, TOPICS[number % 5])
        one.store_host, one.body = store.store_host, json.dumps({"seat": number}).encode()
        store.put_message(one)
    store.dispatch()
    store.shutdown()
    return path


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("plain") / "store")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pieces of messages that are read."""
    pieces: list[Any] = []
    read_range = topic_dataset.read_range
    monkeypatch.setattr(topic_dataset, "read_range", lambda *a: (pieces.append(a[2]), read_range(*a))[1])
    return pieces


@pytest.fixture
def scanned(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs a query by a scan of the messages."""

    def run(query: str, path: Path = directory) -> pa.Table:
        with monkeypatch.context() as context, connect(path) as session:
            context.setattr(StoreCatalog, "are_dense", lambda *_: False)
            return session.run(query).read_all()

    yield run


TIMES = "min(storeTimestamp), max(storeTimestamp)"
BY_QUEUES = [
    "select count(*) from flights",
    "select count(*) from messages",
    "select count(*) n, min(queueOffset), MAX(queueoffset) from messages where topic = 'flights'",
    "select topic, queueId, count(*), max(queueOffset) from rucola.messages group by all order by all",
    "select topic, count(*) from messages group by 1 order by 1",
    'select queueId, count(distinct queueOffset) from "Orders" group by queueId having count(*) > 3 order by 1',
    "select count(*) from flights f join messages m using (topic, queueId, queueOffset) where f.queueOffset > 5",
    f"select {TIMES} from flights",
    f"select {TIMES}, count(*), min(queueOffset), max(queueOffset) from flights",
    f"select {TIMES}, count(*) n from FLIGHTS f",
    'select min(f.storetimestamp) "a ""b", max(F.storeTimestamp), count() from main.flights f',
    'select max("orders".storeTimestamp), count(*) from "orders"',
    "select max(storeTimestamp) from \"Orders\" where topic = 'Orders'",
    f"select {TIMES}, count(*) from messages",
    f"select {TIMES}, count(*) from rucola.messages m where m.topic = 'keys'",
    "select max(storeTimestamp) from keys",
]
BY_MESSAGES = [
    f"select {TIMES} from flights where queueId = 1",
    f"select {TIMES} from flights where topic >= 'orders'",
    f"select {TIMES} from flights where topic = 'orders'",
    f"select {TIMES} from messages where topic = 'none'",
    f"select {TIMES} from messages where topic <> 'flights'",
    f"select {TIMES} from messages where 'keys' = topic",
    "select max(storeTimestamp) filter (queueOffset < 3) from flights",
    "select max(storeTimestamp order by queueOffset), count(distinct storeTimestamp) from flights",
    f"select {TIMES} from flights limit 0",
    f"select {TIMES} from flights offset 1",
    f"select {TIMES} from flights having count(*) > 1000",
    f"select {TIMES} from flights group by queueId order by 1, 2",
    f"select {TIMES} from flights tablesample 0%",
    f"select {TIMES} from flights qualify row_number() over () > 1",
    f"select {TIMES} from flights, (select 1)",
    f"select {TIMES} from (from flights limit 1)",
    f"select {TIMES} from rucola.keys",
    "select max(storeTimestamp) + interval 1 day from flights",
    "select max(storeTimestamp) from flights as f(storeTimestamp)",
    f"with messages as (from flights limit 1) select {TIMES} from messages",
    f"select min(seat), {TIMES} from flights",
    "select min(storeTimestamp, 2) from flights",
    "select distinct max(storeTimestamp) from flights",
    "select max(queueOffset), max(flag) from flights",
    f'select {TIMES} from flights union all select {TIMES} from "Orders" order by 1, 2',
]


@pytest.mark.few(7)
@pytest.mark.parametrize("query", BY_QUEUES)
def test_no_message_is_read(directory: Path, read: list[Any], scanned: Any, query: str) -> None:
    with connect(directory) as session:
        found = session.run(query).read_all()
        assert not read
        whole = scanned(query)
        assert read
        assert found.equals(whole)
        assert found.schema == whole.schema
        session.connection.execute("set timezone = 'Asia/Tokyo'")
        assert session.run(query).read_all().schema.names == whole.schema.names


EMPTY = {query for query in BY_MESSAGES if query.endswith(("'orders'", "'none'", "limit 0"))}
"""Queries that need no message, whoever answers them."""


@pytest.mark.few(9)
@pytest.mark.parametrize("query", BY_MESSAGES)
def test_other_queries_read_messages(directory: Path, read: list[Any], scanned: Any, query: str) -> None:
    with connect(directory) as session:
        found = session.run(query).read_all()
        assert found.equals(scanned(query))
        assert read or query in EMPTY


def test_a_topic_without_messages(tmp_path: Path, read: list[Any]) -> None:
    path = filled(tmp_path / "store")
    for file in (path / "consumequeue/flights").rglob("0*"):
        if file.is_file():
            file.write_bytes(bytes(file.stat().st_size))
    with connect(path) as session:
        query = f"select {TIMES}, count(*), min(queueOffset) from flights"
        assert [*session.run(query).read_all().to_pylist()[0].values()] == [None, None, 0, None]


def set_back(path: Path, part: float) -> None:
    """Sets the store times of the last messages back by an hour, as a clock that was set would have done."""
    store = OfflineStore(str(path))
    segments, end = store.log_segments(), store.end_offset()
    changes: list[tuple[str, int, int]] = []
    at = 0
    while at < end:
        file, start, size = next(one for one in segments if one[1] <= at < one[1] + one[2])
        row = store.log.row_at(at)
        if row is None:  # the end of a segment
            at = start + size
            continue
        place = 56 + 12 * bool(row[RecordColumn.SYS_FLAG] & MessageSysFlag.BORN_HOST_V6)
        changes.append((file, at - start + place, store.store_timestamp(at) - 3_600_000))
        at += row[RecordColumn.RECORD_SIZE]
    store.close()
    for file, place, timestamp_ms in changes[int(len(changes) * part) :]:
        with Path(file).open("r+b") as output:
            output.seek(place)
            output.write(timestamp_ms.to_bytes(8, "big"))


@pytest.mark.few(1)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_clock_that_stepped_back(tmp_path: Path, part: float, read: list[Any], scanned: Any) -> None:
    path = filled(tmp_path / "store")
    set_back(path, part)
    for table in ("messages", "flights", '"orders"'):
        query = f"select {TIMES} from {table}"
        with connect(path) as session:
            assert session.run(query).read_all().equals(scanned(query, path))
        whole = scanned(f"select max(storeTimestamp) - min(storeTimestamp) > interval 59 minutes b from {table}", path)
        assert whole["b"].to_pylist() == [True]


def test_times_of_a_large_topic_are_those_of_a_sample(tmp_path: Path, read: list[Any], monkeypatch: Any) -> None:
    path = filled(tmp_path / "store")
    looked: list[Any] = []
    marks = StoreCatalog.marks
    monkeypatch.setattr(StoreCatalog, "marks", lambda *a: (looked.append(a[1]), marks(*a))[1])
    for most, expected in ((1024, COUNT), (60, 60), (1, 24)):
        monkeypatch.setattr(selection, "TIMES_MAX", most)
        looked.clear()
        with connect(path) as session:
            first, last = session.run(f"select {TIMES} from messages").read_all().to_pylist()[0].values()
        assert last - first < timedelta(minutes=1)
        assert not read
        assert expected * 0.7 < len(looked) <= expected
    set_back(path, 0.5)
    with connect(path) as session:
        session.run(f"select {TIMES} from messages").read_all()
        assert read
