"""Archiving with the tasks in this process: each message once, whatever is killed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.unit.arrow.stores import open_store, put
from tests.unit.lake.logs import SCHEMA, delta_log

from rucola.arrow.offsets import StreamOffsets
from rucola.arrow.read_options import BodyForm
from rucola.arrow.topic_dataset import TopicDataset, topic_options
from rucola.cli.spark import run
from rucola.common.message_queue import MessageQueue
from rucola.errors import AnotherLogError, ConfigError, DataLossError, FormatError, TableConflictError
from rucola.lake import archive, parquet_writer
from rucola.lake.archiver import Archiver, commit_rebased
from rucola.lake.columns import json_of, merged_schema
from rucola.lake.delta_log import DeltaLog
from rucola.lake.iceberg_catalog import IcebergCatalog
from rucola.lake.iceberg_log import IcebergLog
from rucola.lake.maintenance import compact, expire
from rucola.lake.parquet_writer import PartitionedWriter, escaped
from rucola.lake.raw_rows import raw_schema
from rucola.lake.table_log import Change, DataFile, TableKind, TableLog
from rucola.places.local_place import LocalPlace
from rucola.runtime.files import Files
from rucola.spark.archive import archive as archive_on_spark
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock

DAY_MS = 86_400_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    one = open_store(tmp_path / "store")
    put(one, 0, 300)
    yield one
    one.shutdown()


def log_of(table: Path, format: str, clock: ManualClock) -> TableLog:
    place = LocalPlace(table)
    return DeltaLog(place, clock=clock) if format == "delta" else IcebergLog(place, IcebergCatalog(place), clock=clock)


def rows_of(table: Path) -> pa.Table:
    """Returns the rows of a table in the order of the log, without the columns ``storeDay`` and ``life``."""
    log = delta_log(table)
    found = ds.dataset([f"{log.place.root}/{path}" for path in log.snapshot().files], format="parquet").to_table()
    return in_order(found.drop_columns(["storeDay", "life"]))


def stored(directory: Path) -> pa.Table:
    return in_order(TopicDataset(topic_options(directory / "store", None, "")).to_table())


def in_order(rows: pa.Table) -> pa.Table:
    return rows.sort_by([(name, "ascending") for name in ("topic", "queueId", "queueOffset")])


def archiver(directory: Path, log: DeltaLog | None = None, **more: Any) -> Archiver:
    options = topic_options(directory / "store", None, "")
    return Archiver(log or delta_log(directory / "table"), options, **more)


def data_files(table: Path) -> set[str]:
    return {path.relative_to(table).as_posix() for path in table.rglob("*.parquet")}


def test_several_commits_hold_each_message_once(tmp_path: Path, store: MessageStore) -> None:
    steps = list(archiver(tmp_path, messages_per_commit=120).steps())
    assert [step.messages for step in steps] == [120, 120, 60]
    assert [step.lag for step in steps] == [180, 60, 0]
    put(store, 300, 50)
    assert archive(tmp_path / "table", store=tmp_path / "store") == 50
    assert archive(tmp_path / "table", store=tmp_path / "store") == 0
    assert rows_of(tmp_path / "table").equals(stored(tmp_path))


def test_the_stored_record_is_a_column(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", "flights", store=tmp_path / "store", record=True)
    rows = rows_of(tmp_path / "table")
    assert rows.num_rows > 0
    for record, physical_offset, size in zip(
        *(rows.column(name).to_pylist() for name in ("record", "physicalOffset", "storeSize")), strict=True
    ):
        segment = tmp_path / "store" / "commitlog" / f"{physical_offset // 16384 * 16384:020}"
        at = physical_offset % 16384
        assert record == segment.read_bytes()[at : at + size]


class Killed(BaseException):
    pass


class KilledFiles(Files):
    """Ends the process at the n-th call of those methods with which a commit changes the disk."""

    METHODS = ("sync_directory", "rename", "sync_file", "remove")

    def __init__(self, countdown: int, after: bool) -> None:
        self.countdown, self.after = countdown, after

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in KilledFiles.METHODS:
            return method

        def call(*arguments: Any) -> Any:
            self.countdown -= 1
            if self.countdown < 0 or (self.countdown == 0 and not self.after):
                raise Killed
            result = method(*arguments)
            if self.countdown == 0:
                raise Killed
            return result

        return call


@pytest.mark.few(1)
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_step_of_a_commit_loses_and_repeats_nothing(
    tmp_path: Path, store: MessageStore, after: bool
) -> None:
    ends = 0
    for countdown in range(1, 30, 2):
        log = delta_log(tmp_path / "table", files=KilledFiles(countdown, after))
        put(store, 300 + countdown, 1)
        try:
            archiver(tmp_path, log).step()
            ends += 1
        except Killed:
            continue
    assert 0 < ends < 15  # at every step some runs were killed, and some were not
    archive(tmp_path / "table", store=tmp_path / "store")
    assert rows_of(tmp_path / "table").equals(stored(tmp_path))


class BetweenLog(DeltaLog):
    """The archive's log of commits, which calls a given function once before a commit."""

    def __init__(self, root: str, meanwhile: Callable[[], object]) -> None:
        super().__init__(LocalPlace(root))
        self._meanwhile: list[Callable[[], object]] = [meanwhile]

    def commit(self, base: Any, change: Change) -> int:
        while self._meanwhile:
            self._meanwhile.pop()()
        return super().commit(base, change)


def test_of_two_runs_over_the_same_messages_one_drops_its_files(tmp_path: Path, store: MessageStore) -> None:
    log = BetweenLog(str(tmp_path / "table"), lambda: archive(tmp_path / "table", store=tmp_path / "store"))
    assert archiver(tmp_path, log).step() is None
    assert rows_of(tmp_path / "table").equals(stored(tmp_path))
    assert data_files(tmp_path / "table") == set(log.snapshot().files)


def test_a_run_over_other_topics_does_not_stop_a_commit(tmp_path: Path, store: MessageStore) -> None:
    log = BetweenLog(str(tmp_path / "table"), lambda: archive(tmp_path / "table", "other", store=tmp_path / "store"))
    step = Archiver(log, topic_options(tmp_path / "store", "flights", "")).step()
    assert step is not None
    assert step.version == 1
    rows = rows_of(tmp_path / "table")
    assert sorted(set(rows.column("topic").to_pylist())) == ["flights", "other"]
    assert len(data_files(tmp_path / "table")) == 2


def test_many_writers_share_the_numbers_of_commits(tmp_path: Path) -> None:
    queues = [MessageQueue("t", "b", number) for number in range(4)]

    def run(queue: MessageQueue) -> None:
        log = delta_log(tmp_path)
        done = 0
        while done < 10:
            try:
                log.commit(log.snapshot(), Change("archive", offsets=StreamOffsets({queue: done + 1}), schema=SCHEMA))
            except TableConflictError:
                continue
            done += 1

    threads = [Thread(target=run, args=(queue,)) for queue in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = delta_log(tmp_path).snapshot()
    assert state.version == 39
    assert state.offsets.offsets == dict.fromkeys(queues, 10)
    assert len(list((tmp_path / "_rucola").glob("*.json"))) == 40


def test_a_checkpoint_says_what_all_commits_say(tmp_path: Path) -> None:
    log = delta_log(tmp_path)
    for number in range(19):
        added = DataFile(f"{number}.parquet", 1, 10, {"topic": "t", "storeDay": "2026-01-31"}, {"numRecords": 1})
        removed = tuple(log.snapshot().files.values()) if number % 5 == 4 else ()
        offsets = StreamOffsets({MessageQueue("t", "b", number % 2): number})
        log.commit(log.snapshot(), Change("archive", (added,), removed, offsets, None if number else SCHEMA))
    state = log.snapshot()
    assert list(state.files) == [f"{number}.parquet" for number in range(14, 19)]
    (checkpoint,) = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    for path in (checkpoint, tmp_path / "_delta_log" / "_last_checkpoint"):
        path.unlink()
    plain = delta_log(tmp_path).snapshot()
    assert (plain.files, plain.offsets, plain.version) == (state.files, state.offsets, state.version)
    (tmp_path / "_delta_log" / f"{3:020}.json").unlink()
    with pytest.raises(FormatError, match="_delta_log"):
        delta_log(tmp_path).snapshot()


def test_a_plan_of_yesterday_is_not_committed(tmp_path: Path, format: str) -> None:
    clock = ManualClock(1_700_000_000_000)
    log = log_of(tmp_path / "table", format, clock)
    base = log.snapshot()
    clock.advance(25 * 3_600_000)
    with pytest.raises(ConfigError, match="25 h ago"):
        log.commit(base, Change("archive", schema=SCHEMA))
    assert log.snapshot().version == -1
    assert not (tmp_path / "table").exists()


def test_a_plan_keeps_its_age_when_another_run_was_faster(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", "other", store=tmp_path / "store")
    clock = ManualClock(1_700_000_000_000)
    log = delta_log(tmp_path / "table", clock=clock)
    base = log.snapshot()
    archive(tmp_path / "table", "flights", store=tmp_path / "store")
    clock.advance(25 * 3_600_000)
    with pytest.raises(ConfigError, match="25 h ago"):
        commit_rebased(log, base, Change("archive", offsets=StreamOffsets({MessageQueue("t", "b", 0): 1})))


def test_a_table_of_another_kind_or_a_newer_format_is_refused(tmp_path: Path) -> None:
    log = delta_log(tmp_path, TableKind.RAW)
    log.commit(log.snapshot(), Change("archive", schema=json_of(raw_schema())))
    with pytest.raises(ConfigError, match="kind messages; this one is of kind raw"):
        delta_log(tmp_path).snapshot()
    (path,) = (tmp_path / "_rucola").glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    with pytest.raises(ConfigError, match="newer version"):
        log.snapshot()
    path.unlink()
    with pytest.raises(FormatError, match=path.name):
        log.snapshot()


def test_small_files_are_joined_while_messages_are_archived(tmp_path: Path, store: MessageStore) -> None:
    for number in range(3):
        archive(tmp_path / "table", store=tmp_path / "store")
        put(store, 300 + 20 * number, 20)
    for path in data_files(tmp_path / "table"):
        os.utime(tmp_path / "table" / path, (0, 0))
    log = BetweenLog(str(tmp_path / "table"), lambda: archive(tmp_path / "table", store=tmp_path / "store"))
    assert compact(log) == (12, 4)
    assert len(log.snapshot().files) == 8
    assert rows_of(tmp_path / "table").equals(stored(tmp_path))
    # Files that were replaced stay for a day.
    assert log.clean() == 0
    assert log.clean(0) == 12
    assert len(list((tmp_path / "table" / "_rucola").glob("*.json"))) == 1
    assert rows_of(tmp_path / "table").equals(stored(tmp_path))


def test_of_two_compactions_one_changes_nothing(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", store=tmp_path / "store")
    put(store, 300, 20)
    archive(tmp_path / "table", store=tmp_path / "store")
    log = BetweenLog(str(tmp_path / "table"), lambda: compact(delta_log(tmp_path / "table")))
    assert compact(log) == (0, 0)
    assert rows_of(tmp_path / "table").equals(stored(tmp_path))


def test_expired_messages_are_not_archived_again(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", "flights", store=tmp_path / "store")
    log = delta_log(tmp_path / "table")
    assert expire(log, date(2020, 1, 1)) == 0
    assert expire(log, date(2100, 1, 1)) == 1
    assert archive(tmp_path / "table", "flights", store=tmp_path / "store") == 0
    assert not log.snapshot().files


def test_another_store_or_a_gap_is_refused(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", "flights", store=tmp_path / "store")
    other = open_store(tmp_path / "two" / "store")
    put(other, 4, 400)
    other.shutdown()
    with pytest.raises(AnotherLogError, match="flights@broker-a"):
        archive(tmp_path / "table", "flights", store=tmp_path / "two" / "store")
    short = open_store(tmp_path / "three" / "store")
    put(short, 0, 20)
    short.shutdown()
    with pytest.raises(DataLossError, match="flights@broker-a"):
        archive(tmp_path / "table", "flights", store=tmp_path / "three" / "store")


def test_messages_that_expired_before_they_were_archived_are_reported(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", store=tmp_path / "store", messages_per_commit=300)
    put(store, 300, 300)
    store.shutdown()
    for path in sorted((tmp_path / "store" / "commitlog").iterdir())[:-1]:
        path.unlink()
    with pytest.raises(DataLossError):
        archive(tmp_path / "table", store=tmp_path / "store")
    count = archive(tmp_path / "table", store=tmp_path / "store", fail_on_data_loss=False)
    assert 0 < count < 300
    assert rows_of(tmp_path / "table").num_rows == 300 + count


def test_pages_are_sorted_and_keys_have_bloom_filters(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", "flights", store=tmp_path / "store")
    (path,) = data_files(tmp_path / "table")
    file = pq.ParquetFile(tmp_path / "table" / path)
    places = [(row["queueId"], row["queueOffset"]) for row in file.read(["queueId", "queueOffset"]).to_pylist()]
    assert places == sorted(places)
    group = file.metadata.row_group(0)
    columns = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
    for name in ("queueOffset", "storeTimestamp", "tags"):
        assert columns[name].statistics.has_min_max
        assert columns[name].has_column_index
    assert path.startswith("topic=flights/storeDay=")


def test_an_older_pyarrow_writes_the_same_rows(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_writer, "HAS_BLOOM_FILTERS", False)
    monkeypatch.setattr(parquet_writer.pq, "ParquetWriter", partial(older_writer, parquet_writer.pq.ParquetWriter))
    assert archive(tmp_path / "table", "flights", store=tmp_path / "store") == rows_of(tmp_path / "table").num_rows > 0


def older_writer(writer: Any, *arguments: Any, **options: Any) -> Any:
    """Stands in for the Parquet writer of PyArrow 25, which has no option for Bloom filters."""
    assert "bloom_filter_options" not in options
    return writer(*arguments, **options)


def test_rows_go_to_files_by_topic_and_day(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("storeTimestamp", pa.timestamp("us", tz="UTC")),
            ("queueOffset", pa.int64()),
            ("storeDay", pa.date32()),
        ]
    )
    writer = PartitionedWriter(LocalPlace(tmp_path), schema)
    times = [0, DAY_MS * 1000 - 1, DAY_MS * 1000, -1]
    for topic in ("%RETRY%g:1", "größe"):
        writer.write(pa.record_batch([[topic] * 4, times, range(4)], schema=schema.remove(3)))
    done = writer.finish()
    assert {(one.partition["topic"], one.partition["storeDay"], one.rows) for one in done} == {
        (topic, day, rows)
        for topic in ("%RETRY%g:1", "größe")
        for day, rows in (("1969-12-31", 1), ("1970-01-01", 2), ("1970-01-02", 1))
    }
    assert {one.path.partition("/")[0] for one in done} == {"topic=%25RETRY%25g%3A1", "topic=größe"}
    writer.abandon()
    assert not data_files(tmp_path)


def test_names_of_directories_are_escaped_as_by_hive() -> None:
    assert escaped("a b%c/d=e:ü") == "a b%25c%2Fd%3De%3Aü"


def test_new_columns_are_added_and_changed_types_are_refused() -> None:
    def schema(**types: str) -> dict[str, Any]:
        fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
        return {"type": "struct", "fields": fields}

    assert merged_schema(None, schema(a="long")) == schema(a="long")
    assert merged_schema(schema(a="long", b="string"), schema(a="long")) is None
    assert merged_schema(schema(a="long"), schema(A="long", b="string")) == schema(a="long", b="string")
    with pytest.raises(ConfigError, match="a string"):
        merged_schema(schema(a="long"), schema(a="string"))


def test_arguments_are_checked(tmp_path: Path, store: MessageStore) -> None:
    with pytest.raises(ConfigError, match="delta or iceberg"):
        archive(tmp_path / "table", store=tmp_path / "store", format="orc")
    with pytest.raises(ConfigError, match="whole topics"):
        archive(tmp_path / "table", store=tmp_path / "store", columns=("tags",))
    with pytest.raises(ConfigError, match="session"):
        archive_on_spark(tmp_path / "table", store=tmp_path / "store", decode=lambda rows: rows)
    with pytest.raises(ConfigError, match="column record"):
        archive(tmp_path / "table", store=tmp_path / "store", body=BodyForm.STORED)
    assert not (tmp_path / "table").exists()


def test_the_command_reports_each_commit(
    tmp_path: Path, store: MessageStore, capsys: pytest.CaptureFixture[str]
) -> None:
    place = [str(tmp_path / "table"), "--no-spark", "--json"]
    assert run(["archive", *place, "--store", str(tmp_path / "store"), "--messages-per-commit", "200"]) == 0
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [step.get("messages") for step in steps] == [200, 100, None]
    assert steps[-1] == {"archived": 300}
    assert run(["compact", *place, "--keep-days", "2"]) == 0
    assert json.loads(capsys.readouterr().out) == {"joined": 8, "made": 4, "expired": 0, "deleted": 0}
    with pytest.raises(ConfigError, match="10s"):
        run(["archive", *place, "--store", str(tmp_path / "store"), "--every", "10"])
