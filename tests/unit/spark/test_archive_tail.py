"""The two parts of ``topic_table``, archive and topic, without Spark: together they contain each message once, even if
the topic is archived while they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.unit.arrow.stores import open_store, put
from tests.unit.lake.logs import delta_log

from rucola.arrow.topic_dataset import topic_options
from rucola.errors import DataLossError
from rucola.lake.delta_log import DeltaLog
from rucola.lake.table_log import Snapshot
from rucola.places.local_place import LocalPlace
from rucola.spark.archive import archive
from rucola.spark.archive.tasks import source_schema
from rucola.spark.archive.topic_table import _gaps, _Plan, _plan, tail_batches
from rucola.store.message_store import MessageStore

TOPIC = "flights"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    one = open_store(tmp_path / "store")
    put(one, 0, 200)
    archive(tmp_path / "table", store=tmp_path / "store")
    put(one, 200, 300)
    yield one
    one.shutdown()


def places(directory: Path, log: DeltaLog, plan: _Plan, **more: Any) -> list[tuple[int, int]]:
    """Returns queue id and queue offset of all rows that a plan reads."""
    options = topic_options(directory / "store", TOPIC, "", **more)
    schema = source_schema(options, ["queueId", "queueOffset"]).add("life", "integer")
    found = []
    for path, one in plan.snapshot.files.items():
        if one.partition["topic"] == TOPIC:
            table = pq.read_table(f"{log.place.root}/{path}", columns=["queueId", "queueOffset"])
            found += [tuple(row.values()) for row in table.to_pylist()]
    for piece in plan.tail.pieces:
        for batch in tail_batches(log, options, schema, piece, plan.tail.labels):
            found += [tuple(row.values())[:2] for row in batch.to_pylist()]
    return sorted(found)


def all_places(directory: Path) -> list[tuple[int, int]]:
    from rucola.arrow import scan

    rows = scan(directory / "store", TOPIC, ["queueId", "queueOffset"]).read_all()
    return sorted(tuple(row.values()) for row in rows.to_pylist())


def retention(directory: Path) -> None:
    for path in sorted((directory / "store" / "commitlog").iterdir())[:-2]:
        path.unlink()


def archive_and_expire(directory: Path) -> None:
    archive(directory / "table", store=directory / "store")
    retention(directory)


class MeanwhileLog(DeltaLog):
    """The archive's log of commits, which calls a given function after its first snapshot."""

    def __init__(self, root: str, meanwhile: Callable[[], object]) -> None:
        super().__init__(LocalPlace(root))
        self._meanwhile = [meanwhile]

    def snapshot(self) -> Snapshot:
        found = super().snapshot()
        while self._meanwhile:
            self._meanwhile.pop()()
        return found


def plan_of(directory: Path, log: DeltaLog, **more: Any) -> _Plan:
    return _plan(log, topic_options(directory / "store", TOPIC, "", **more))


def test_both_parts_hold_each_message_once(tmp_path: Path, store: MessageStore) -> None:
    log = delta_log(tmp_path / "table")
    plan = plan_of(tmp_path, log)
    assert plan.tail.pieces
    assert places(tmp_path, log, plan) == all_places(tmp_path)


def test_retention_between_snapshot_and_plan(tmp_path: Path, store: MessageStore) -> None:
    expected = all_places(tmp_path)
    log = MeanwhileLog(str(tmp_path / "table"), lambda: archive_and_expire(tmp_path))
    plan = plan_of(tmp_path, log)
    assert plan.snapshot.version > 0
    assert places(tmp_path, log, plan) == expected


def test_retention_between_plan_and_read(tmp_path: Path, store: MessageStore) -> None:
    expected = all_places(tmp_path)
    log = delta_log(tmp_path / "table")
    plan = plan_of(tmp_path, log)
    archive_and_expire(tmp_path)
    assert places(tmp_path, log, plan) == expected


def test_lenient_reads_take_archived_messages_too(tmp_path: Path, store: MessageStore) -> None:
    expected = all_places(tmp_path)
    log = delta_log(tmp_path / "table")
    plan = plan_of(tmp_path, log, fail_on_data_loss=False)
    archive_and_expire(tmp_path)
    assert places(tmp_path, log, plan, fail_on_data_loss=False) == expected


def test_lenient_reads_leave_out_only_what_nobody_has(tmp_path: Path, store: MessageStore) -> None:
    """The archive stops before the store's first message, and one file in the middle of the log is gone too."""
    expected = all_places(tmp_path)
    log = delta_log(tmp_path / "table")
    plan = plan_of(tmp_path, log, fail_on_data_loss=False)
    segments = sorted((tmp_path / "store" / "commitlog").iterdir())
    archive(tmp_path / "table", store=tmp_path / "store")
    put(store, 500, 100)
    lost = set(all_places(tmp_path)) - set(expected)
    later = plan_of(tmp_path, log, fail_on_data_loss=False)
    for path in [*segments[:-2], sorted((tmp_path / "store" / "commitlog").iterdir())[-3]]:
        path.unlink(missing_ok=True)
    assert places(tmp_path, log, plan, fail_on_data_loss=False) == expected
    found = places(tmp_path, log, later, fail_on_data_loss=False)
    assert set(expected) < set(found) < set(expected) | lost
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("offsets", "gaps"),
    [
        ([5, 6, 7], []),
        ([5, 7, 8, 11], [(6, 7), (9, 11)]),
        ([6], [(5, 6)]),
    ],
)
def test_gaps_before_the_last_row(offsets: list[int], gaps: list[tuple[int, int]]) -> None:
    assert _gaps(5, np.array(offsets, np.int64)) == gaps


def test_messages_that_nobody_has_are_reported(tmp_path: Path, store: MessageStore) -> None:
    log = delta_log(tmp_path / "table")
    plan = plan_of(tmp_path, log)
    retention(tmp_path)
    with pytest.raises(DataLossError):
        places(tmp_path, log, plan)
    with pytest.raises(DataLossError):
        plan_of(tmp_path, log)
    rest = plan_of(tmp_path, log, fail_on_data_loss=False)
    assert 0 < len(places(tmp_path, log, rest, fail_on_data_loss=False)) < 125
