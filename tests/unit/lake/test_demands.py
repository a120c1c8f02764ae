"""What other programs do to a table's definition: Rucola honours it, or refuses the table and says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableFeatures
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType

from rucola.arrow.topic_dataset import topic_options
from rucola.errors import ConfigError
from rucola.lake import archive, archive_raw, compact
from rucola.lake.archiver import Archiver
from rucola.lake.table_formats import open_table
from rucola.store.message_store import MessageStore


def files_of(table: Path) -> set[Path]:
    return set(table.rglob("*.parquet"))


def metadata_of(table: Path) -> dict[str, Any]:
    """The action in the first commit that defines the table."""
    lines = (table / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    found: dict[str, Any] = next(action["metaData"] for line in lines if "metaData" in (action := json.loads(line)))
    return found


def commit(table: Path, *actions: dict[str, Any]) -> None:
    """A commit of another program."""
    newest = max(int(path.stem) for path in (table / "_delta_log").glob("*.json"))
    text = "\n".join(json.dumps(one) for one in ({"commitInfo": {"operation": "SET"}}, *actions))
    (table / "_delta_log" / f"{newest + 1:020}.json").write_text(text)


def field_with(table: Path, **changes: Any) -> dict[str, Any]:
    """The definition of the table with a change of its column ``tags``."""
    found = metadata_of(table)
    schema = json.loads(found["schemaString"])
    next(one for one in schema["fields"] if one["name"] == "tags").update(changes)
    return {"metaData": found | {"schemaString": json.dumps(schema)}}


def json_field(name: str, **changes: Any) -> dict[str, Any]:
    return {"name": name, "type": "string", "nullable": True, "metadata": {}} | changes


def mapped(table: Path) -> dict[str, Any]:
    """The definition of the table with names of columns apart from those in the files."""
    found = metadata_of(table)
    schema = json.loads(found["schemaString"])
    for number, one in enumerate(schema["fields"]):
        one["metadata"] = {"delta.columnMapping.id": number + 1, "delta.columnMapping.physicalName": one["name"]}
    properties = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(len(schema["fields"]))}
    configuration = found["configuration"] | properties
    return {"metaData": found | {"schemaString": json.dumps(schema), "configuration": configuration}}


def listing(*features: str, readers: tuple[str, ...] = ()) -> dict[str, Any]:
    version = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7, "writerFeatures": list(features)}
    return {"protocol": version | ({"readerFeatures": list(readers)} if readers else {})}


DEMANDS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "tags may not": lambda table: [field_with(table, nullable=False)],
    "tags may not,": lambda table: [
        field_with(table, type={"type": "struct", "fields": [json_field("inner", nullable=False)]})
    ],
    "writer version 8": lambda _: [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 8}}],
    "invariants": lambda table: [field_with(table, metadata={"delta.invariants": '{"expression": "tags > 1"}'})],
    "generatedColumns": lambda table: [field_with(table, metadata={"delta.generationExpression": "keys"})],
    "identityColumns": lambda table: [field_with(table, metadata={"delta.identity.start": 1})],
    "rowTracking": lambda _: [listing("rowTracking", "domainMetadata")],
    "allowColumnDefaults": lambda _: [listing("allowColumnDefaults")],
    "somethingNew": lambda _: [listing("appendOnly", "somethingNew")],
    "columnMapping": lambda table: [
        mapped(table),
        listing("columnMapping", readers=("columnMapping",)),
    ],
}


@pytest.mark.few(4)
@pytest.mark.parametrize("demand", DEMANDS)
def test_a_demand_that_rucola_does_not_meet_is_named(tmp_path: Path, store: MessageStore, demand: str) -> None:
    table = tmp_path / "table"
    archive(table, "flights", store=tmp_path / "store")
    commit(table, *DEMANDS[demand](table))
    before = files_of(table)
    for act in (lambda: archive(table, store=tmp_path / "store"), lambda: compact(table)):
        with pytest.raises(ConfigError, match=demand):
            act()
    assert files_of(table) == before


def test_a_check_constraint_is_named(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", "flights", store=tmp_path / "store")
    DeltaTable(tmp_path / "table").alter.add_constraint({"small": "queueId < 1000"})
    with pytest.raises(ConfigError, match="checkConstraints"):
        archive(tmp_path / "table", store=tmp_path / "store")


def test_features_that_need_nothing_are_no_trouble(tmp_path: Path, store: MessageStore) -> None:
    table = tmp_path / "table"
    archive(table, "flights", store=tmp_path / "store")
    every = [TableFeatures.AppendOnly, TableFeatures.ChangeDataFeed, TableFeatures.CheckConstraints]
    DeltaTable(table).alter.add_feature(every, allow_protocol_versions_increase=True)
    DeltaTable(table).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    assert archive(table, store=tmp_path / "store") == 90


def test_of_a_table_that_only_grows_nothing_is_removed(tmp_path: Path, store: MessageStore) -> None:
    table = tmp_path / "table"
    archive(table, "flights", store=tmp_path / "store")
    DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "true"})
    assert archive(table, store=tmp_path / "store", messages_per_commit=30) == 90
    assert compact(table).joined > 0  # the same rows in other files
    raw, settings = tmp_path / "raw", tmp_path / "store" / "config"
    settings.mkdir(exist_ok=True)
    (settings / "new.json").write_text("[]")
    archive_raw(raw, tmp_path / "store")
    DeltaTable(raw).alter.set_table_properties({"delta.appendOnly": "true"})
    (settings / "new.json").write_text("{}")
    before = files_of(raw)
    with pytest.raises(ConfigError, match=r"delta\.appendOnly"):
        archive_raw(raw, tmp_path / "store")
    assert files_of(raw) == before


def overwrite(table: Path, **more: Any) -> None:
    rows = pa.table(DeltaTable(table).to_pyarrow_table())
    write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite", **more)


def test_other_partitions_are_refused(tmp_path: Path, store: MessageStore) -> None:
    table = tmp_path / "table"
    archive(table, "flights", store=tmp_path / "store")
    overwrite(table, partition_by=["topic"])
    with pytest.raises(ConfigError, match=r"partitioned by topic, storeDay; .* partitioned it by topic, so"):
        archive(table, store=tmp_path / "store")


def test_a_lost_column_is_refused(tmp_path: Path, store: MessageStore) -> None:
    table = tmp_path / "table"
    archive(table, "flights", store=tmp_path / "store")
    rows = pa.table(DeltaTable(table).to_pyarrow_table()).drop_columns(["body", "keys"])
    partitions = ["topic", "storeDay"]
    write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite", partition_by=partitions)
    with pytest.raises(ConfigError, match="has removed body, keys, so"):
        archive(table, store=tmp_path / "store")


class TestIceberg:
    """The same for Iceberg."""

    def changed(self, tmp_path: Path, change: Callable[[Any], object]) -> None:
        archive(tmp_path / "table", "flights", store=tmp_path / "store", format="iceberg")
        root = tmp_path / "table"
        catalog = SqlCatalog("rucola", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}")
        change(catalog.load_table("rucola.messages"))

    def refused(self, tmp_path: Path, match: str) -> None:
        before = files_of(tmp_path / "table")
        for act in (
            lambda: archive(tmp_path / "table", store=tmp_path / "store", format="iceberg"),
            lambda: compact(tmp_path / "table", format="iceberg"),
        ):
            with pytest.raises(ConfigError, match=match):
                act()
        assert files_of(tmp_path / "table") == before

    def test_a_lost_column(self, tmp_path: Path, store: MessageStore) -> None:
        def change(table: Any) -> None:
            with table.update_schema() as update:
                update.delete_column("body")

        self.changed(tmp_path, change)
        self.refused(tmp_path, "has removed body, so")

    def test_other_partitions(self, tmp_path: Path, store: MessageStore) -> None:
        def change(table: Any) -> None:
            with table.update_spec() as update:
                update.remove_field("storeDay")

        self.changed(tmp_path, change)
        self.refused(tmp_path, "partitioned by topic, storeDay; .* partitioned it by topic, so")

    def test_files_with_other_partitions(self, tmp_path: Path, store: MessageStore) -> None:
        def change(table: Any) -> None:
            with table.update_spec() as update:
                update.remove_field("storeDay")
            table.append(table.scan().to_arrow())
            with table.update_spec() as update:
                update.add_identity("storeDay")

        self.changed(tmp_path, change)
        self.refused(tmp_path, "partitioned by topic, storeDay; .* partitioned it by topic, so")

    def test_a_column_that_may_not_be_null(self, tmp_path: Path, store: MessageStore) -> None:
        def change(table: Any) -> None:
            with table.update_schema(allow_incompatible_changes=True) as update:
                update.update_column("tags", required=True)

        self.changed(tmp_path, change)
        self.refused(tmp_path, "tags may not")

    def test_a_new_column_of_others_is_no_trouble(self, tmp_path: Path, store: MessageStore) -> None:
        def change(table: Any) -> None:
            with table.update_schema() as update:
                update.add_column("theirs", LongType())

        self.changed(tmp_path, change)
        assert archive(tmp_path / "table", store=tmp_path / "store", format="iceberg") == 90


class TestTwoFormats:
    """Two first runs of different formats on one empty path."""

    @pytest.mark.parametrize("first", ["delta", "iceberg"])
    def test_one_loses_before_its_commit(self, tmp_path: Path, store: MessageStore, first: str) -> None:
        table, second = tmp_path / "table", {"delta": "iceberg", "iceberg": "delta"}[first]
        slow = open_table(table, second)  # it has found an empty place
        archive(table, store=tmp_path / "store", format=first)
        before = files_of(table)
        with pytest.raises(ConfigError, match=f"allowed: {first}.*: another run has begun such a table at"):
            list(Archiver(slow, topic_options(tmp_path / "store", None, "")).steps())
        assert files_of(table) == before
        assert archive(table, store=tmp_path / "store", format=first) == 0
        with pytest.raises(ConfigError, match=f"{first}, the format of the table"):
            open_table(table, second)

    def test_at_the_same_time(self, tmp_path: Path, store: MessageStore) -> None:
        for number in range(3):
            table, barrier = tmp_path / f"table{number}", Barrier(2)
            done: dict[str, object] = {}

            def run(format: str, table: Path = table, barrier: Barrier = barrier, done: Any = done) -> None:
                barrier.wait()
                try:
                    done[format] = archive(table, store=tmp_path / "store", format=format)
                except ConfigError as error:
                    done[format] = error

            threads = [Thread(target=run, args=(format,)) for format in ("delta", "iceberg")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            (winner,) = [format for format, result in done.items() if result == 120]
            assert isinstance(done[{"delta": "iceberg", "iceberg": "delta"}[winner]], ConfigError)
            assert archive(table, store=tmp_path / "store", format=winner) == 0

    def test_a_killed_run_holds_the_path_for_its_format(self, tmp_path: Path, store: MessageStore) -> None:
        table = tmp_path / "table"
        (table / "_rucola").mkdir(parents=True)
        (table / "_rucola" / "format").write_text("delta")
        with pytest.raises(ConfigError, match=r"if there is none, remove .*_rucola/format"):
            archive(table, store=tmp_path / "store", format="iceberg")
        assert archive(table, store=tmp_path / "store") == 120

    def test_a_second_iceberg_table_by_another_name(self, tmp_path: Path, store: MessageStore) -> None:
        place: Any = {"store": tmp_path / "store", "format": "iceberg"}
        archive(tmp_path / "table", **place)
        with pytest.raises(ConfigError, match=r"iceberg rucola\.messages: another run"):
            archive(tmp_path / "table", identifier="two.messages", **place)

    def test_two_tables_of_an_earlier_version_are_refused(self, tmp_path: Path, store: MessageStore) -> None:
        archive(tmp_path / "table", store=tmp_path / "store")
        archive(tmp_path / "other", store=tmp_path / "store", format="iceberg")
        (tmp_path / "other" / "metadata").rename(tmp_path / "table" / "metadata")
        for format in ("delta", "iceberg"):
            with pytest.raises(ConfigError, match="there are two, delta and iceberg"):
                open_table(tmp_path / "table", format)
