"""The log of a Delta table: what a power cut leaves, lost answers, other programs, and readers of streams."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from tests.unit.arrow.stores import open_store, put
from tests.unit.lake.logs import SCHEMA, delta_log
from tests.unit.lake.power_cut import PowerCut

from rucola.arrow.offsets import StreamOffsets
from rucola.arrow.topic_dataset import topic_options
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, DiskError, FormatError, TableConflictError
from rucola.lake import archive, archive_raw, compact, restore
from rucola.lake.archiver import Archiver
from rucola.lake.delta_log import LOG
from rucola.lake.maintenance import compact as join_files
from rucola.lake.table_log import Change, TableKind
from rucola.store.message_store import MessageStore

QUEUE = MessageQueue("t", "b", 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    one = open_store(tmp_path / "store")
    put(one, 0, 60)
    yield one
    one.shutdown()


def places(table: Path) -> list[tuple[str, int, int]]:
    rows = pa.table(DeltaTable(table).to_pyarrow_table()).select(["topic", "queueId", "queueOffset"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def add(table: Path, end: int) -> Change:
    return Change("archive", offsets=StreamOffsets({QUEUE: end}), schema=None if table.exists() else SCHEMA)


def test_a_commit_is_on_the_disk_when_it_is_reported(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the checkpoint: the table gets one after 16 commits."""
    disk = PowerCut(monkeypatch, tmp_path / "table")
    run = Archiver(delta_log(tmp_path / "table"), topic_options(tmp_path / "store", None, ""))
    for number in range(18):
        put(store, 60 + number, 1)
        assert run.step() is not None
        if number in (0, 1, 14, 15, 16, 17):
            image = disk.image(tmp_path / f"image{number}")
            assert places(image) == places(tmp_path / "table")
            assert delta_log(image).snapshot().offsets == delta_log(tmp_path / "table").snapshot().offsets
    assert list((tmp_path / "table" / LOG).glob("*.checkpoint.parquet"))


def test_commits_of_another_run_are_on_the_disk_before_the_next_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run was killed between its commit and its sync."""
    table = tmp_path / "table"
    log = delta_log(table)
    log.commit(log.snapshot(), add(table, 1))
    disk = PowerCut(monkeypatch, table)
    with monkeypatch.context() as killed:
        killed.setattr(type(log.place), "sync", lambda *_: None)
        log.commit(log.snapshot(), add(table, 2))
    write = log._write_version

    def looked(*arguments: Any) -> None:
        assert (disk.image(tmp_path / "image") / LOG / f"{1:020}.json").read_bytes()
        write(*arguments)

    monkeypatch.setattr(log, "_write_version", looked)
    assert log.commit(log.snapshot(), add(table, 3)) == 2


@pytest.mark.few(2)
@pytest.mark.parametrize("left", [0, 1, 0.3, 0.9, "line", "zeros"])
def test_a_torn_newest_commit_is_refused_with_the_way_out(
    tmp_path: Path, store: MessageStore, left: float | str
) -> None:
    table = tmp_path / "table"
    for count in (0, 20):
        put(store, 60, count)
        archive(table, store=tmp_path / "store")
    before = places(table)
    put(store, 80, 20)
    archive(table, store=tmp_path / "store")
    newest = table / LOG / f"{2:020}.json"
    content = newest.read_bytes()
    newest.write_bytes(
        b"\0" * len(content)
        if left == "zeros"
        else b"".join(content.splitlines(keepends=True)[:-1])
        if isinstance(left, str)
        else content[: int(len(content) * left) if left < 1 else int(left)]
    )
    for job in (
        lambda: archive(table, store=tmp_path / "store"),
        lambda: compact(table),
        lambda: delta_log(table).snapshot(),
        lambda: delta_log(table).clean(0),
    ):
        with pytest.raises(FormatError, match=f"{2:020}.json.*remove this file"):
            job()
    newest.unlink()
    assert places(table) == before
    assert archive(table, store=tmp_path / "store") == 20
    assert len(places(table)) == 100 == len(set(places(table)))


def test_a_torn_checkpoint_is_refused_with_the_way_out(tmp_path: Path) -> None:
    table = tmp_path / "table"
    log = delta_log(table)
    for number in range(17):
        log.commit(log.snapshot(), add(table, number))
    (checkpoint,) = (table / LOG).glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:200])
    with pytest.raises(FormatError, match=f"{checkpoint.name}.*remove it and _last_checkpoint"):
        delta_log(table).snapshot()
    checkpoint.unlink()
    (table / LOG / "_last_checkpoint").unlink()
    assert delta_log(table).snapshot().end_of(QUEUE) == 16


def lost_answers(monkeypatch: pytest.MonkeyPatch, log: Any, then: Callable[[], object]) -> None:
    """The next commit is made, but an error is reported."""
    write, left = log._write_version, [1]

    def lossy(*arguments: Any) -> None:
        write(*arguments)
        if left and left.pop():
            then()
            raise CommitFailedError("the answer was lost")

    monkeypatch.setattr(log, "_write_version", lossy)


@pytest.mark.parametrize("followed", [False, True])
def test_a_commit_whose_answer_is_lost_is_recognised(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch, followed: bool
) -> None:
    table = tmp_path / "table"
    archive(table, "other", store=tmp_path / "store")

    def other_run() -> None:
        if followed:
            archive(table, "größe", store=tmp_path / "store")

    log = delta_log(table)
    lost_answers(monkeypatch, log, other_run)
    assert list(Archiver(log, topic_options(tmp_path / "store", "flights", "")).steps())
    archive(table, store=tmp_path / "store")
    assert len(places(table)) == 60 == len(set(places(table)))


def test_an_error_without_a_commit_leaves_the_files_that_may_still_be_committed(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    log = delta_log(table)

    def failing(*_: Any) -> None:
        raise CommitFailedError("no answer")

    monkeypatch.setattr(log, "_write_version", failing)
    with pytest.raises(DiskError, match="commit failed: no answer"):
        Archiver(log, topic_options(tmp_path / "store", None, "")).step()
    assert list(table.rglob("*.parquet"))
    assert list((table / "_rucola").glob("*.json"))


def test_a_conflict_leaves_no_state(tmp_path: Path) -> None:
    table = tmp_path / "table"
    log = delta_log(table)
    base = log.snapshot()
    log.commit(base, add(table, 1))
    with pytest.raises(TableConflictError):
        log.commit(base, add(table / "none", 2))
    assert len(list((table / "_rucola").glob("*.json"))) == 1


def news(table: Path) -> list[str]:
    """The data files that a reader of the table's stream of changes gets, in the order of the versions."""
    found = []
    for path in sorted((table / LOG).glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        found += [one["add"]["path"] for one in actions if "add" in one and one["add"]["dataChange"]]
        assert not [one for one in actions if "remove" in one and one["remove"]["dataChange"]]
    return found


def test_a_compaction_is_no_news_for_readers_of_a_stream(tmp_path: Path, store: MessageStore) -> None:
    table = tmp_path / "table"
    files = set()
    for number in range(3):
        archive(table, store=tmp_path / "store")
        files |= set(delta_log(table).snapshot().files)
        put(store, 60 + 20 * number, 20)
        assert compact(table).made == (3 if number else 0) + (number > 0)
    read = news(table)
    assert len(read) == len(set(read)) == 12
    assert sum(DeltaTable(table).get_add_actions(flatten=True)["num_records"].to_pylist()) == 100


def test_new_columns_and_rows_are_one_version(tmp_path: Path, store: MessageStore) -> None:
    table = tmp_path / "table"
    archive(table, store=tmp_path / "store")
    put(store, 60, 20)
    archive(table, store=tmp_path / "store", record=True)
    assert DeltaTable(table).version() == 1
    assert pa.table(DeltaTable(table).to_pyarrow_table()).column("record").null_count == 60


def test_the_table_of_another_program_is_refused(tmp_path: Path, store: MessageStore) -> None:
    write_deltalake(tmp_path / "table", pa.table({"a": [1]}))
    with pytest.raises(ConfigError, match="a table that rucola made"):
        archive(tmp_path / "table", store=tmp_path / "store")
    assert DeltaTable(tmp_path / "table").version() == 0


def test_other_programs_may_rewrite_the_files(tmp_path: Path, store: MessageStore) -> None:
    """Delta keeps the columns of the partition out of the files that it writes."""
    table = tmp_path / "table"
    for number in range(3):
        put(store, 60 + 20 * number, 20)
        archive(table, store=tmp_path / "store")
    DeltaTable(table).optimize.compact()
    put(store, 120, 20)
    assert archive(table, store=tmp_path / "store") == 20
    before = places(table)
    assert compact(table).joined == 8
    assert places(table) == before
    assert len(before) == 140 == len(set(before))


def test_a_log_is_restored_from_rewritten_files(tmp_path: Path, store: MessageStore) -> None:
    table = tmp_path / "raw"
    for number in range(3):
        put(store, 60 + 20 * number, 20)
        archive_raw(table, tmp_path / "store")
    DeltaTable(table).optimize.z_order(["size"])
    put(store, 120, 20)
    archive_raw(table, tmp_path / "store")
    compact(table)
    DeltaTable(table).optimize.compact()
    restore(table, tmp_path / "new")
    restored = sorted((tmp_path / "new" / "commitlog").iterdir())
    assert len(restored) == 2
    for path in restored:
        assert (tmp_path / "store" / "commitlog" / path.name).read_bytes() == path.read_bytes()
    assert delta_log(table, TableKind.RAW).snapshot().kind is TableKind.RAW


def test_a_table_that_was_removed_is_begun_again(tmp_path: Path, store: MessageStore) -> None:
    """A run that goes on has seen versions that are gone."""
    table = tmp_path / "table"
    run = Archiver(delta_log(table), topic_options(tmp_path / "store", None, ""))
    for number in range(3):
        assert list(run.steps())
        put(store, 60 + 20 * number, 20)
    shutil.rmtree(table)
    assert [step.version for step in run.steps()] == [0]
    put(store, 120, 20)
    shutil.rmtree(table)
    archive(table, "other", store=tmp_path / "store")
    assert [step.version for step in run.steps()] == [1]
    found = places(table)
    assert len(found) == 140 == len(set(found))


def test_a_removed_table_may_have_more_versions_than_before(tmp_path: Path, store: MessageStore) -> None:
    table = tmp_path / "table"
    run = Archiver(delta_log(table), topic_options(tmp_path / "store", None, ""))
    assert list(run.steps())
    shutil.rmtree(table)
    for number in range(4):
        put(store, 60 + 10 * number, 10)
        archive(table, store=tmp_path / "store")
    put(store, 100, 10)
    assert [step.version for step in run.steps()] == [4]
    assert set(run._table.snapshot().files) == set(delta_log(table).snapshot().files)
    found = places(table)
    assert len(found) == 110 == len(set(found))


def test_a_commit_while_a_snapshot_is_taken(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files and archived offsets are those of one version: else ``topic_table`` would lack the rows of the commit."""
    table = tmp_path / "table"
    archive(table, store=tmp_path / "store")
    put(store, 60, 20)
    for log in (delta_log(table), delta_log(table)):
        log.snapshot()
        find = log._state_id

        def late(opened: Any, find: Callable[[Any], int] = find) -> int:
            put(store, 80, 5)
            archive(table, store=tmp_path / "store")
            return find(opened)

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(log, "_state_id", late)
            found = log.snapshot()
        assert sum(one.rows for one in found.files.values()) == sum(found.offsets.offsets.values())
        assert found.version < delta_log(table).snapshot().version


def test_a_compaction_that_crosses_one_of_another_program(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta's own rules would accept that both remove the same files, and each row would be there twice."""
    table = tmp_path / "table"
    for number in range(3):
        archive(table, store=tmp_path / "store")
        put(store, 60 + 20 * number, 20)
    log = delta_log(table)
    write = log._write_version

    def late(*arguments: Any) -> None:
        DeltaTable(table).optimize.compact()
        write(*arguments)

    monkeypatch.setattr(log, "_write_version", late)
    assert join_files(log).after == 0
    found = places(table)
    assert len(found) == 100 == len(set(found))


def test_a_run_that_goes_on_sees_commits_of_others(tmp_path: Path, store: MessageStore) -> None:
    table = tmp_path / "table"
    run = Archiver(delta_log(table), topic_options(tmp_path / "store", None, ""))
    for number in range(4):
        assert list(run.steps())
        put(store, 60 + 20 * number, 20)
        if number == 1:
            DeltaTable(table).optimize.compact()
        if number == 2:
            archive(table, store=tmp_path / "store")
            assert list(run.steps()) == []
            put(store, 120, 10)
            DeltaTable(table).optimize.compact()
    assert list(run.steps())
    found = places(table)
    assert len(found) == 150 == len(set(found))


def test_a_copy_of_a_table_is_a_table(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", store=tmp_path / "store")
    shutil.copytree(tmp_path / "table", tmp_path / "copy")
    put(store, 60, 10)
    assert archive(tmp_path / "copy", store=tmp_path / "store") == 10
    assert archive(tmp_path / "table", store=tmp_path / "store") == 10


def test_a_table_that_was_set_back_is_refused(tmp_path: Path, store: MessageStore) -> None:
    """Its archived offsets promise rows that are gone: they would be missing in between."""
    table = tmp_path / "table"
    for number in range(2):
        archive(table, store=tmp_path / "store")
        put(store, 60 + 10 * number, 10)
    DeltaTable(table).restore(0)
    DeltaTable(table).optimize.compact()
    for job in (lambda: archive(table, store=tmp_path / "store"), lambda: compact(table)):
        with pytest.raises(ConfigError, match="set back to an older version; archive into another table"):
            job()
    DeltaTable(table).restore(1)
    with pytest.raises(ConfigError, match="set back"):
        delta_log(table).snapshot()
