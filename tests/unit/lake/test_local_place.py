"""Tables from somebody else: no link in them is followed, only files are opened, and what they say is checked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.arrow.stores import open_store, put
from tests.unit.lake.logs import SCHEMA, delta_log

from rucola.cli.main import main
from rucola.errors import ConfigError, ForeignEntryError, FormatError, RucolaError
from rucola.lake import archive, archive_raw, restore
from rucola.lake.maintenance import compact
from rucola.lake.table_formats import open_table
from rucola.lake.table_log import Change
from rucola.places.local_place import LocalPlace
from rucola.runtime.files import Files

OLD_S = 1_000_000_000


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of a small store with two commits."""
    store = open_store(tmp_path / "store")
    for first in (0, 100):
        put(store, first, 100)
        archive(tmp_path / "table", store=tmp_path / "store")
    put(store, 200, 100)
    store.shutdown()
    return tmp_path / "table"


def with_messages(path: Path, count: int) -> Path:
    """Makes a store with ``count`` messages."""
    store = open_store(path)
    put(store, 0, count)
    store.shutdown()
    return path


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside/storeDay=2020-01-01/old.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a table's")
    os.utime(path, (OLD_S, OLD_S))
    return tmp_path / "outside"


def contents(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}


def data_file(table: Path) -> Path:
    return min(table.rglob("*.parquet"))


def put_link(path: Path, target: Path) -> None:
    if path.is_dir():
        path.rename(path.with_name("was"))
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(target)


def test_old_files_behind_a_link_are_not_deleted(table: Path, outside: Path) -> None:
    (table / "topic=x").symlink_to(outside)
    before = contents(outside)
    with pytest.raises(ForeignEntryError, match="topic=x is a symbolic link"):
        delta_log(table).clean(0)
    assert contents(outside) == before


@pytest.mark.few(2)
@pytest.mark.parametrize("pattern", ["_delta_log", "_rucola", "topic=flights", "topic=flights/storeDay=*"])
def test_nothing_is_written_through_a_link(pattern: str, table: Path, outside: Path, tmp_path: Path) -> None:
    path = max(table.glob(pattern))
    put_link(path, outside)
    before = contents(outside)
    with pytest.raises(ForeignEntryError, match=f"{path.name} is a symbolic link"):
        archive(table, store=tmp_path / "store")
    assert contents(outside) == before


def test_the_table_itself_may_be_a_link(table: Path, tmp_path: Path) -> None:
    table.rename(tmp_path / "elsewhere")
    table.symlink_to(tmp_path / "elsewhere")
    assert archive(table, store=tmp_path / "store") == 100
    assert compact(delta_log(table)).before > 1


def put_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CHANGES: dict[str, Callable[[Path], None]] = {
    "link": lambda path: put_link(path, path.parent.parent.parent / "copy"),
    "FIFO": put_fifo,
    "noise": lambda path: path.write_bytes(b"PAR1 no table PAR1") and None,
    "empty": lambda path: path.write_bytes(b"") and None,
    "nothing": lambda path: path.unlink(),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("change", CHANGES)
def test_only_sound_files_are_read(change: str, table: Path) -> None:
    path = data_file(table)
    (table / "copy").write_bytes(path.read_bytes())
    CHANGES[change](path)
    with pytest.raises(RucolaError, match=path.name):
        compact(delta_log(table))
    if change in ("link", "FIFO"):
        with pytest.raises(ForeignEntryError, match=path.name):
            LocalPlace(table).check()


@pytest.mark.few
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("part", ["log", "config", "sizes"])
def test_only_sound_files_are_restored(part: str, change: str, table: Path, tmp_path: Path) -> None:
    (tmp_path / "store/config").mkdir(exist_ok=True)
    (tmp_path / "store/config/topics.json").write_text("{}")
    archive_raw(tmp_path / "raw", tmp_path / "store")
    path = data_file(tmp_path / f"raw/part={part}")
    (path.parent.parent.parent / "copy").write_bytes(path.read_bytes())
    CHANGES[change](path)
    with pytest.raises(RucolaError, match=path.name):
        restore(tmp_path / "raw", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_error_of_the_reader_in_the_block_names_the_file(table: Path) -> None:
    name = str(data_file(table).relative_to(table))
    with pytest.raises(FormatError, match=name), LocalPlace(table).parquet(name) as file:
        file.read_row_group(99)
    with pytest.raises(ZeroDivisionError), LocalPlace(table).parquet(name):
        raise ZeroDivisionError


def changed_state(**fields: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = json.loads(path.read_bytes()) | fields
        path.write_text(json.dumps({name: value for name, value in content.items() if value != "gone"}))

    return change


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "change",
    [
        *(changed_state(offsets="gone"), changed_state(offsets=[]), changed_state(offsets={"#last": 3})),
        *(changed_state(kind="other"), changed_state(parent="x"), changed_state(format="1")),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text('{"format": 1}'),
        lambda path: path.write_bytes(b"\xff"),
    ],
)
def test_a_state_may_say_anything(change: Callable[[Path], None], table: Path) -> None:
    newest = delta_log(table).snapshot()
    assert newest.version == 1
    for path in (table / "_rucola").glob("*.json"):
        change(path)
    with pytest.raises(FormatError, match=r"_rucola/[0-9]+\.json"):
        delta_log(table).snapshot()


def test_other_formats_are_looked_at_first(tmp_path: Path) -> None:
    (tmp_path / "table/_delta_log").mkdir(parents=True)
    (tmp_path / "table/_delta_log/00000000000000000000.json").symlink_to("/etc/hostname")
    for format in ("delta", "iceberg"):
        with pytest.raises(ForeignEntryError, match=r"00000000000000000000.json is a symbolic link"):
            open_table(tmp_path / "table", format)
    deep = tmp_path / "deep" / "/".join("d" * 40)
    deep.mkdir(parents=True)
    with pytest.raises(ForeignEntryError, match="levels deep"):
        LocalPlace(tmp_path / "deep").check()
    LocalPlace(tmp_path / "none").check()


def test_a_table_is_held_from_its_first_commit_on(outside: Path, tmp_path: Path) -> None:
    log = delta_log(tmp_path / "new")
    base = log.snapshot()
    log.commit(base, Change("archive", schema=SCHEMA))
    put_link(tmp_path / "new/_rucola", outside)
    before = contents(outside)
    with pytest.raises(ForeignEntryError, match="_rucola is a symbolic link"):
        log.commit(base, Change("archive"))
    assert contents(outside) == before


def test_nothing_is_removed_through_a_link(table: Path, outside: Path) -> None:
    (table / "topic=x").symlink_to(outside)
    before = contents(outside)
    with pytest.raises(ForeignEntryError, match="topic=x is a symbolic link"):
        LocalPlace(table).remove("topic=x/storeDay=2020-01-01/old.parquet")
    assert contents(outside) == before


def test_a_new_file_replaces_nothing(tmp_path: Path) -> None:
    files = Files()
    files.hold(str(tmp_path))
    (tmp_path / "there").write_bytes(b"kept")
    (tmp_path / "link").symlink_to("nothing")
    for name in ("there", "link"):
        with pytest.raises(RucolaError, match=name):
            files.open_new(f"{tmp_path}/{name}")
    with files.open_new(f"{tmp_path}/new") as stream:
        stream.write(b"x")
    assert contents(tmp_path) == {"there": b"kept", "new": b"x"}


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_all_ways_to_write_a_path_are_one_table(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = with_messages(tmp_path / "store", 20)
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "a table"
    assert archive(place, store=store, format=form) == 20
    same = (f"{place}/", place.as_uri(), "a table", tmp_path / "link" / "a table", f"{tmp_path}/store/../a table")
    assert [archive(one, store=store, format=form) for one in same] == [0] * len(same)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a table", "link", "store"]


@pytest.mark.parametrize("elsewhere", ["hdfs://host/t", "ftp://host/t", "s3:/bucket/t", "S3N://bucket/t"])
def test_no_directory_is_made_for_a_place_elsewhere(
    elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the fix, a directory ``hdfs:`` appeared, and the user believed that the data was in the cluster."""
    store = with_messages(tmp_path / "store", 3)
    monkeypatch.chdir(tmp_path)
    for form in ("delta", "iceberg"):
        with pytest.raises(ConfigError, match="s3://BUCKET/PATH"):
            archive(elsewhere, store=store, format=form)
    with pytest.raises(ConfigError, match="s3://BUCKET/PATH"):
        archive_raw(elsewhere, store)
    with pytest.raises(ConfigError, match="s3://BUCKET/PATH"):
        restore(elsewhere, tmp_path / "new")
    command = ["sql", "select 1", "--store", str(store), "-o", f"{elsewhere}.csv"]
    assert main(command) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


@pytest.mark.parametrize("elsewhere", ["hdfs://host/t", "s3://bucket/t"])
def test_stores_are_directories(elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = with_messages(tmp_path / "store", 3)
    archive_raw(tmp_path / "raw", store)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="file:///path"):
        archive(tmp_path / "new", store=elsewhere)
    with pytest.raises(ConfigError, match="file:///path"):
        restore(tmp_path / "raw", elsewhere)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw", "store"]


def test_a_result_of_sql_replaces_nothing_and_makes_no_directory(tmp_path: Path) -> None:
    store = with_messages(tmp_path / "store", 3)
    os.mkfifo(tmp_path / "fifo.csv")
    (tmp_path / "directory.csv").mkdir()
    (tmp_path / "link.csv").symlink_to("nothing")
    before = sorted(tmp_path.iterdir())
    for name in ("fifo.csv", "directory.csv", "link.csv", "missing/new.csv"):
        assert main(["sql", "select 1", "--store", str(store), "-o", str(tmp_path / name)]) == 2
    assert sorted(tmp_path.iterdir()) == before
    assert main(["sql", "select 1", "--store", str(store), "-o", str(tmp_path / "new.csv")]) == 0


def test_of_two_who_create_a_file_one_does(tmp_path: Path) -> None:
    place = LocalPlace(tmp_path / "table")
    assert [place.create("_rucola/x", content) for content in (b"first", b"second")] == [True, False]
    assert place.read("_rucola/x") == b"first"
    assert [one.path for one in place.list_files()] == ["_rucola/x"]
