"""Topics that are deleted and created again: each life is archived, and stays readable. One topic's trouble stops that
topic only.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import SEGMENT_BYTES, open_store, put
from tests.unit.lake.logs import delta_log

from rucola.arrow.offsets import Mark, StreamOffsets
from rucola.arrow.topic_dataset import topic_options
from rucola.cli.exit_codes import ExitCode, exit_code
from rucola.common.message_queue import MessageQueue
from rucola.errors import (
    AnotherLogError,
    ConfigError,
    DataLossError,
    FormatError,
    StoreDamagedError,
    TableConflictError,
    TaskFailedError,
    TopicsFailedError,
)
from rucola.lake import archive
from rucola.lake.archiver import Archiver, is_of_a_topic
from rucola.lake.file_rows import completed
from rucola.lake.lives import EndedLife
from rucola.lake.maintenance import compact, expire
from rucola.lake.table_formats import open_table
from rucola.lake.table_log import Change, DataFile, Snapshot, TableKind
from rucola.lake.table_state import TableState, state_after
from rucola.spark.archive.tasks import source_schema
from rucola.spark.archive.topic_table import _plan, tail_batches
from rucola.store.message_store import MessageStore

TOPIC = "flights"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
NAMES = ["topic", "brokerName", "queueId", "life", "queueOffset", "physicalOffset"]


def add(store: MessageStore, count: int, topic: str = TOPIC, queue_id: int = 0) -> None:
    for number in range(count):
        one = replace(message(number, topic.encode()), queue_id=queue_id, store_host=store.store_host)
        store.put_message(one)
    store.dispatch()


def rows(directory: Path, format: str = "delta", topic: str = TOPIC) -> list[tuple[Any, ...]]:
    """Rows of a topic in the table: broker name, queue, life, offset and physical offset, in this order."""
    log = open_table(directory / "table", format)
    paths = [f"{log.place.root}/{one.path}" for one in log.snapshot().files.values() if one.partition["topic"] == topic]
    found = ds.dataset(paths, format="parquet").to_table(columns=NAMES).to_pylist() if paths else []
    return sorted(tuple(row.values())[1:] for row in found)


def lives(directory: Path, format: str = "delta", topic: str = TOPIC) -> Counter[int]:
    found = rows(directory, format, topic)
    assert len({row[:4] for row in found}) == len({row[4] for row in found}) == len(found)
    return Counter(row[2] for row in found)


def tail_rows(directory: Path, format: str = "delta") -> list[tuple[Any, ...]]:
    """What ``topic_table`` reads from the store, as ``rows`` gives it."""
    log, options = open_table(directory / "table", format), topic_options(directory / "store", TOPIC, "")
    plan = _plan(log, options)
    schema = source_schema(options, NAMES).add("life", "integer")
    found = []
    for piece in plan.tail.pieces:
        for batch in tail_batches(log, options, schema, piece, plan.tail.labels):
            found += batch.select(NAMES).to_pylist()
    return sorted(tuple(row.values())[1:] for row in found)


@pytest.mark.few(2)
@pytest.mark.parametrize("count", [5, 10, 11, 40])
def test_each_life_of_a_topic_is_archived_once(tmp_path: Path, store: MessageStore, format: str, count: int) -> None:
    """The new queue is shorter than the old one, as long, one longer, or much longer."""
    place: Any = {"store": tmp_path / "store", "format": format}
    archive(tmp_path / "table", **place)
    put(store, 120, 30)  # some messages of the old topic are not archived before it is deleted
    store.delete_topic(TOPIC.encode())
    assert tail_rows(tmp_path, format) == []
    assert archive(tmp_path / "table", **place) == 22
    add(store, count)
    add(store, 3, queue_id=2)
    assert len(tail_rows(tmp_path, format)) == count + 3
    assert archive(tmp_path / "table", **place) == count + 3
    assert archive(tmp_path / "table", **place) == 0
    assert lives(tmp_path, format) == {0: 30, 1: count + 3}
    add(store, 7, queue_id=1)
    add(store, 2)
    tail = tail_rows(tmp_path, format)
    assert Counter(row[2] for row in tail) == {1: 9}
    assert archive(tmp_path / "table", **place) == 9
    assert set(tail) < set(rows(tmp_path, format))
    store.delete_topic(TOPIC.encode())
    add(store, 1)
    assert archive(tmp_path / "table", TOPIC, **place) == 1
    assert lives(tmp_path, format) == {0: 30, 1: count + 12, 2: 1}
    assert compact(open_table(tmp_path / "table", format)).before > 0
    assert lives(tmp_path, format) == {0: 30, 1: count + 12, 2: 1}
    snapshot = open_table(tmp_path / "table", format).snapshot()
    assert [snapshot.end_in(QUEUE, life) for life in range(4)] == [10, count + 2, 1, None]
    assert snapshot.lives[QUEUE][1].start == snapshot.offsets.starts[QUEUE] == 0


def test_files_are_sorted_by_life(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", TOPIC, store=tmp_path / "store")
    store.delete_topic(TOPIC.encode())
    add(store, 20)
    archive(tmp_path / "table", TOPIC, store=tmp_path / "store")
    log = delta_log(tmp_path / "table")
    compact(log)
    (path,) = log.snapshot().files
    file = ds.dataset(f"{log.place.root}/{path}", format="parquet").to_table(columns=NAMES).to_pylist()
    places = [tuple(row.values())[1:5] for row in file]
    assert places == sorted(places)
    assert expire(log, date(2100, 1, 1)) == 1
    add(store, 2)
    assert archive(tmp_path / "table", TOPIC, store=tmp_path / "store") == 2
    assert lives(tmp_path) == {1: 2}


def test_rows_of_an_earlier_version_are_of_the_first_life(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables have no column for lives."""
    with monkeypatch.context() as old:
        old.setattr("rucola.lake.archiver.table_schema", _without_life)
        old.setattr("rucola.lake.labels.Labels.applied", lambda _labels, batch, _at: batch)
        archive(tmp_path / "table", TOPIC, store=tmp_path / "store")
    store.delete_topic(TOPIC.encode())
    add(store, 4)
    assert archive(tmp_path / "table", TOPIC, store=tmp_path / "store") == 4
    compact(delta_log(tmp_path / "table"))
    assert lives(tmp_path) == {0: 30, 1: 4}


def _without_life(options: Any) -> dict[str, Any]:
    from rucola.lake.columns import table_schema

    schema = table_schema(options)
    schema["fields"] = [field for field in schema["fields"] if field["name"] != "life"]
    return schema


def test_messages_that_retention_takes_before_they_are_read_come_from_their_life(
    tmp_path: Path, store: MessageStore
) -> None:
    archive(tmp_path / "table", TOPIC, store=tmp_path / "store")
    store.delete_topic(TOPIC.encode())
    add(store, 40)
    add(store, 40, "other")
    log, options = delta_log(tmp_path / "table"), topic_options(tmp_path / "store", TOPIC, "")
    plan = _plan(log, options)
    archive(tmp_path / "table", TOPIC, store=tmp_path / "store")
    wanted = [row for row in rows(tmp_path) if row[2] == 1]
    store.delete_topic(TOPIC.encode())
    add(store, 100, "other")
    add(store, 5)  # less than of the life before
    archive(tmp_path / "table", TOPIC, store=tmp_path / "store")
    store.shutdown()
    for path in sorted((tmp_path / "store" / "commitlog").iterdir())[:-1]:
        path.unlink()
    schema = source_schema(options, NAMES).add("life", "integer")
    found = []
    for piece in plan.tail.pieces:
        for batch in tail_batches(log, options, schema, piece, plan.tail.labels):
            found += [tuple(row.values())[1:] for row in batch.select(NAMES).to_pylist()]
    assert sorted(found) == wanted


def test_a_log_that_ends_before_the_mark_is_no_new_life(tmp_path: Path, store: MessageStore) -> None:
    """A store that was restored from a backup: its queues end before the archived offset, and nothing comes after."""
    store.shutdown()
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    newer = open_store(tmp_path / "store")
    put(newer, 120, 200)
    newer.shutdown()
    archive(tmp_path / "table", TOPIC, store=tmp_path / "store")
    with pytest.raises(DataLossError, match="flights@broker-a"):
        archive(tmp_path / "table", TOPIC, store=tmp_path / "backup")
    other = open_store(tmp_path / "backup")
    other.delete_topic(TOPIC.encode())
    put(other, 1000, 400)  # longer than the archived log, with other records
    other.shutdown()
    with pytest.raises(AnotherLogError):
        archive(tmp_path / "table", TOPIC, store=tmp_path / "backup")
    # Of a log that is not the table's, topics that the table does not have are not archived either.
    with pytest.raises(AnotherLogError):
        archive(tmp_path / "table", store=tmp_path / "backup")
    assert {queue.topic for queue in delta_log(tmp_path / "table").snapshot().offsets.offsets} == {TOPIC}


def test_where_the_marks_record_has_expired_other_queues_show_the_log(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", store=tmp_path / "store")
    store.delete_topic(TOPIC.encode())
    add(store, 120, "other")
    add(store, 40)
    archive(tmp_path / "table", "other", store=tmp_path / "store")
    shutil.copytree(tmp_path / "table", tmp_path / "alone" / "table")
    store.shutdown()
    for path in sorted((tmp_path / "store" / "commitlog").iterdir())[:2]:
        path.unlink()
    assert archive(tmp_path / "table", TOPIC, store=tmp_path / "store") == 40
    assert lives(tmp_path) == {0: 30, 1: 40}
    log = delta_log(tmp_path / "alone" / "table")
    # Without the marks of other topics nobody knows.
    base = log.snapshot()
    others = {queue: base.offsets.offsets[queue] for queue in base.offsets.offsets if queue.topic != TOPIC}
    log.commit(base, Change("archive", offsets=StreamOffsets(others)))
    with pytest.raises(AnotherLogError):
        archive(tmp_path / "alone" / "table", TOPIC, store=tmp_path / "store")


def test_a_deleted_topic_keeps_its_history(tmp_path: Path, store: MessageStore) -> None:
    place: Any = {"store": tmp_path / "store"}
    archive(tmp_path / "table", **place)
    store.delete_topic(TOPIC.encode())
    put(store, 121, 3)
    assert archive(tmp_path / "table", **place) == 3
    assert tail_rows(tmp_path) == []
    assert lives(tmp_path) == {0: 30}
    with pytest.raises(ConfigError, match="topic: 'flights'"):
        archive(tmp_path / "table", TOPIC, **place)
    with pytest.raises(ConfigError, match="topic: 'unknown'"):
        _plan(delta_log(tmp_path / "table"), topic_options(tmp_path / "store", "unknown", ""))


def test_queues_come_and_go(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", TOPIC, store=tmp_path / "store")
    add(store, 4, queue_id=9)
    assert archive(tmp_path / "table", TOPIC, store=tmp_path / "store") == 4
    store.shutdown()
    shutil.rmtree(tmp_path / "store" / "consumequeue" / TOPIC / "9")
    assert archive(tmp_path / "table", TOPIC, store=tmp_path / "store") == 0
    assert lives(tmp_path) == {0: 34}


class TestTroubles:
    """One topic's trouble."""

    @pytest.fixture
    def spoiled(self, tmp_path: Path, store: MessageStore) -> Path:
        """A store in which topic ``flights`` cannot be read, while all others can."""
        archive(tmp_path / "table", store=tmp_path / "store")
        put(store, 120, 40)
        store.shutdown()
        units = min((tmp_path / "store" / "consumequeue" / TOPIC / "0").iterdir()).read_bytes()
        segment, at = divmod(int.from_bytes(units[20 * 11 : 20 * 11 + 8], "big"), SEGMENT_BYTES)
        path = tmp_path / "store" / "commitlog" / f"{segment * SEGMENT_BYTES:020}"
        content = bytearray(path.read_bytes())
        content[at + 4 : at + 8] = b"\0" * 4  # the record's magic code
        path.write_bytes(content)
        return tmp_path

    def test_damage(self, spoiled: Path) -> None:
        count = {topic: len(rows(spoiled, topic=topic)) for topic in (TOPIC, "other", "größe")}
        with pytest.raises(TopicsFailedError, match=r"all others are done: flights: .*position") as caught:
            archive(spoiled / "table", store=spoiled / "store")
        assert list(caught.value.failures) == [TOPIC]
        assert exit_code(caught.value) is ExitCode.STORE_DAMAGED
        assert {topic: len(rows(spoiled, topic=topic)) - count[topic] for topic in count} == {
            TOPIC: 0,
            "other": 10,
            "größe": 10,
        }
        with pytest.raises(FormatError):
            archive(spoiled / "table", TOPIC, store=spoiled / "store")

    def test_continuous_runs_say_it_once_and_go_on(self, spoiled: Path, caplog: pytest.LogCaptureFixture) -> None:
        stop, rounds = Event(), []

        def wait(seconds: float) -> bool:
            rounds.append(seconds)
            if len(rounds) == 2:
                newer = open_store(spoiled / "store")
                put(newer, 161, 1)
                newer.shutdown()
            return len(rounds) == 3

        stop.wait = wait  # type: ignore[method-assign,assignment]
        with pytest.raises(TopicsFailedError):
            archive(spoiled / "table", store=spoiled / "store", every_s=0.1, stop=stop)
        assert caplog.text.count("the next runs try again") == 1
        assert len(rows(spoiled, topic="other")) == 41

    def test_missing_topics(self, tmp_path: Path, store: MessageStore) -> None:
        archive(tmp_path / "table", store=tmp_path / "store")
        put(store, 121, 3)
        store.shutdown()
        with pytest.raises(TopicsFailedError) as caught:
            archive(tmp_path / "table", ["other", "größe", "unknown"], store=tmp_path / "store")
        assert isinstance(caught.value.failures["unknown"], ConfigError)
        assert exit_code(caught.value) is ExitCode.USAGE
        assert len(rows(tmp_path, topic="other")) == 31

    def test_errors_of_everything_are_no_topics(self) -> None:
        assert is_of_a_topic(StoreDamagedError("p", 0, "x", "y"))
        assert is_of_a_topic(TaskFailedError("x", DataLossError))
        assert not is_of_a_topic(TaskFailedError("x"))
        assert not is_of_a_topic(TableConflictError("t", 1))

    def test_the_error_names_topics(self) -> None:
        many = TopicsFailedError({f"t{number:02}": ConfigError("x", "1", "2") for number in range(12)}, is_only=True)
        assert str(many).startswith("12 topics failed") and str(many).endswith("; and 2 more")
        assert many.only is many.failures["t00"]
        error = TopicsFailedError({"a": ConfigError("x", "1", "2"), "b": DataLossError("q", 0, 1, 2, 3)})
        assert exit_code(error) is ExitCode.FAILED
        assert error.only is None


def test_a_run_that_planned_an_older_life_is_refused(tmp_path: Path, store: MessageStore) -> None:
    """The new life has reached the archived offset of the old one."""
    archive(tmp_path / "table", TOPIC, store=tmp_path / "store")
    log = delta_log(tmp_path / "table")
    base = log.snapshot()
    end = base.end_of(QUEUE)
    assert end is not None
    log.commit(base, Change("archive", offsets=StreamOffsets({QUEUE: end}), begun=frozenset([QUEUE])))
    assert not log.snapshot().allows(base, Change("archive", offsets=StreamOffsets({QUEUE: end + 1})))


def test_the_state_of_a_table_has_the_ended_lives() -> None:
    ended = {QUEUE: (EndedLife(0, 3, Mark(5, 7)), EndedLife(1, 2, None))}
    state = TableState(TableKind.MESSAGES, StreamOffsets({QUEUE: 1}), 4, ended)
    assert TableState.from_json(state.to_json(), "x") == state
    with pytest.raises(FormatError):
        TableState.from_json(state.to_json().replace(b"[0,3,[5,7]]", b"[0,3]"), "x")


def test_a_new_life_has_its_own_first_offset() -> None:
    old = StreamOffsets({QUEUE: 9}, {QUEUE: 4}, {QUEUE: Mark(5, 7)})
    base = Snapshot(0, 0, TableKind.MESSAGES, None, {}, old)
    new = StreamOffsets({QUEUE: 2}, {QUEUE: 0})
    state = state_after(base, Change("archive", offsets=new, begun=frozenset([QUEUE])))
    assert state.offsets == new
    assert state.lives == {QUEUE: (EndedLife(4, 9, Mark(5, 7)),)}
    assert state_after(base, Change("archive", offsets=new)).offsets.starts == {QUEUE: 4}


def test_a_row_that_another_program_wrote_again_is_of_the_first_life() -> None:
    """It gives old rows the new column, without a value."""
    batch = pa.record_batch({"life": pa.array([None, 2], pa.int32()), "flag": pa.array([None, 2], pa.int32())})
    schema = pa.schema({"flag": pa.int32(), "life": pa.int32()})
    found = completed(batch, schema, DataFile("a.parquet", 2, 1))
    assert found.to_pydict() == {"flag": [None, 2], "life": [0, 2]}


def test_a_step_keeps_what_failed(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", store=tmp_path / "store")
    run = Archiver(delta_log(tmp_path / "table"), topic_options(tmp_path / "store", ["unknown", "other"], ""))
    assert run.step() is None
    assert list(run.failures) == ["unknown"]
