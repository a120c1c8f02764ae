"""Archive and restore of golden stores: the bytes are the same, and our engine serves every record.

``python -m tests.spark.lake goldens`` does this with every golden store.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.golden.loader import BROKER_STORES, STORES, load, load_files, unpack, write_files
from tests.golden.opening import opened
from tests.unit.arrow.stores import open_store, put
from tests.unit.lake.logs import delta_log
from tests.unit.store.stores import everything, fill
from tests.unit.store.test_queue_kinds import inner_batch, light
from tests.unit.store.test_queue_kinds import opened as store_with

from rucola.cli.spark import run
from rucola.errors import AnotherLogError, ConfigError, DataLossError, FormatError
from rucola.lake import archive_raw, restore
from rucola.lake.maintenance import compact
from rucola.lake.raw_archiver import RawArchiver
from rucola.lake.table_log import DataFile, TableKind
from rucola.runtime.files import Files
from rucola.store.doctor.rebuild import rebuild

restoring = importlib.import_module("rucola.lake.restore")  # the package has a function of this name
SAMPLE = (
    "clean_stop_bad_crc_earlier",
    "killed_garbage_tail",
    "killed_zero_length_segment",
    "log_min_raised",
    "rolling",
    "transaction_flags",
)


def digests(store: Path) -> dict[str, str]:
    """Returns digests of the files that a restore must bring back: log and configuration."""
    paths = [path for part in ("commitlog", "config") for path in (store / part).rglob("*") if path.is_file()]
    return {path.relative_to(store).as_posix(): sha256(path.read_bytes()).hexdigest() for path in paths}


def queue_files(store: Path) -> set[str]:
    return {path.relative_to(store).as_posix() for path in (store / "consumequeue").rglob("*")}


@pytest.mark.parametrize("name", SAMPLE)
def test_the_same_bytes_come_back(tmp_path: Path, name: str) -> None:
    write_files(load_files(STORES, name), tmp_path / "store")
    archive_raw(tmp_path / "table", tmp_path / "store")
    restored = restore(tmp_path / "table", tmp_path / "new", rebuild=False)
    assert digests(tmp_path / "new") == digests(tmp_path / "store") != {}
    assert {f"commitlog/{one.name}": one.sha256 for one in restored}.items() <= digests(tmp_path / "new").items()


def test_configuration_comes_back_as_well(tmp_path: Path) -> None:
    write_files(load_files(BROKER_STORES, "delay_clean"), tmp_path / "store")
    archive_raw(tmp_path / "table", tmp_path / "store")
    assert archive_raw(tmp_path / "table", tmp_path / "store") == 0  # the store has not changed
    restore(tmp_path / "table", tmp_path / "new", rebuild=False)
    found = digests(tmp_path / "new")
    assert found == digests(tmp_path / "store")
    assert any(path.startswith("config/") for path in found)


def test_queues_are_built_from_a_restored_log(tmp_path: Path) -> None:
    case = unpack("rolling", tmp_path / "store")
    archive_raw(tmp_path / "table", tmp_path / "store")
    restore(tmp_path / "table", tmp_path / "new", broker_conf={"storePathCommitLog": "/elsewhere"})
    assert digests(tmp_path / "new") == digests(tmp_path / "store")
    assert queue_files(tmp_path / "new") == queue_files(tmp_path / "store") != set()
    store = opened(load("rolling"), tmp_path / "new")
    for queue in case.expect["queues"]:
        topic, queue_id = queue["topic"].encode(), queue["queueId"]
        assert (store.min_queue_offset(topic, queue_id), store.max_queue_offset(topic, queue_id)) == (
            queue["min"],
            queue["max"],
        )
        found = [store.queue_unit(topic, queue_id, unit["queueOffset"]) for unit in queue["units"]]
        assert found == [(unit["physicalOffset"], unit["size"], unit["tagsCode"]) for unit in queue["units"]]
    store.shutdown()


SIZES = {
    "mapped_file_size_consume_queue": 4000,
    "mapper_file_size_batch_consume_queue": 920,
    "max_hash_slot_num": 300,
    "max_index_num": 700,
}
"""Sizes that are neither RocketMQ's defaults nor those of other tests."""


def lengths(store: Path) -> dict[str, set[int]]:
    """Returns the lengths of the files of queues and index."""
    parts = ("consumequeue", "batchconsumequeue", "index")
    return {part: {path.stat().st_size for path in (store / part).rglob("*") if path.is_file()} for part in parts}


def with_sizes(store: Path) -> Path:
    """Makes a store with these sizes."""
    running = store_with(store, **SIZES)
    fill(running, 500)
    for number in range(25):
        running.put_message(inner_batch(number, 2))
    running.dispatch()
    running.shutdown()
    (store / "config").mkdir()
    batch = {"topicName": "BatchTopic", "attributes": {"queue.type": "BatchCQ"}}
    (store / "config/topics.json").write_text(json.dumps({"topicConfigTable": {"BatchTopic": batch}}))
    return store


def test_the_sizes_of_the_source_come_back_without_a_configuration(tmp_path: Path) -> None:
    store = with_sizes(tmp_path / "store")
    archive_raw(tmp_path / "table", store)
    assert archive_raw(tmp_path / "table", store) == 0
    restore(tmp_path / "table", tmp_path / "new")
    assert lengths(tmp_path / "new") == lengths(store)
    assert lengths(store)["consumequeue"] == {4000}
    given = {"mapedFileSizeConsumeQueue": "2000"}
    restore(tmp_path / "table", tmp_path / "given", broker_conf=given)
    assert lengths(tmp_path / "given") == lengths(store) | {"consumequeue": {2000}}


def test_the_broker_opens_what_was_restored(tmp_path: Path) -> None:
    """The store has light queues, and extensions of queues."""
    more = {"enable_lmq": True, "enable_multi_dispatch": True, "enable_consume_queue_ext": True}
    store = tmp_path / "store"
    running = store_with(store, **SIZES, **more)
    fill(running, 100)
    running.put_message(light(0, "%LMQ%a,%LMQ%b"))
    running.dispatch()
    seen = everything(running)
    running.shutdown()
    archive_raw(tmp_path / "table", store)
    restore(tmp_path / "table", tmp_path / "new")
    assert queue_files(tmp_path / "new") == queue_files(store)
    assert (tmp_path / "new/consumequeue_ext").exists()
    again = store_with(tmp_path / "new", **SIZES, **more)
    assert everything(again) == seen
    again.shutdown()


def test_sizes_that_no_file_tells_any_more_are_kept(tmp_path: Path) -> None:
    store = with_sizes(tmp_path / "store")
    before = lengths(store)
    archive_raw(tmp_path / "table", store)
    for part in before:
        rmtree(store / part)
    archive_raw(tmp_path / "table", store)
    restore(tmp_path / "table", tmp_path / "new")
    assert lengths(tmp_path / "new") == before


def test_changed_sizes_alone_are_archived(tmp_path: Path) -> None:
    store = with_sizes(tmp_path / "store")
    archive_raw(tmp_path / "table", store)
    rmtree(store / "consumequeue")
    rebuild(str(store), options={"mappedFileSizeConsumeQueue": "6000"})
    assert archive_raw(tmp_path / "table", store) == 1
    restore(tmp_path / "table", tmp_path / "new")
    assert lengths(tmp_path / "new") == lengths(store)
    assert lengths(store)["consumequeue"] == {6000}


def test_a_size_that_no_configuration_may_have_is_not_archived(tmp_path: Path) -> None:
    """A file that was cut must not end this run or the next one."""
    store = with_sizes(tmp_path / "store")
    extension = store / "consumequeue_ext/T0/0" / f"{0:020d}"
    extension.parent.mkdir(parents=True)
    extension.write_bytes(b"short")
    archive_raw(tmp_path / "table", store)
    assert archive_raw(tmp_path / "table", store) == 0
    restore(tmp_path / "table", tmp_path / "new", rebuild=False)


def test_a_table_of_an_older_version_has_no_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = with_sizes(tmp_path / "store")
    with monkeypatch.context() as older:
        older.setattr("rucola.lake.raw_archiver.sizes_of", lambda *_: {})
        archive_raw(tmp_path / "table", store)
    restore(tmp_path / "table", tmp_path / "old")
    assert lengths(tmp_path / "old")["consumequeue"] == {6_000_000}
    assert archive_raw(tmp_path / "table", store) == 1  # today's version adds the row
    restore(tmp_path / "table", tmp_path / "new")
    assert lengths(tmp_path / "new") == lengths(store)


@pytest.mark.parametrize(
    "content",
    [
        *(
            b"",
            b"[]",
            b"{",
            b"[" * 5000,
            b'{"maxIndexNum":5}',
            b'{"maxIndexNum":"-5"}',
            b'{"maxIndexNum":"9999999999"}',
        ),
        *(b'{"storePathRootDir":"/"}', b'{"maxIndexNum":"\xd9\xa1"}'),
    ],
)
def test_sizes_in_a_table_have_bounds(content: bytes | None, tmp_path: Path) -> None:
    store = with_sizes(tmp_path / "store")
    archive_raw(tmp_path / "table", store)
    with_rows(tmp_path / "table", "sizes", lambda rows: rows[0].update(record=content))
    with pytest.raises(FormatError, match="sizes of queue and index files"):
        restore(tmp_path / "table", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "table"]


def test_a_damaged_log_is_restored_without_queues(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_files(load_files(STORES, "rolling"), tmp_path / "store")
    segment = min((tmp_path / "store" / "commitlog").iterdir())
    content = bytearray(segment.read_bytes())
    content[411 + 4 : 411 + 8] = b"none"  # the magic code of the second record
    segment.write_bytes(content)
    archive_raw(tmp_path / "table", tmp_path / "store")
    restore(tmp_path / "table", tmp_path / "new")
    assert digests(tmp_path / "new") == digests(tmp_path / "store")
    assert not (tmp_path / "new" / "consumequeue").exists()
    assert "the broker builds them" in caplog.text


def test_a_log_grows_in_the_archive(tmp_path: Path) -> None:
    """A log is archived while its store runs, and again after the stop; each commit archives only some segments."""
    log = delta_log(tmp_path / "table", TableKind.RAW)
    store = open_store(tmp_path / "store")
    for count in range(0, 300, 100):
        put(store, count, 100)
        assert list(RawArchiver(log, str(tmp_path / "store"), segments_per_commit=1).steps())
    store.shutdown()
    end = max((tmp_path / "store" / "commitlog").iterdir())
    content = bytearray(end.read_bytes())
    content[-100:-90] = b"after it"[:8] + b"\0\0"
    end.write_bytes(content)
    archive_raw(tmp_path / "table", tmp_path / "store")
    store = open_store(tmp_path / "store")  # cuts off the bytes after the log
    put(store, 300, 200)
    store.shutdown()
    step = RawArchiver(log, str(tmp_path / "store"), segments_per_commit=1).step()
    assert step is not None
    assert step.lag > 0
    restore(tmp_path / "table", tmp_path / "half", rebuild=False)  # the bytes after the log are gone
    archive_raw(tmp_path / "table", tmp_path / "store")
    assert compact(log).before > 2
    restore(tmp_path / "table", tmp_path / "new", rebuild=False)
    assert digests(tmp_path / "new") == digests(tmp_path / "store")
    rows = [
        row["kind"]
        for one in log.snapshot().files.values()
        for row in pq.read_table(tmp_path / "table" / one.path, columns=["kind"]).to_pylist()
    ]
    assert rows.count("record") == 500


def test_a_table_may_hold_several_brokers(tmp_path: Path) -> None:
    for name, count in (("a", 10), ("b", 20)):
        store = open_store(tmp_path / name)
        put(store, 0, count)
        store.shutdown()
        archive_raw(tmp_path / "table", tmp_path / name, broker_name=name)
    with pytest.raises(ConfigError, match="table: a, b"):
        restore(tmp_path / "table", tmp_path / "new", rebuild=False)
    restore(tmp_path / "table", tmp_path / "new", broker_name="b", rebuild=False)
    assert digests(tmp_path / "new") == digests(tmp_path / "b")


def test_nothing_is_overwritten_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    write_files(load_files(STORES, "rolling"), tmp_path / "store")
    archive_raw(tmp_path / "table", tmp_path / "store")
    with pytest.raises(ConfigError, match="no store is ever overwritten"):
        restore(tmp_path / "table", tmp_path / "store")
    files = delta_log(tmp_path / "table", TableKind.RAW).snapshot().files
    path = tmp_path / "table" / next(one.path for one in files.values() if one.partition["part"] == "log")
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"\.parquet"):
        restore(tmp_path / "table", tmp_path / "new", rebuild=False)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["store", "table"]


def test_a_target_that_appears_meanwhile_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "file").write_text("kept")
    assert not Files().publish_directory(str(tmp_path / "one"), str(tmp_path / "two"))
    assert (tmp_path / "two" / "file").read_text() == "kept"
    (tmp_path / "two" / "file").unlink()
    assert Files().publish_directory(str(tmp_path / "one"), str(tmp_path / "two"))


def test_another_log_or_a_gap_is_refused(tmp_path: Path) -> None:
    for name, first, count in (("one", 0, 300), ("other", 1, 300), ("short", 0, 10)):
        store = open_store(tmp_path / name)
        put(store, first, count)
        store.shutdown()
    archive_raw(tmp_path / "table", tmp_path / "one")
    with pytest.raises(AnotherLogError, match="#log@broker-a"):
        archive_raw(tmp_path / "table", tmp_path / "other")
    with pytest.raises(DataLossError, match="#log@broker-a"):
        archive_raw(tmp_path / "table", tmp_path / "short")


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_files(load_files(STORES, "rolling"), tmp_path / "store")
    table = [str(tmp_path / "table"), "--no-spark"]
    assert run(["archive", *table, "--raw", "--store", str(tmp_path / "store")]) == 0
    assert "rows archived" in capsys.readouterr().out
    assert run(["restore", *table, str(tmp_path / "new"), "--json", "--no-rebuild"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["segments"] == len(lines) - 1 == len(list((tmp_path / "new" / "commitlog").iterdir()))
    with pytest.raises(ConfigError, match="--raw"):
        run(["archive", *table, "--raw", "--store", "s", "--topic", "t"])


def with_rows(table: Path, part: str, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Changes the rows of a raw table's data file of a kind, as somebody could who made the table."""
    (path,) = table.glob(f"**/part={part}/**/*.parquet")
    before = pq.ParquetFile(path).read()
    rows = before.to_pylist()
    change(rows)
    path.chmod(0o644)
    pq.write_table(pa.Table.from_pylist(rows, before.schema), path)


@pytest.mark.parametrize(
    "name", ["../../outside.txt", "/OUTSIDE/outside.txt", "sub/topics.json", "..", ".", "", "a\0b", "new\nline", None]
)
def test_a_name_in_the_table_leads_nowhere_else(name: str | None, tmp_path: Path) -> None:
    write_files(load_files(BROKER_STORES, "delay_clean"), tmp_path / "store")
    archive_raw(tmp_path / "table", tmp_path / "store")
    outside = tmp_path / "outside"
    outside.mkdir()
    wanted = name.replace("/OUTSIDE", str(outside)) if name else name
    with_rows(tmp_path / "table", "config", lambda rows: rows[0].update(name=wanted))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FormatError, match="the name and content of a file in config"):
        restore(tmp_path / "table", tmp_path / "new", rebuild=False)
    assert sorted(tmp_path.rglob("*")) == before


def test_restored_tables_are_private(tmp_path: Path) -> None:
    write_files(load_files(BROKER_STORES, "delay_clean"), tmp_path / "store")
    archive_raw(tmp_path / "table", tmp_path / "store")
    restore(tmp_path / "table", tmp_path / "new", rebuild=False)
    tables = list((tmp_path / "new/config").iterdir())
    assert tables and all(path.stat().st_mode & 0o777 == 0o600 for path in tables)


@pytest.mark.parametrize("path", ["../x.parquet", "/etc/x.parquet", "a/../../x.parquet", "file:///x.parquet", ""])
def test_a_table_names_no_file_outside_of_its_directory(path: str) -> None:
    with pytest.raises(FormatError, match="below the table's directory"):
        DataFile.from_json({"path": path, "rows": 1, "size": 1, "partition": {}, "statistics": {}})


@pytest.mark.parametrize(
    ("column", "value"), [("segmentBytes", "99999999999"), ("segmentBytes", "-1"), ("segment", "x")]
)
def test_an_impossible_segment_is_refused(column: str, value: str) -> None:
    file = DataFile("a.parquet", 1, 1, {"segment": "0", "segmentBytes": "100"} | {column: value})
    with pytest.raises(FormatError, match=f"as {column}"):
        restoring._segments([file])
