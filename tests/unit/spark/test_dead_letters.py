"""The files of dead letters: a repeated task replaces its own file, and no run ever replaces the file of another."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema
from tests.unit.spark.ddl import schema_of

from rucola.spark.replay_rows import COLUMNS, replay_batches
from rucola.spark.sink import BATCH_ID, QUERY_ID, RocketMQStreamWriter, RocketMQWriter
from rucola.spark.sink_options import SinkOptions, parse_sink_options, sink_layout

SCHEMA = schema_of("body binary, keys string")
Within = Callable[..., None]


class Context:
    """Stands in for the context that Spark gives to a task."""

    def __init__(self, partition: int, query: str | None = None, batch: int | None = None) -> None:
        self._partition = partition
        self._local = {QUERY_ID: query, BATCH_ID: None if batch is None else str(batch)}

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return self._partition

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._local.get(name)


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> Within:
    """A function after whose call the code runs in a task at this place."""

    def use(partition: int, query: str | None = None, batch: int | None = None) -> None:
        monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: Context(partition, query, batch)))

    return use


def options(directory: Path) -> SinkOptions:
    return parse_sink_options({"nameServer": "127.0.0.1:9", "topic": "t", "deadLetterPath": str(directory)})


def batch_writer(directory: Path) -> RocketMQWriter:
    """A writer as Spark's tasks get it: a copy."""
    one = RocketMQWriter(options(directory), sink_layout(options(directory), SCHEMA))
    copy: RocketMQWriter = pickle.loads(pickle.dumps(one))
    return copy


def stream_writer(directory: Path) -> RocketMQStreamWriter:
    return RocketMQStreamWriter(options(directory), sink_layout(options(directory), SCHEMA))


def refused(*keys: str) -> Iterator[pa.RecordBatch]:
    """Rows that cannot become messages, because they have no body."""
    rows = [{"body": None, "keys": key} for key in keys]
    yield pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(SCHEMA, timezone="UTC"))


def letters(directory: Path) -> list[list[str]]:
    """The keys in each file that a reader of the directory finds."""
    found = [ds.dataset(path, format="parquet").to_table() for path in directory.glob("[!.]*")]
    return sorted(table.column("keys").to_pylist() for table in found)


def test_no_batch_replaces_the_file_of_another(tmp_path: Path, within: Within) -> None:
    within(0)
    for key in "abc":
        batch_writer(tmp_path).write(refused(key))
    assert letters(tmp_path) == [["a"], ["b"], ["c"]]
    assert not list(tmp_path.glob(".*"))


def test_tasks_of_a_batch(tmp_path: Path, within: Within) -> None:
    """The tasks of a run have files of their own; a task that Spark runs again replaces its file."""
    writer = batch_writer(tmp_path)
    for partition, key in ((0, "a"), (1, "b"), (12, "c"), (1, "b")):
        within(partition)
        pickle.loads(pickle.dumps(writer)).write(refused(key, "x"))
    assert letters(tmp_path) == [["a", "x"], ["b", "x"], ["c", "x"]]


def test_a_repeated_micro_batch_replaces_its_own_file_and_no_other(tmp_path: Path, within: Within) -> None:
    for query, batch, partition, key in (("q", 3, 0, "a"), ("q", 3, 1, "b"), ("q", 4, 0, "c"), ("r", 3, 0, "d")):
        within(partition, query, batch)
        stream_writer(tmp_path).write(refused(key))
    assert letters(tmp_path) == [["a"], ["b"], ["c"], ["d"]]
    within(0, "q", 3)
    stream_writer(tmp_path).write(refused("a", "more"))
    assert letters(tmp_path) == [["a", "more"], ["b"], ["c"], ["d"]]
    stream_writer(tmp_path).write(iter(()))  # now the rows have been sent
    assert letters(tmp_path) == [["b"], ["c"], ["d"]]
    stream_writer(tmp_path / "new").write(iter(()))
    assert not (tmp_path / "new").exists()


def test_several_writes_of_one_micro_batch(tmp_path: Path, within: Within) -> None:
    """A function for ``foreachBatch`` writes batches, which have the query and the micro-batch in common."""
    within(0, "q", 3)
    for key in "ab":
        batch_writer(tmp_path).write(refused(key))
    stream_writer(tmp_path).write(refused("c"))
    assert letters(tmp_path) == [["a"], ["b"], ["c"]]
    assert all(path.name.startswith("refused-q-3-") for path in tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, within: Within) -> None:
    def fails() -> Iterator[pa.RecordBatch]:
        yield from refused("b")
        raise InterruptedError

    within(0, "q", 3)
    stream_writer(tmp_path).write(refused("a"))
    with pytest.raises(InterruptedError):
        stream_writer(tmp_path).write(fails())
    assert letters(tmp_path) == [["a"]]


def test_replays_have_files_of_their_own(tmp_path: Path) -> None:
    ddl = "topic string, brokerName string, queueId int, queueOffset bigint, storeTimestamp timestamp, flag int, "
    schema = to_arrow_schema(schema_of(ddl + "properties string, body binary"), timezone="UTC")
    assert tuple(schema.names) == COLUMNS
    for key in "ab":
        rows = [("s", "b", 0, 0, 0, 0, f'{{"KEYS":"{key}"}}', None)]
        columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
        tally = replay_batches([pa.RecordBatch.from_arrays(columns, schema=schema)], options(tmp_path))
        assert tally.refused == 1
    assert len(list(tmp_path.iterdir())) == 2
