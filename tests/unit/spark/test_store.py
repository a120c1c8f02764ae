"""A store directory as source, without Spark: planning and both scans, compared with the plain offline reader."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from tests.sql_outcomes import outcome
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import SEGMENT_BYTES, open_store, put

from rucola.arrow import scanner, store_scan
from rucola.arrow.catalog import Bounds, Look, checked_ranges, ending_offsets, starting_offsets
from rucola.arrow.columns import BatchBuilder, arrow_schema
from rucola.arrow.offsets import Mark
from rucola.arrow.ranges import LogRange, QueueRange, SourceRange, UnitRange
from rucola.arrow.reading import open_catalog, read_range
from rucola.arrow.schema import chosen_columns
from rucola.arrow.store_catalog import StoreCatalog
from rucola.arrow.store_scan import scan_log, scan_queue
from rucola.common.message import MessageExt
from rucola.common.message_const import CRC32
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, DataLossError, StoreDamagedError
from rucola.filter.sql import TruthValue, compile_sql
from rucola.formats.message import encode_message
from rucola.runtime.file_map import FileMap
from rucola.spark.options import SourceOptions, parse_options
from rucola.spark.stream import RocketMQStreamReader
from rucola.store.offline.offline_store import OfflineStore
from rucola.testing.clock import ManualClock

COUNT = 600
BODY_POSITION = 88
"""Position of the body in a record with IPv4 hosts."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store")
    store = open_store(path)
    put(store, 0, COUNT)
    store.shutdown()
    return path


def options_of(path: Path, **given: str) -> SourceOptions:
    chosen = given if {"subscribe", "subscribePattern", "assign"} & given.keys() else {"topic": "flights", **given}
    return parse_options({"storePath": str(path), **chosen})


def plan(options: SourceOptions) -> list[SourceRange]:
    catalog = StoreCatalog(options)
    try:
        queues = catalog.queues(all_needed=True)
        start = starting_offsets(options, catalog, queues, "earliest")
        end = ending_offsets(options, catalog, queues)
        return catalog.plan(checked_ranges(start, end, catalog.bounds(queues), options.fail_on_data_loss))
    finally:
        catalog.close()


def read(options: SourceOptions, piece: SourceRange) -> Iterator[pa.RecordBatch]:
    columns = chosen_columns(options)
    builder = BatchBuilder(options, [c.name for c in columns], arrow_schema(columns), options.broker_name)
    assert isinstance(piece, LogRange | UnitRange)
    return scan_log(options, builder, piece) if isinstance(piece, LogRange) else scan_queue(options, builder, piece)


def rows_of(options: SourceOptions) -> list[dict[str, Any]]:
    return [row for piece in plan(options) for batch in read(options, piece) for row in batch.to_pylist()]


def expected(path: Path, topics: set[str]) -> list[MessageExt]:
    store = OfflineStore(str(path))
    found = [
        one
        for held in store.queue_ranges()
        if held.topic in topics
        for one in store.messages(held.topic, held.queue_id, held.min_offset, held.max_offset)
    ]
    store.close()
    return sorted(found, key=lambda one: int(one.physical_offset))


def places(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(row["topic"], row["queueId"], row["queueOffset"]) for row in rows]


SPLITS: list[dict[str, str]] = [
    {"scanOrder": "log"},
    {"scanOrder": "log", "maxBytesPerPartition": "5000"},
    {"scanOrder": "log", "minPartitions": "7"},
    {"scanOrder": "queue"},
    {"scanOrder": "queue", "maxRecordsPerPartition": "17"},
    {"scanOrder": "queue", "maxBytesPerPartition": "3000"},
    {"maxRecordsPerPartition": "1000"},
    {},
]


@pytest.mark.parametrize("given", SPLITS)
def test_both_scans_give_what_was_put(directory: Path, given: dict[str, str]) -> None:
    rows = rows_of(options_of(directory, **given))
    messages = expected(directory, {"flights"})
    assert len(messages) == COUNT // 4
    by_place = {row["physicalOffset"]: row for row in rows}
    assert len(by_place) == len(rows) == len(messages)
    for one in messages:
        row = by_place[one.physical_offset]
        assert (row["queueId"], row["queueOffset"], row["body"]) == (one.queue_id, one.queue_offset, one.body)
        assert json.loads(row["properties"]) | {CRC32: one.properties[CRC32]} == one.properties


def test_the_splits_split(directory: Path) -> None:
    assert {type(piece) for piece in plan(options_of(directory, scanOrder="log"))} == {LogRange}
    assert {type(piece) for piece in plan(options_of(directory, scanOrder="queue"))} == {UnitRange}
    assert len(plan(options_of(directory, scanOrder="log", maxBytesPerPartition="5000"))) > 8
    assert len(plan(options_of(directory, scanOrder="log", minPartitions="7"))) == 7
    counted = plan(options_of(directory, maxRecordsPerPartition="17"))
    assert max(piece.wanted.count for piece in counted if isinstance(piece, UnitRange)) <= 17
    assert len(counted) == 9


def test_few_wanted_bytes_are_picked(directory: Path) -> None:
    document = '{"flights":{"broker-a":{"0":0,"1":0,"2":0}}}'
    few = options_of(directory, startingOffsets=document, endingOffsets=document.replace('"2":0', '"2":50'))
    assert {type(piece) for piece in plan(few)} == {UnitRange}
    many = options_of(directory, subscribePattern=".*")
    assert {type(piece) for piece in plan(many)} == {LogRange}


@pytest.mark.parametrize("order", ["log", "queue"])
def test_an_interval_of_offsets(directory: Path, order: str) -> None:
    options = options_of(
        directory,
        scanOrder=order,
        startingOffsets='{"flights":{"broker-a":{"0":10,"1":-2,"2":-1}}}',
        endingOffsets='{"flights":{"broker-a":{"0":20,"1":3,"2":-1}}}',
    )
    assert sorted(places(rows_of(options))) == [
        *(("flights", 0, offset) for offset in range(10, 20)),
        *(("flights", 1, offset) for offset in range(3)),
    ]


@pytest.mark.parametrize("order", ["log", "queue"])
@pytest.mark.parametrize("expression", ["UA", "AA || UA", "none"])
def test_tags(directory: Path, order: str, expression: str) -> None:
    options = options_of(directory, scanOrder=order, subExpression=expression)
    wanted = [one for one in expected(directory, {"flights"}) if one.tags in expression.split(" || ")]
    assert sorted(row["physicalOffset"] for row in rows_of(options)) == [one.physical_offset for one in wanted]


@pytest.mark.parametrize("order", ["log", "queue"])
@pytest.mark.parametrize(
    "condition", ["TAGS = 'UA'", "KEYS CONTAINS '1' AND UNIQ_KEY IS NOT NULL", "KEYS IS NULL", "v = 2"]
)
def test_conditions(directory: Path, order: str, condition: str) -> None:
    options = options_of(directory, scanOrder=order, subExpression=condition)
    judge = compile_sql(condition)
    wanted = [one for one in expected(directory, {"flights"}) if outcome(judge, one.properties) is TruthValue.TRUE]
    assert sorted(row["physicalOffset"] for row in rows_of(options)) == [one.physical_offset for one in wanted]
    assert bool(wanted) == (condition != "v = 2")


@pytest.mark.parametrize("order", ["log", "queue"])
def test_several_topics(directory: Path, order: str) -> None:
    options = options_of(directory, subscribePattern="flights|größe|%RETRY%x+", scanOrder=order)
    rows = rows_of(options)
    topics = {"flights", "größe", "%RETRY%" + "x" * 130}
    assert sorted(row["physicalOffset"] for row in rows) == [one.physical_offset for one in expected(directory, topics)]
    assert {row["brokerName"] for row in rows} == {"broker-a"}


def test_assigned_queues(directory: Path) -> None:
    options = options_of(directory, assign='{"flights":{"broker-x":[1]}}', brokerName="broker-x")
    assert {(row["brokerName"], row["queueId"]) for row in rows_of(options)} == {("broker-x", 1)}
    with pytest.raises(ConfigError, match="brokerName"):
        plan(options_of(directory, assign='{"flights":{"broker-x":[1]}}'))


def test_a_log_in_directories_of_its_own(directory: Path, tmp_path: Path) -> None:
    moved = tmp_path / "store"
    shutil.copytree(directory, moved)
    parts = [tmp_path / "one", tmp_path / "two"]
    for part in parts:
        part.mkdir()
    for number, segment in enumerate(sorted((moved / "commitlog").iterdir())):
        segment.rename(parts[number % 2] / segment.name)
    (moved / "commitlog").rmdir()
    assert sum(1 for _ in parts[1].iterdir()) > 1
    options = options_of(moved, storePathCommitLog=",".join(map(str, parts)))
    assert sorted(places(rows_of(options))) == sorted(places(rows_of(options_of(directory))))


@pytest.mark.parametrize("order", ["log", "queue"])
def test_directories_of_several_brokers(directory: Path, tmp_path: Path, order: str) -> None:
    store = open_store(tmp_path / "b")
    put(store, 0, 60)
    store.shutdown()
    both = {"path": f"{directory}, {tmp_path / 'b'}", "brokerName": "a, b", "topic": "flights", "scanOrder": order}
    options = parse_options(both)
    catalog = open_catalog(options)
    queues = catalog.queues(all_needed=True)
    ranges = [QueueRange(queue, *bounds) for queue, bounds in catalog.bounds(queues).items()]
    schema = arrow_schema(chosen_columns(options))
    found = [
        row for piece in catalog.plan(ranges) for part in read_range(options, schema, piece) for row in part.to_pylist()
    ]
    for name, path in (("a", directory), ("b", tmp_path / "b")):
        own = [row for row in found if row["brokerName"] == name]
        assert sorted(places(own)) == sorted(places(rows_of(options_of(path))))
    marks = catalog.marks(dict.fromkeys(queues, 0))
    assert marks.keys() == set(queues) == catalog.look(queues).bounds.keys()
    assert {catalog.offset_at(queue, 0) for queue in queues} == {0}
    assert all((catalog.mean_record_bytes(queue, 0, 5) or 0) > 1 for queue in queues)
    with pytest.raises(ConfigError, match=r"brokerName.*t@c:0.*a, b"):
        catalog.look([MessageQueue("t", "c", 0)])
    catalog.close()
    with pytest.raises(ConfigError, match=r"existing topics: .*other"):
        open_catalog(parse_options({**both, "topic": "flihgts"})).queues(all_needed=True)
    with pytest.raises(StoreDamagedError, match="no store here"):
        open_catalog(parse_options({**both, "path": f"{directory},{tmp_path / 'c'}"}))


def test_an_absent_topic_names_the_existing_ones(directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"existing topics: .*flights"):
        plan(options_of(directory, topic="fligths"))


def test_a_directory_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreDamagedError, match="no store here"):
        plan(options_of(tmp_path))


def test_times(directory: Path) -> None:
    messages = expected(directory, {"flights"})
    at = messages[40].store_timestamp_ms
    given = {"startingTimestamp": str(at), "startingOffsetsByTimestampStrategy": "latest"}
    rows = rows_of(options_of(directory, **given))
    wanted = [one.physical_offset for one in messages if one.store_timestamp_ms >= at]
    assert sorted(row["physicalOffset"] for row in rows) == wanted
    rows = rows_of(options_of(directory, endingTimestamp=str(at)))
    wanted = [one.physical_offset for one in messages if one.store_timestamp_ms < at]
    assert sorted(row["physicalOffset"] for row in rows) == wanted


def test_large_queue_chunks_are_cut(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_scan, "BATCH_BYTES", 700)
    monkeypatch.setattr(store_scan, "BATCH_ROWS", 11)
    monkeypatch.setattr(scanner, "FIRST_BATCH_ROWS", 2)
    rows = rows_of(options_of(directory, scanOrder="queue"))
    assert sorted(row["physicalOffset"] for row in rows) == [
        one.physical_offset for one in expected(directory, {"flights"})
    ]


def test_a_live_store_grows_under_the_catalog(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    try:
        put(store, 0, 40)
        clock = ManualClock()
        options = options_of(tmp_path)
        catalog = StoreCatalog(options, clock)
        queue = MessageQueue("flights", "broker-a", 0)
        assert catalog.bounds([queue]) == {queue: Bounds(0, 4)}
        put(store, 40, 400)
        assert catalog.bounds([queue]) == {queue: Bounds(0, 4)}
        clock.advance(1000)
        assert catalog.bounds([queue]) == {queue: Bounds(0, 37)}
        assert len(catalog.queues(all_needed=True)) == 3
        catalog.close()
        assert len(rows_of(options)) == 110
    finally:
        store.shutdown()


def test_marks_and_queues_that_are_not_there(directory: Path) -> None:
    catalog = StoreCatalog(options_of(directory))
    known, unknown = MessageQueue("flights", "broker-a", 0), MessageQueue("gone", "broker-a", 0)
    assert catalog.look([known, unknown]) == Look(catalog.bounds([known]))
    first = expected(directory, {"flights"})[0]
    assert first.queue_id == 0
    assert catalog.marks({known: 0}) == {known: Mark(first.store_timestamp_ms, first.physical_offset)}
    assert catalog.marks({known: 10_000, unknown: 0}) == {}
    catalog.close()


def test_a_checkpoint_of_another_broker_name_is_refused(directory: Path) -> None:
    written = RocketMQStreamReader(options_of(directory, startingOffsets="earliest"), StructType())
    checkpoint = written.latestOffset({}, ReadAllAvailable())
    written.stop()
    renamed = RocketMQStreamReader(options_of(directory, brokerName="broker-b", failOnDataLoss="false"), StructType())
    with pytest.raises(ConfigError, match="option brokerName: 'broker-b' is not allowed; allowed: broker-a"):
        renamed.latestOffset(checkpoint, ReadAllAvailable())
    renamed.stop()


def test_the_log_is_cut_at_records_and_never_inside_of_a_body(tmp_path: Path) -> None:
    """A body may contain the bytes of a record, even with the physical offset that a record there would have."""
    store = open_store(tmp_path)
    forged = []
    for number in range(1, 45, 5):
        outer = replace(message(number, b"busy"), queue_id=0, properties=b"")
        at = store.max_offset + BODY_POSITION
        forged.append(at)
        inner = replace(outer, body=b"inside" * 100)
        body = bytes(1000) + encode_message(inner, at + 1000, 0, 1, store.store_host)
        store.put_message(replace(outer, body=body))
    store.dispatch()
    store.shutdown()
    options = options_of(tmp_path, topic="busy", scanOrder="log", minPartitions="30")
    pieces = plan(options)
    assert len(pieces) > 6
    rows = [row["physicalOffset"] for piece in pieces for batch in read(options, piece) for row in batch.to_pylist()]
    assert [at + BODY_POSITION for at in rows] == forged


def test_planning_does_not_search_every_queue_for_every_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path)
    for number in range(400):
        store.put_message(replace(message(number, b"busy" if number % 2 else b"rare-%d" % number), queue_id=0))
    store.dispatch()
    store.shutdown()
    asked: list[str] = []
    real = OfflineStore.units

    def counted(self: OfflineStore, topic: str, queue_id: int, first: int, last: int) -> Iterator[Any]:
        asked.append(topic)
        return real(self, topic, queue_id, first, last)

    monkeypatch.setattr(OfflineStore, "units", counted)
    options = options_of(tmp_path, subscribePattern=".*", scanOrder="log", maxBytesPerPartition="12000")
    pieces = plan(options)
    assert len(pieces) > 6
    # First and last entry of each range, and the entry of the record after each cut.
    assert len(asked) <= 2 * 201 + len(pieces)
    assert sorted(
        row["physicalOffset"] for piece in pieces for batch in read(options, piece) for row in batch.to_pylist()
    ) == [
        one.physical_offset for one in expected(tmp_path, {"busy", *(f"rare-{number}" for number in range(0, 400, 2))})
    ]


def test_the_queues_are_listed_in_one_pass(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_args: object) -> list[int]:
        raise AssertionError("topics are requested one by one")

    monkeypatch.setattr(OfflineStore, "queues", forbidden)
    catalog = StoreCatalog(options_of(directory))
    assert len(catalog.queues(all_needed=True)) == 3
    catalog.close()


def test_a_plan_loads_only_the_records_that_it_looks_at(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system must not read ahead in the log, not even after a search for new messages."""
    ahead: dict[FileMap, bool] = {}

    def noted(segment: FileMap, on: bool) -> None:
        ahead[segment] = on

    monkeypatch.setattr(FileMap, "read_ahead", noted)
    clock = ManualClock()
    catalog = StoreCatalog(options_of(directory), clock)
    for _ in range(2):
        known = set(ahead)
        queues = catalog.queues(all_needed=True)
        catalog.bounds(queues)
        assert ahead.keys() - known  # a search for new messages maps the log again
        catalog.holders(queues, ["none"], [])
        assert not any(ahead.values())
        clock.advance(60_000)
    catalog.close()


def test_queues_that_take_long_to_look_at_are_looked_at_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = ManualClock(), 0
    real = OfflineStore.queue_range

    def slow(self: OfflineStore, topic: str, queue_id: int) -> Any:
        nonlocal asked
        asked += 1
        clock.advance(200)
        return real(self, topic, queue_id)

    monkeypatch.setattr(OfflineStore, "queue_range", slow)
    options = options_of(directory)
    catalog = StoreCatalog(options, clock)
    for _ in range(2):
        queues = catalog.queues(all_needed=True)
        starting_offsets(options, catalog, queues, "earliest")
        ending_offsets(options, catalog, queues)
        catalog.bounds(queues)
    assert asked == len(queues)
    clock.advance(20_000)
    catalog.bounds(queues)
    assert asked == 2 * len(queues)
    catalog.close()


def test_nothing_changes_in_the_directory(directory: Path) -> None:
    def picture() -> dict[str, tuple[int, int, bytes]]:
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = picture()
    rows_of(options_of(directory, scanOrder="log"))
    rows_of(options_of(directory, scanOrder="queue"))
    assert picture() == before


@pytest.mark.parametrize("order", ["log", "queue"])
def test_a_file_deleted_after_planning_is_data_loss(tmp_path: Path, order: str) -> None:
    store = open_store(tmp_path)
    put(store, 0, COUNT)
    store.shutdown()
    strict = options_of(tmp_path, scanOrder=order)
    lenient = options_of(tmp_path, scanOrder=order, failOnDataLoss="false")
    planned = plan(strict)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(DataLossError, match="flights@broker-a:0"):
        list(read(strict, planned[0]))
    kept = [row for piece in planned for batch in read(lenient, piece) for row in batch.to_pylist()]
    assert kept
    assert min(row["physicalOffset"] for row in kept) >= SEGMENT_BYTES


def test_a_unit_that_points_elsewhere_is_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, 0, COUNT)
    store.shutdown()
    options = options_of(tmp_path, scanOrder="queue")
    planned = plan(options)
    units = tmp_path / "consumequeue" / "flights" / "0" / f"{0:020d}"
    content = bytearray(units.read_bytes())
    content[3 * 20 + 7] ^= 1
    units.write_bytes(content)
    with pytest.raises(StoreDamagedError, match="points here"):
        list(read(options, planned[0]))
