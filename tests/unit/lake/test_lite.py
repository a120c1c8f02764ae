"""Lite topics in tables: columns on request, an older table gets them; a restored log has them again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.unit.arrow.lite_stores import COUNT, filled, name_of, opened_lite, put

from rucola.arrow.read_options import ReadOptions, Subscription
from rucola.formats.light_queue import lite_topic
from rucola.lake import archive, archive_raw, restore
from rucola.lake.columns import has_lite, table_schema, typed_names
from rucola.spark.archive.topic_table import as_archived


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lite") / "store"
    filled(path).shutdown()
    return path


def rows_of(table: Path) -> pa.Table:
    return DeltaTable(str(table)).to_pyarrow_table()


def test_a_table_has_the_columns_on_request(store: Path, tmp_path: Path) -> None:
    assert archive(tmp_path / "plain", "Parent", store=store) == COUNT
    assert "liteTopic" not in rows_of(tmp_path / "plain").column_names
    assert archive(tmp_path / "lite", "Parent", store=store, include_lite=True) == COUNT
    found = rows_of(tmp_path / "lite")
    names = sorted(found["liteTopic"].to_pylist(), key=str)
    assert names == sorted((name_of(number) for number in range(COUNT)), key=str)
    assert found["liteOffset"].null_count == names.count(None)


def test_an_older_table_gets_the_columns_which_are_null_in_its_rows(tmp_path: Path) -> None:
    writer = filled(tmp_path / "store")
    writer._keeper.sync_queues()
    assert archive(tmp_path / "table", "Parent", store=tmp_path / "store") == COUNT
    for number in range(4):
        put(writer, number, "later")
    writer.dispatch()
    assert archive(tmp_path / "table", "Parent", store=tmp_path / "store", include_lite=True) == 4
    put(writer, 5, "later")
    writer.dispatch()
    assert archive(tmp_path / "table", "Parent", store=tmp_path / "store") == 1
    writer.shutdown()
    assert sorted(rows_of(tmp_path / "table")["liteTopic"].to_pylist(), key=str) == [None] * (COUNT + 1) + ["later"] * 4


def test_a_reader_of_table_and_store_reads_the_columns_that_the_table_has() -> None:
    options = ReadOptions(store_path="s", subscription=Subscription(topics=("Parent",)))
    plain = table_schema(options)
    assert not has_lite(plain)
    assert not as_archived(options, plain).include_lite
    body_field = {"name": "liteTopic", "type": "string", "nullable": True, "metadata": {}}
    assert typed_names({"fields": [*plain["fields"], body_field]}, options) == ["liteTopic"]
    lite = table_schema(ReadOptions(store_path="s", subscription=options.subscription, include_lite=True))
    assert has_lite(lite)
    assert as_archived(options, lite).include_lite
    assert typed_names(lite, options) == []


def test_a_restored_log_has_its_lite_topics_again(store: Path, tmp_path: Path) -> None:
    archive_raw(tmp_path / "table", store)
    restore(tmp_path / "table", tmp_path / "restored")
    again = opened_lite(tmp_path / "restored")
    again.dispatch()
    counts = [name_of(number) for number in range(COUNT)]
    for name in {name for name in counts if name is not None}:
        topic = lite_topic(f"Parent${name}".encode())
        assert again.queue_range(topic, 0) == (0, counts.count(name))
    again.shutdown()
