"""Tables in the formats of Delta and Iceberg: the same commits as plain tables, read by the formats' own readers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import DataScan, FileScanTask
from pyiceberg.utils.config import Config
from tests.unit.arrow.stores import open_store, put
from tests.unit.lake.power_cut import PowerCut

from rucola.arrow.offsets import StreamOffsets
from rucola.arrow.topic_dataset import TopicDataset, topic_options
from rucola.common.message_queue import MessageQueue
from rucola.errors import AnotherLogError, ConfigError, TableConflictError
from rucola.lake import archive, archive_raw, compact, restore
from rucola.lake.archiver import Archiver
from rucola.lake.iceberg_catalog import IcebergCatalog
from rucola.lake.iceberg_log import IcebergLog
from rucola.lake.maintenance import compact as join_files
from rucola.lake.table_formats import open_table
from rucola.lake.table_log import Change
from rucola.places.local_place import LocalPlace
from rucola.store.message_store import MessageStore

QUEUE = MessageQueue("flights", "broker-a", 0)


def own_rows(table: Path, format: str) -> pa.Table:
    """Returns the rows of the table, read by the official library of the format."""
    if format == "iceberg":
        catalog = SqlCatalog("rucola", uri=f"sqlite:///{table}/catalog.db", warehouse=f"file://{table}")
        return catalog.load_table("rucola.messages").scan().to_arrow()
    from deltalake import DeltaTable

    return pa.table(DeltaTable(table).to_pyarrow_table())


def same_rows(directory: Path, format: str) -> bool:
    wanted = TopicDataset(topic_options(directory / "store", None, "")).to_table()
    found = own_rows(directory / "table", format).select(wanted.schema.names).cast(wanted.schema)
    order = [(name, "ascending") for name in ("topic", "queueId", "queueOffset")]
    return bool(found.sort_by(order).equals(wanted.sort_by(order)))


def test_each_message_is_there_once(tmp_path: Path, store: MessageStore, format: str) -> None:
    place: Any = {"store": tmp_path / "store", "format": format}
    assert archive(tmp_path / "table", messages_per_commit=80, **place) == 120
    put(store, 120, 30)
    assert archive(tmp_path / "table", **place) == 30
    assert archive(tmp_path / "table", **place) == 0
    assert same_rows(tmp_path, format)
    assert join_files(open_table(tmp_path / "table", format)).after == 4
    assert same_rows(tmp_path, format)
    assert archive(tmp_path / "table", **place) == 0
    assert open_table(tmp_path / "table", format).clean() == 0
    other = open_store(tmp_path / "other" / "store")
    put(other, 8, 400)
    other.shutdown()
    with pytest.raises(AnotherLogError):
        archive(tmp_path / "table", **place | {"store": tmp_path / "other" / "store"})


def test_of_two_commits_of_the_same_offsets_one_is_refused(tmp_path: Path, store: MessageStore, format: str) -> None:
    archive(tmp_path / "table", store=tmp_path / "store", format=format)
    log = open_table(tmp_path / "table", format)
    base = log.snapshot()
    end = base.end_of(QUEUE)
    assert end is not None
    log.commit(base, Change("archive", offsets=StreamOffsets({QUEUE: end + 1})))
    with pytest.raises(TableConflictError):
        log.commit(base, Change("archive", offsets=StreamOffsets({QUEUE: end + 2})))
    assert log.snapshot().end_of(QUEUE) == end + 1


def test_of_two_commits_that_remove_the_same_file_one_is_refused(
    tmp_path: Path, store: MessageStore, format: str
) -> None:
    archive(tmp_path / "table", store=tmp_path / "store", format=format)
    log = open_table(tmp_path / "table", format)
    base = log.snapshot()
    change = Change("expire", removed=(next(iter(base.files.values())),))
    log.commit(base, change)
    with pytest.raises(TableConflictError):
        log.commit(base, change)
    assert len(log.snapshot().files) == 3


def test_two_runs_at_the_same_time(tmp_path: Path, store: MessageStore, format: str) -> None:
    """One archiving run has planned its commit, but a second run commits first, with and without an existing table."""
    for count in (0, 30):
        put(store, 120, count)
        log = open_table(tmp_path / "table", format)
        commit = log.commit

        def late(base: Any, change: Change, commit: Any = commit) -> int:
            archive(tmp_path / "table", store=tmp_path / "store", format=format)
            return int(commit(base, change))

        log.commit = late  # type: ignore[method-assign]
        assert Archiver(log, topic_options(tmp_path / "store", None, "")).step() is None
        assert same_rows(tmp_path, format)


def test_new_columns(tmp_path: Path, store: MessageStore, format: str) -> None:
    archive(tmp_path / "table", store=tmp_path / "store", format=format)
    put(store, 120, 30)
    archive(tmp_path / "table", store=tmp_path / "store", format=format, record=True)
    assert same_rows(tmp_path, format)
    assert own_rows(tmp_path / "table", format).column("record").null_count == 120


def test_an_iceberg_table_with_deleted_rows_is_refused(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other writers may list deleted rows in separate files, which a reader of only the Parquet files would miss."""
    archive(tmp_path / "table", store=tmp_path / "store", format="iceberg")
    planned = DataScan.plan_files

    def with_deletes(self: DataScan) -> list[FileScanTask]:
        return [FileScanTask(task.file, delete_files={task.file}) for task in planned(self)]

    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    with pytest.raises(ConfigError, match="a table without delete files"):
        open_table(tmp_path / "table", "iceberg").snapshot()


def test_files_named_by_a_catalog_are_on_the_disk(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog itself is SQLite's, which syncs it."""
    disk = PowerCut(monkeypatch, tmp_path / "table")
    for number in range(2):
        put(store, 120 + number, 1)
        archive(tmp_path / "table", store=tmp_path / "store", format="iceberg")
        image = disk.image(tmp_path / f"image{number}")
        paths = [path for path in (tmp_path / "table").rglob("*") if path.is_file() and path.name != "catalog.db"]
        assert {path.suffix for path in paths} == {".parquet", ".avro", ".json", ""}  # without suffix: the claim
        for path in paths:
            assert (image / path.relative_to(tmp_path / "table")).read_bytes() == path.read_bytes()


def test_a_log_comes_back(tmp_path: Path, store: MessageStore, format: str) -> None:
    (tmp_path / "store" / "config").mkdir(exist_ok=True)
    (tmp_path / "store" / "config" / "topics.json").write_text("{}")
    for number in range(2):
        put(store, 120 + 20 * number, 20)
        assert archive_raw(tmp_path / "raw", tmp_path / "store", format=format) > 20
    assert compact(tmp_path / "raw", format=format).joined == 2
    restore(tmp_path / "raw", tmp_path / "new", format=format)
    for path in (tmp_path / "new" / "commitlog").iterdir():
        assert (tmp_path / "store" / "commitlog" / path.name).read_bytes() == path.read_bytes()
    assert (tmp_path / "new" / "config" / "topics.json").read_text() == "{}"
    with pytest.raises(ConfigError, match="kind messages; this one is of kind raw"):
        archive(tmp_path / "raw", store=tmp_path / "store", format=format)


def test_files_of_killed_runs_are_deleted_after_a_day(tmp_path: Path, store: MessageStore, format: str) -> None:
    archive(tmp_path / "table", store=tmp_path / "store", format=format)
    mine = next((tmp_path / "table").rglob("topic=flights/*/*.parquet"))
    left, begun, fresh, text = (
        mine.with_name(name)
        for name in (f"{1:032x}.parquet", f".{2:032x}-{3:032x}.parquet", f"{4:032x}.parquet", "notes.txt")
    )
    for path in (left, begun, fresh, text):
        path.write_bytes(b"x")
    for path in (mine, left, begun, text):
        os.utime(path, (0, 0))
    assert compact(tmp_path / "table", format=format).deleted == 2
    assert [path.exists() for path in (mine, left, begun, fresh, text)] == [True, False, False, True, True]
    assert same_rows(tmp_path, format)


def test_an_iceberg_table_in_the_users_catalog(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "warehouse").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__URI", f"sqlite:///{tmp_path}/prod.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    place: dict[str, Any] = {"format": "iceberg", "catalog": "prod", "identifier": "sales.orders"}
    archive(tmp_path / "table", store=tmp_path / "store", **place)
    put(store, 120, 5)
    assert archive(tmp_path / "table", store=tmp_path / "store", **place) == 5
    assert load_catalog("prod").load_table("sales.orders").scan().to_arrow().num_rows == 125
    assert compact(tmp_path / "table", **place).made == 4
    assert not (tmp_path / "table" / "catalog.db").exists()
    elsewhere = place | {"identifier": "sales.other"}
    assert archive(tmp_path / "elsewhere", store=tmp_path / "store", **elsewhere) == 125
    with pytest.raises(ConfigError, match=f"{tmp_path}/table, where the catalog has sales.orders"):
        archive(tmp_path / "elsewhere", store=tmp_path / "store", **place)


def test_an_iceberg_table_of_another_program_is_refused(tmp_path: Path, store: MessageStore) -> None:
    place = LocalPlace(tmp_path / "table")
    IcebergCatalog(place).create(pa.schema({"a": pa.int64()}), f"file://{place.root}", {})
    with pytest.raises(ConfigError, match="a table that rucola made"):
        archive(tmp_path / "table", store=tmp_path / "store", format="iceberg")


def test_a_table_whose_commits_would_be_retried_is_refused(tmp_path: Path, store: MessageStore) -> None:
    """PyIceberg would rebase a late commit, and its messages would be in the table twice."""
    archive(tmp_path / "table", store=tmp_path / "store", format="iceberg")
    table = IcebergCatalog(LocalPlace(tmp_path / "table")).load()
    assert table is not None
    with table.transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "4"})
    put(store, 120, 5)
    with pytest.raises(ConfigError, match="num-retries 0"):
        archive(tmp_path / "table", store=tmp_path / "store", format="iceberg")


def test_an_iceberg_commit_whose_answer_is_lost_is_recognised(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = LocalPlace(tmp_path / "table")
    log = IcebergLog(place, IcebergCatalog(place))
    write = log._write_snapshot

    def lossy(*arguments: Any) -> None:
        write(*arguments)
        raise CommitFailedException("the answer was lost")

    monkeypatch.setattr(log, "_write_snapshot", lossy)
    step = Archiver(log, topic_options(tmp_path / "store", None, "")).step()
    assert step is not None
    assert step.messages == 120
    assert same_rows(tmp_path, "iceberg")


def test_files_of_others_are_left_alone(tmp_path: Path, store: MessageStore, format: str) -> None:
    """A table may be made in a directory that has other files and tables."""
    outer = tmp_path / "table"
    archive(outer, store=tmp_path / "store", format=format)
    archive(outer / "inner", store=tmp_path / "store", format="delta")
    archive_raw(outer / "raw", tmp_path / "store", format="delta")
    others = ["x.parquet", "sub/x.parquet", "topic=z/storeDay=2020-01-01/part-0.parquet", "_rucola/notes.txt"]
    others += ["_rucola/55.json", f"topic=z/{1:032x}.parquet", f"sub/topic=z/storeDay=2020-01-01/{1:032x}.parquet"]
    for name in others:
        (outer / name).parent.mkdir(parents=True, exist_ok=True)
        (outer / name).write_text("mine")
    before = {path for path in outer.rglob("*") if path.is_file()}
    for path in before:
        os.utime(path, (0, 0))
    assert compact(outer, format=format).deleted == 0
    assert before <= set(outer.rglob("*"))
    restore(outer / "raw", tmp_path / "new")


@pytest.mark.parametrize("name", ["a%20b", "a\\b", "a\nb", "a#b", "a?b"])
def test_names_that_libraries_read_as_urls_are_refused(
    tmp_path: Path, store: MessageStore, format: str, name: str
) -> None:
    with pytest.raises(ConfigError, match="without %"):
        archive(tmp_path / name, store=tmp_path / "store", format=format)
    assert not (tmp_path / name).exists()


def test_odd_numbers_are_refused(tmp_path: Path, store: MessageStore) -> None:
    table, place = tmp_path / "table", tmp_path / "store"
    archive(table, store=place)
    for days in (0, -1):
        with pytest.raises(ConfigError, match="1 or more"):
            compact(table, keep_days=days)
    put(store, 120, 5)
    for wrong in ({"messages_per_commit": 0}, {"keys": frozenset(("k3",))}):
        with pytest.raises(ConfigError, match=r"1 or more|whole topics"):
            archive(table, store=place, **wrong)
    with pytest.raises(ConfigError, match="the name of the store's broker"):
        archive_raw(tmp_path / "raw", place, broker_name="")
    assert archive(table, store=place) == 5


def test_an_iceberg_table_that_others_rewrite_and_expire(tmp_path: Path, store: MessageStore) -> None:
    """None of our snapshots is left, which had the archived offsets."""
    place: dict[str, Any] = {"store": tmp_path / "store", "format": "iceberg"}
    archive(tmp_path / "table", **place)
    catalog = SqlCatalog("rucola", uri=f"sqlite:///{tmp_path}/table/catalog.db", warehouse=f"file://{tmp_path}/table")
    table = catalog.load_table("rucola.messages")
    table.overwrite(table.scan().to_arrow())
    newest = table.current_snapshot()
    old = [one.snapshot_id for one in table.snapshots() if one != newest]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    put(store, 120, 10)
    assert archive(tmp_path / "table", **place) == 10
    assert same_rows(tmp_path, "iceberg")
    assert compact(tmp_path / "table", format="iceberg").expired == 0


@pytest.mark.parametrize("wait", [0, -1, float("nan")])
def test_a_wait_between_runs_is_a_time(tmp_path: Path, store: MessageStore, wait: float) -> None:
    with pytest.raises(ConfigError, match="more than 0 seconds"):
        archive(tmp_path / "table", store=tmp_path / "store", every_s=wait)
