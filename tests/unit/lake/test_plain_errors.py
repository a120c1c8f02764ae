"""What is wrong is said in words, with the place: not by a library, and not by a loss without a word."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.arrow.records import message
from tests.unit.lake.test_formats import own_rows

from rucola.errors import ConfigError, DiskError, TopicsFailedError
from rucola.lake import archive, archive_raw, compact, restore
from rucola.lake.table_formats import open_table
from rucola.sql import connect
from rucola.store.message_store import MessageStore

ODD = ("a\nb", "\n", "tab\tx", "a\rb", "p%41", "x=y", "\u2028", "c\x01d", ".hidden", "topic=z")


def put_odd(store: MessageStore, *topics: str) -> None:
    for topic in topics:
        one = replace(message(1, topic.encode()), store_host=store.store_host)
        store.put_message(one)
    store.dispatch()


@pytest.mark.few(1)
def test_topics_with_odd_names_are_archived(tmp_path: Path, store: MessageStore, format: str) -> None:
    put_odd(store, *ODD)
    place: Any = {"store": tmp_path / "store", "format": format}
    assert archive(tmp_path / "table", **place) == 120 + len(ODD)
    assert archive(tmp_path / "table", **place) == 0
    log = open_table(tmp_path / "table", format)
    assert set(ODD) <= {one.partition["topic"] for one in log.snapshot().files.values()}
    assert set(ODD) <= set(own_rows(tmp_path / "table", format).column("topic").to_pylist())
    put_odd(store, *ODD)
    assert archive(tmp_path / "table", **place) == len(ODD)
    assert compact(tmp_path / "table", format=format).joined == 2 * len(ODD)
    with connect(tmp_path / "store") as session:
        assert set(ODD) <= set(session.topics)


def test_a_topic_without_a_name_for_its_directory_fails_alone(
    tmp_path: Path, store: MessageStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    long = "%RETRY%" + "%" * 90
    put_odd(store, long)
    with pytest.raises(TopicsFailedError, match=r"takes at most 249 bytes as written here"):
        archive(tmp_path / "table", store=tmp_path / "store")
    assert own_rows(tmp_path / "table", "delta").num_rows == 120


@pytest.mark.parametrize("name", ["x" * 250, "ä" * 127, "x" * 255])
def test_a_log_comes_back_into_a_long_name(tmp_path: Path, store: MessageStore, name: str) -> None:
    archive_raw(tmp_path / "raw", tmp_path / "store")
    restore(tmp_path / "raw", tmp_path / name, rebuild=False)
    assert list((tmp_path / name / "commitlog").iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["raw", "store", name])


def test_a_name_that_no_directory_can_have(tmp_path: Path, store: MessageStore) -> None:
    archive_raw(tmp_path / "raw", tmp_path / "store")
    with pytest.raises(DiskError, match="File name too long"):
        restore(tmp_path / "raw", tmp_path / ("x" * 256))
    with pytest.raises(DiskError, match="File name too long"):
        archive(tmp_path / ("x" * 256), store=tmp_path / "store")


@pytest.mark.parametrize("raw", [False, True])
def test_a_moved_iceberg_table_is_named(tmp_path: Path, store: MessageStore, raw: bool) -> None:
    def run(table: Path) -> int:
        if raw:
            return archive_raw(table, tmp_path / "store", format="iceberg")
        return archive(table, store=tmp_path / "store", format="iceberg")

    run(tmp_path / "table")
    moved = (tmp_path / "table").rename(tmp_path / "new")
    for act in (lambda: run(moved), lambda: compact(moved, format="iceberg")):
        with pytest.raises(ConfigError, match=r"/table, where the table was made: an Iceberg table cannot be moved"):
            act()
    moved.rename(tmp_path / "table")
    assert run(tmp_path / "table") == 0


@pytest.mark.parametrize("pattern", ["*.avro", "snap-*.avro", "*.metadata.json"])
def test_lost_metadata_is_named(tmp_path: Path, store: MessageStore, pattern: str) -> None:
    table = tmp_path / "table"
    archive(table, store=tmp_path / "store", format="iceberg")
    for path in (table / "metadata").glob(pattern):
        path.unlink()
    for act in (
        lambda: archive(table, store=tmp_path / "store", format="iceberg"),
        lambda: compact(table, format="iceberg"),
    ):
        with pytest.raises(DiskError, match=r"/table: read the metadata failed: .*No such file or directory"):
            act()
