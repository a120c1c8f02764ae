"""Two runs over one table: what the other run commits between two steps of a plan is neither lost, doubled nor taken
for a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import put
from tests.unit.lake.logs import delta_log

from rucola.arrow.topic_dataset import topic_options
from rucola.lake import archive, archive_raw
from rucola.lake.archiver import Archiver
from rucola.lake.raw_archiver import RawArchiver
from rucola.lake.table_formats import open_table
from rucola.lake.table_log import STALE_S, Change, Snapshot, TableKind, TableLog
from rucola.spark.archive.tasks import source_schema
from rucola.spark.archive.topic_table import _plan, tail_batches
from rucola.store.message_store import MessageStore

TOPIC = "flights"
PLACE = ["queueId", "queueOffset"]


class Between:
    """A table's log that calls ``meanwhile`` once, just before the first snapshot or just before the first commit."""

    def __init__(self, log: TableLog, when: str, meanwhile: Callable[[], object]) -> None:
        self._log, self.place = log, log.place
        self._waiting: dict[str, Callable[[], object]] = {when: meanwhile}

    def snapshot(self) -> Snapshot:
        self._call("snapshot")
        return self._log.snapshot()

    def commit(self, base: Snapshot, change: Change) -> int:
        self._call("commit")
        return self._log.commit(base, change)

    def clean(self, retention_s: float = STALE_S) -> int:
        return self._log.clean(retention_s)

    def _call(self, name: str) -> None:
        if (meanwhile := self._waiting.pop(name, None)) is not None:
            meanwhile()


def places(rows: Iterable[Any]) -> list[tuple[int, int]]:
    return sorted(tuple(row.values()) for row in rows)


def all_places(directory: Path) -> list[tuple[int, int]]:
    from rucola.arrow import scan

    return places(scan(directory / "store", TOPIC, PLACE).read_all().to_pylist())


def archived_places(log: TableLog, snapshot: Snapshot | None = None) -> list[tuple[int, int]]:
    files = (snapshot or log.snapshot()).files.values()
    paths = [f"{log.place.root}/{one.path}" for one in files if one.partition["topic"] == TOPIC]
    return places(ds.dataset(paths, format="parquet").to_table(columns=PLACE).to_pylist()) if paths else []


def new_queue(store: MessageStore) -> None:
    """Adds messages in a queue that the topic does not have yet."""
    for number in range(5):
        store.put_message(replace(message(number, TOPIC.encode()), queue_id=7, store_host=store.store_host))
    store.dispatch()


@pytest.mark.few
@pytest.mark.parametrize("old", [False, True], ids=["new table", "old table"])
@pytest.mark.parametrize("when", ["snapshot", "commit"])
def test_another_run_that_was_faster_is_no_data_loss(
    tmp_path: Path, store: MessageStore, format: str, when: str, old: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def other_run() -> None:
        put(store, 120, 30)
        archive(tmp_path / "table", store=tmp_path / "store", format=format)

    if old:
        archive(tmp_path / "table", store=tmp_path / "store", format=format)
        put(store, 150, 10)
    log = Between(open_table(tmp_path / "table", format), when, other_run)
    run = Archiver(log, topic_options(tmp_path / "store", None, ""))
    assert run.step() is None
    put(store, 160, 20)
    step = run.step()
    assert step is not None
    assert step.messages == 20
    assert archived_places(log) == all_places(tmp_path)
    assert ("another run committed first" in caplog.text) is (when == "commit")


def test_a_queue_that_appears_and_is_archived_while_a_run_plans(
    tmp_path: Path, store: MessageStore, format: str
) -> None:
    """A snapshot has only the archived offsets that it was asked for: the new queue would be archived twice."""
    archive(tmp_path / "table", store=tmp_path / "store", format=format)

    def other_run() -> None:
        new_queue(store)
        archive(tmp_path / "table", store=tmp_path / "store", format=format)

    log = Between(open_table(tmp_path / "table", format), "snapshot", other_run)
    run = Archiver(log, topic_options(tmp_path / "store", None, ""))
    assert list(run.steps()) == []
    assert archived_places(log) == all_places(tmp_path)


def test_a_queue_that_appears_and_is_archived_while_a_table_is_read(
    tmp_path: Path, store: MessageStore, format: str
) -> None:
    archive(tmp_path / "table", store=tmp_path / "store", format=format)

    def other_run() -> None:
        new_queue(store)
        put(store, 120, 40)
        archive(tmp_path / "table", store=tmp_path / "store", format=format)
        put(store, 160, 40)

    log = Between(open_table(tmp_path / "table", format), "snapshot", other_run)
    options = topic_options(tmp_path / "store", TOPIC, "")
    plan = _plan(log, options)
    assert plan.tail.pieces
    rows = archived_places(log, plan.snapshot)
    schema = source_schema(options, PLACE).add("life", "integer")
    for piece in plan.tail.pieces:
        for batch in tail_batches(log, options, schema, piece, plan.tail.labels):
            rows += places(batch.drop_columns(["life"]).to_pylist())
    assert sorted(rows) == all_places(tmp_path)


@pytest.mark.parametrize("when", ["snapshot", "commit"])
def test_another_run_over_the_same_log(
    tmp_path: Path, store: MessageStore, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    def other_run() -> None:
        put(store, 120, 30)
        archive_raw(tmp_path / "table", tmp_path / "store")

    log = Between(delta_log(tmp_path / "table", TableKind.RAW), when, other_run)
    run = RawArchiver(log, str(tmp_path / "store"))
    assert list(run.steps()) == []
    put(store, 150, 20)
    assert run.step() is not None
    starts = ds.dataset([f"{log.place.root}/{path}" for path in log.snapshot().files], format="parquet").to_table()
    records = starts.filter(ds.field("kind") == "record")
    assert records.num_rows == 170 == len(set(records.column("physicalOffset").to_pylist()))
    assert ("another run committed first" in caplog.text) is (when == "commit")
