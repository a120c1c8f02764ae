"""A store and all that reads it: a stream, an archive, a raw archive, ``topic_table`` without Spark, and SQL."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import SEGMENT_BYTES
from tests.unit.lake.logs import delta_log

from rucola.arrow.offsets import StreamDocument
from rucola.arrow.topic_dataset import topic_options
from rucola.common.hosts import host_bytes
from rucola.formats.properties import encode_properties
from rucola.lake import archive, archive_raw, restore
from rucola.lake.table_log import TableKind
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.spark.archive.tasks import source_schema
from rucola.spark.archive.topic_table import _plan, as_archived, tail_batches
from rucola.spark.options import parse_options
from rucola.spark.stream import RocketMQStreamReader
from rucola.sql import connect
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock

TOPIC = "orders"
COLUMNS = ["brokerName", "queueId", "life", "queueOffset", "body"]


class Row(NamedTuple):
    """A row of a table: its place, and the number of its message."""

    broker: str
    queue_id: int
    life: int
    offset: int
    number: int


class World:
    """A store with one topic or more, and its readers.

    Args:
        directory: an empty directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path, self.table = directory / "store", directory / "table"
        self.sent = 0
        self.checkpoint: StreamDocument = {}
        self._open: MessageStore | None = None

    @property
    def store(self) -> MessageStore:
        """The store, which is opened if it is not."""
        if self._open is None:
            self._open = self.opened(SystemClock())
        return self._open

    def opened(self, clock: ManualClock | SystemClock) -> MessageStore:
        """Opens the store with a clock."""
        self.close()
        config = MessageStoreConfig(
            store_path_root_dir=str(self.path),
            mapped_file_size_commit_log=SEGMENT_BYTES,
            mapped_file_size_consume_queue=20 * 64,
            max_hash_slot_num=100,
            max_index_num=10_000,
        )
        self._open = MessageStore(config, Files(), clock)
        self._open.store_host = host_bytes("127.0.0.1", 10911)
        self._open.load()
        self._open.start()
        return self._open

    def close(self) -> None:
        """Stops the broker."""
        if self._open is not None:
            self._open.shutdown()
            self._open = None

    def send(self, count: int, topic: str = TOPIC, queue_id: int = 0, **fields: Any) -> list[int]:
        """Stores messages whose body is an object with their number; returns the numbers."""
        numbers = list(range(self.sent, self.sent + count))
        for number in numbers:
            one = replace(message(number, topic.encode()), queue_id=queue_id, store_host=self.store.store_host)
            one.properties = encode_properties({"KEYS": f"k{number}", "UNIQ_KEY": f"{number:032X}"})
            one.body = json.dumps({"n": number, **fields}).encode()
            assert self.store.put_message(one) is not None
        self.store.dispatch()
        self.sent += count
        return numbers

    def delete(self, topic: str = TOPIC) -> None:
        """Deletes a topic."""
        self.store.delete_topic(topic.encode())

    def expire(self, count: int = 1) -> None:
        """Removes the oldest segments, as retention does."""
        self.close()
        for path in sorted((self.path / "commitlog").iterdir())[:count]:
            path.unlink()

    # -- readers -------------------------------------------------------------------------------------------------------

    def archive(self, **options: Any) -> int:
        return archive(self.table, options.pop("topic", None), store=self.path, **options)

    def rows(self, topic: str = TOPIC) -> list[Row]:
        """The archived rows of a topic."""
        log = delta_log(self.table)
        files = [one.path for one in log.snapshot().files.values() if one.partition["topic"] == topic]
        if not files:
            return []
        return _rows(ds.dataset([f"{log.place.root}/{path}" for path in files], format="parquet").to_table(COLUMNS))

    def topic_table(self, topic: str = TOPIC, **options: Any) -> list[Row]:
        """The rows that ``topic_table`` gives, in the order of their places."""
        log, read = delta_log(self.table), topic_options(self.path, topic, "", **options)
        plan = _plan(log, read)
        read = as_archived(read, plan.snapshot.schema)
        files = [one.path for one in plan.snapshot.files.values() if one.partition["topic"] == topic]
        found = []
        if files:
            paths = [f"{log.place.root}/{path}" for path in files]
            found += _rows(ds.dataset(paths, format="parquet").to_table(COLUMNS))
        schema = source_schema(read, COLUMNS).add("life", "integer")
        for piece in plan.tail.pieces:
            for batch in tail_batches(log, read, schema, piece, plan.tail.labels):
                found += _rows(pa.Table.from_batches([batch]))
        return sorted(found)

    def stream(self, topic: str = TOPIC, **options: str) -> list[int]:
        """What a stream reads that is started again at its checkpoint: the numbers of the messages."""
        given = parse_options({"storePath": str(self.path), "topic": topic, "startingOffsets": "earliest"} | options)
        reader = RocketMQStreamReader(given, source_schema(given, ["body"]))
        try:
            end = reader.latestOffset(self.checkpoint, ReadAllAvailable())
            pieces = reader.partitions(self.checkpoint, end)
            found = [body for one in pieces for batch in reader.read(one) for body in batch.column("body").to_pylist()]
        finally:
            reader.stop()
        self.checkpoint = json.loads(json.dumps(end))
        return sorted(json.loads(body)["n"] for body in found)

    def sql(self, query: str, **options: Any) -> list[Any]:
        """The only column of a query."""
        with connect(self.path, **options) as session:
            return [value for row in session.run(query).read_all().to_pylist() for value in row.values()]

    def raw(self, **options: Any) -> int:
        return archive_raw(self.directory / "raw", self.path, **options)

    def restored(self, name: str = "restored", rebuild: bool = False, **options: Any) -> Path:
        """A store that is restored from the raw table."""
        restore(self.directory / "raw", self.directory / name, rebuild=rebuild, **options)
        return self.directory / name

    def raw_brokers(self) -> set[str]:
        """The names of the logs in the raw table."""
        log = delta_log(self.directory / "raw", TableKind.RAW)
        return {queue.broker_name for queue in log.snapshot().offsets.offsets}

    def log(self, path: Path | None = None) -> dict[str, bytes]:
        """The segments of a store's log."""
        return {one.name: one.read_bytes() for one in sorted(((path or self.path) / "commitlog").iterdir())}


def _rows(table: pa.Table) -> list[Row]:
    columns = [table.column(name).to_pylist() for name in COLUMNS[:-1]]
    numbers = [json.loads(body)["n"] for body in table.column("body").to_pylist()]
    return sorted(Row(*values) for values in zip(*columns, numbers, strict=True))


def numbers(rows: list[Row]) -> list[int]:
    """The numbers of the rows' messages; each place and each message is there once."""
    assert len({row[:4] for row in rows}) == len(rows)
    found = sorted(row.number for row in rows)
    assert len(set(found)) == len(found)
    return found
