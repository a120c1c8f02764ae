"""The same log by another broker name: each message is archived once, under the name that the table has."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from tests.unit.arrow.dict_catalog import DictCatalog
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import open_store, put
from tests.unit.lake.logs import delta_log

from rucola.arrow.catalog import Bounds
from rucola.arrow.offsets import Mark, StreamOffsets
from rucola.arrow.topic_dataset import topic_options
from rucola.client.admin import AdminClient
from rucola.common.message import Message
from rucola.common.message_queue import MessageQueue
from rucola.errors import AnotherLogError, ConfigError, DataLossError
from rucola.lake import archive, archive_raw, restore
from rucola.lake.continuation import Continuation, continuation
from rucola.lake.labels import Label, Labels
from rucola.lake.table_formats import open_table
from rucola.lake.table_log import Snapshot, TableKind
from rucola.spark.archive.tasks import source_schema
from rucola.spark.archive.topic_table import _plan, tail_batches
from rucola.spark.options import parse_options
from rucola.store.message_store import MessageStore
from rucola.sync import Producer
from rucola.testing.rocketmq import RocketMQ

TOPIC = "flights"
NAMES = ["topic", "brokerName", "queueId", "life", "queueOffset", "physicalOffset"]


def brokers(directory: Path, format: str = "delta") -> Counter[str]:
    """The number of rows by broker name; no place is there twice."""
    log = open_table(directory / "table", format)
    paths = [f"{log.place.root}/{path}" for path in log.snapshot().files]
    found = ds.dataset(paths, format="parquet").to_table(columns=NAMES).to_pylist()
    assert len({tuple(row.values())[:5] for row in found}) == len(found)
    return Counter(row["brokerName"] for row in found)


def test_a_log_goes_on_under_the_name_that_the_table_has(
    tmp_path: Path, store: MessageStore, format: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    place: Any = {"store": tmp_path / "store", "format": format}
    archive(tmp_path / "table", broker_name="east", **place)
    assert archive(tmp_path / "table", **place) == 0
    put(store, 120, 30)
    for number in range(4):  # a topic and a queue that the table does not have
        store.put_message(replace(message(number, b"new"), queue_id=5, store_host=store.store_host))
        store.put_message(replace(message(number, TOPIC.encode()), queue_id=5, store_host=store.store_host))
    store.dispatch()
    assert archive(tmp_path / "table", broker_name="west", **place) == 38
    assert "the log of broker west is the one that the table has as east" in caplog.text
    assert archive(tmp_path / "table", broker_name="east", **place) == 0
    assert brokers(tmp_path, format) == {"east": 158}


def test_a_topic_that_was_made_again_under_another_name(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", broker_name="east", store=tmp_path / "store")
    store.delete_topic(TOPIC.encode())
    put(store, 120, 40)
    assert archive(tmp_path / "table", store=tmp_path / "store") == 40
    assert brokers(tmp_path) == {"east": 160}
    snapshot = delta_log(tmp_path / "table").snapshot()
    assert snapshot.life_of(MessageQueue(TOPIC, "east", 0)) == 1
    assert snapshot.life_of(MessageQueue("other", "east", 0)) == 0


def test_other_topics_show_the_log(tmp_path: Path, store: MessageStore) -> None:
    """Of the topic that the table has, only a record is left in the log."""
    archive(tmp_path / "table", TOPIC, broker_name="east", store=tmp_path / "store")
    store.delete_topic(TOPIC.encode())
    assert archive(tmp_path / "table", store=tmp_path / "store") == 90
    assert brokers(tmp_path) == {"east": 120}


def test_an_empty_queue_shows_nothing_and_needs_nothing(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", TOPIC, broker_name="east", store=tmp_path / "store")
    store.shutdown()
    without_segments(tmp_path / "store", 3)
    assert archive(tmp_path / "table", TOPIC, store=tmp_path / "store") == 0


def test_the_store_part_of_a_topic_has_the_names_of_the_table(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", TOPIC, broker_name="east", store=tmp_path / "store")
    put(store, 120, 40)
    log, options = delta_log(tmp_path / "table"), topic_options(tmp_path / "store", TOPIC, "")
    plan = _plan(log, options)
    for names in (NAMES, ["queueId", "life"]):
        schema = source_schema(options, names).add("life", "integer")
        found = [
            row
            for piece in plan.tail.pieces
            for batch in tail_batches(log, options, schema, piece, plan.tail.labels)
            for row in batch.to_pylist()
        ]
        assert len(found) == 10
        assert {row.get("brokerName", "east") for row in found} == {"east"}


def test_brokers_of_a_cluster_are_archived_into_one_table(tmp_path: Path, store: MessageStore) -> None:
    other = open_store(tmp_path / "two")
    put(other, 7, 200)
    other.shutdown()
    archive(tmp_path / "table", store=tmp_path / "store", broker_name="one")
    assert archive(tmp_path / "table", store=tmp_path / "two", broker_name="two") == 200
    both: Any = {"store": f"{tmp_path}/store,{tmp_path}/two", "broker_name": "one,two"}
    put(store, 120, 8)
    assert archive(tmp_path / "table", **both) == 8
    assert brokers(tmp_path) == {"one": 128, "two": 200}
    three = open_store(tmp_path / "three")
    put(three, 7, 20)  # it ends before the archived offsets of the others
    three.shutdown()
    assert archive(tmp_path / "table", store=tmp_path / "three", broker_name="three") == 20


@pytest.mark.few
@pytest.mark.parametrize("also_gone", [False, True])
def test_another_log_of_the_same_name_is_refused_without_a_common_topic(
    tmp_path: Path, store: MessageStore, format: str, also_gone: bool
) -> None:
    table, place = tmp_path / "table", {"store": tmp_path / "store", "format": format}
    archive(table, TOPIC, **place)
    store.delete_topic(b"other")
    if also_gone:
        store.delete_topic(TOPIC.encode())
    for number in range(200):
        store.put_message(replace(message(number, b"new"), store_host=store.store_host))
    store.dispatch()
    strange = open_store(tmp_path / "strange")
    for number in range(300):
        strange.put_message(replace(message(number, b"theirs"), store_host=store.store_host))
    strange.dispatch()
    with pytest.raises(AnotherLogError, match="give it another --broker-name, or archive into another table"):
        archive(table, "theirs", store=tmp_path / "strange", format=format)
    assert brokers(tmp_path, format) == {"broker-a": 30}
    assert archive(table, "new", **place) == 200  # the log of the table, whatever topics are gone
    assert archive(table, "theirs", store=tmp_path / "strange", format=format, broker_name="two") == 300
    assert brokers(tmp_path, format) == {"broker-a": 230, "two": 300}
    strange.shutdown()


def test_a_new_topic_goes_on_where_the_records_that_show_the_log_have_expired(
    tmp_path: Path, store: MessageStore
) -> None:
    archive(tmp_path / "table", TOPIC, store=tmp_path / "store")
    for number in range(200):
        store.put_message(replace(message(number, b"new"), store_host=store.store_host))
    store.shutdown()
    without_segments(tmp_path / "store", 2)
    assert 0 < archive(tmp_path / "table", "new", store=tmp_path / "store") < 200


def without_segments(directory: Path, count: int) -> None:
    for path in sorted((directory / "commitlog").iterdir())[:count]:
        path.unlink()


def test_without_the_records_that_would_show_it_a_name_is_refused(tmp_path: Path, store: MessageStore) -> None:
    archive(tmp_path / "table", store=tmp_path / "store", broker_name="east")
    put(store, 120, 300)
    store.shutdown()
    without_segments(tmp_path / "store", 2)
    with pytest.raises(ConfigError, match=r"--broker-name east, if this is the log .* have expired"):
        archive(tmp_path / "table", store=tmp_path / "store")
    assert brokers(tmp_path) == {"east": 120}
    count = archive(tmp_path / "table", store=tmp_path / "store", broker_name="east", fail_on_data_loss=False)
    assert brokers(tmp_path) == {"east": 120 + count}
    # A log whose oldest record is older than what the table has cannot be the same.
    other = open_store(tmp_path / "other")
    put(other, 0, 300)
    archive(tmp_path / "two" / "table", TOPIC, store=tmp_path / "store", fail_on_data_loss=False)
    other.shutdown()


class TestThroughBrokers:
    """A catalog that tells only what brokers do: bounds and marks."""

    EAST, WEST = MessageQueue("t", "east", 0), MessageQueue("t", "west", 0)

    def go_on(
        self,
        marks: dict[MessageQueue, tuple[int, Mark]],
        bounds: dict[MessageQueue, Bounds],
        times: dict[Any, int],
        in_log: dict[MessageQueue, bool] | None = None,
    ) -> Continuation:
        options = parse_options({"nameserver": "h:1", "topic": "t"})
        catalog = DictCatalog(options, bounds)
        catalog.times, catalog.in_log = times, in_log or {}
        offsets = StreamOffsets(
            {queue: end for queue, (end, _) in marks.items()}, {}, {queue: mark for queue, (_, mark) in marks.items()}
        )
        base = Snapshot(3, 0, TableKind.MESSAGES, None, {}, offsets)
        wanted = [queue for queue in bounds if queue.topic == "t"]
        return continuation(base, catalog, catalog.bounds(wanted))

    def test_the_record_at_the_mark_shows_the_log(self) -> None:
        flow = self.go_on({self.EAST: (5, Mark(4000, 400))}, {self.WEST: Bounds(2, 9)}, {})
        assert flow.starts == {self.WEST: 5}
        assert flow.labels.of(self.WEST) == Label("east", 0)

    def test_another_record_shows_another_log(self) -> None:
        flow = self.go_on({self.EAST: (5, Mark(4001, 400))}, {self.WEST: Bounds(2, 9)}, {})
        assert flow.starts == {self.WEST: 2}
        assert flow.labels == Labels()

    def test_a_shorter_queue_is_another_log(self) -> None:
        assert self.go_on({self.EAST: (50, Mark(4, 4))}, {self.WEST: Bounds(2, 9)}, {}).starts == {self.WEST: 2}

    def test_an_older_first_record_is_another_log(self) -> None:
        assert self.go_on({self.EAST: (5, Mark(9999, 4))}, {self.WEST: Bounds(7, 9)}, {}).starts == {self.WEST: 7}

    def test_expired_records_show_nothing(self) -> None:
        flow = self.go_on({self.EAST: (5, Mark(4000, 400))}, {self.WEST: Bounds(7, 9)}, {})
        assert not flow.starts
        assert isinstance(flow.troubles[self.WEST], ConfigError)

    def test_brokers_of_one_source_are_two_logs(self) -> None:
        bounds = {self.EAST: Bounds(0, 5), self.WEST: Bounds(0, 5)}
        assert self.go_on({self.EAST: (5, Mark(4000, 400))}, bounds, {}).starts == {self.EAST: 5, self.WEST: 0}

    def test_a_new_life_needs_another_queue_that_shows_the_log(self) -> None:
        other = MessageQueue("u", "east", 0)
        old, new = (5, Mark(1, 40)), {self.EAST: 20}
        grown = {self.EAST: Bounds(1, 9)}
        assert isinstance(self.go_on({self.EAST: old}, grown, new).troubles[self.EAST], AnotherLogError)
        seen = {self.EAST: old, other: (4, Mark(3000, 300))}
        flow = self.go_on(seen, {**grown, other: Bounds(0, 4)}, new)
        assert (flow.starts, flow.begun) == ({self.EAST: 0}, {self.EAST})
        assert flow.labels.of(self.EAST) == Label("east", 1)
        unseen = {self.EAST: old, other: (4, Mark(3001, 300))}
        assert self.go_on(unseen, {**grown, other: Bounds(0, 4)}, new).troubles
        assert self.go_on(seen, grown, new).troubles  # its topic is gone

    def test_records_before_the_mark_are_no_new_life(self) -> None:
        other = MessageQueue("t", "east", 1)
        seen = {self.EAST: (5, Mark(1, 100)), other: (4, Mark(3000, 300))}
        flow = self.go_on(seen, {self.EAST: Bounds(1, 9), other: Bounds(0, 4)}, {self.EAST: 20})
        assert list(flow.troubles) == [self.EAST]
        assert flow.starts == {other: 4}

    def test_one_queue_shows_the_log_of_those_before_it(self) -> None:
        other = MessageQueue("t", "east", 1)
        seen = {self.EAST: (5, Mark(1, 40)), other: (5, Mark(1, 50))}
        bounds = {self.EAST: Bounds(1, 9), other: Bounds(1, 9)}
        flow = self.go_on(seen, bounds, {self.EAST: 20, other: 20}, {other: True})
        assert flow.begun == {self.EAST, other}
        assert self.go_on(seen, bounds, {self.EAST: 20, other: 20}, {other: False}).begun == frozenset()

    def test_the_rest_of_a_name_must_follow_the_mark(self) -> None:
        flow = self.go_on({self.EAST: (5, Mark(4000, 9999))}, {self.EAST: Bounds(7, 9)}, {})
        assert isinstance(flow.troubles[self.EAST], AnotherLogError)
        assert not self.go_on({self.EAST: (5, Mark(4000, 400))}, {self.EAST: Bounds(7, 9)}, {}).troubles

    def test_another_log_of_the_same_name(self) -> None:
        gone, new = MessageQueue("gone", "east", 0), MessageQueue("t", "east", 1)
        seen = {gone: (5, Mark(4000, 400)), self.EAST: (5, Mark(1, 40))}
        bounds = {self.EAST: Bounds(7, 9), new: Bounds(1, 9)}
        flow = self.go_on(seen, bounds, {}, {gone: False})
        assert {queue: type(error) for queue, error in flow.troubles.items()} == dict.fromkeys(bounds, AnotherLogError)
        assert not self.go_on(seen, {new: Bounds(3, 3)}, {}, {gone: False}).troubles  # nothing to archive
        assert not self.go_on(seen, bounds, {}).troubles  # nothing is known
        assert not self.go_on(seen, bounds, {}, {gone: True, self.EAST: False}).troubles
        assert not self.go_on(seen, bounds, {}, {gone: False, self.EAST: True}).troubles

    def test_a_queue_that_ends_early_is_a_loss(self) -> None:
        flow = self.go_on({self.EAST: (50, Mark(49_000, 4900))}, {self.EAST: Bounds(1, 9)}, {})
        assert type(flow.troubles[self.EAST]) is DataLossError


def test_a_log_is_recognised_through_brokers_and_in_its_directory(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """A table with one topic, which is deleted and created again: only a look-up by physical offset shows the log."""
    table, name_server = tmp_path / "table", rocketmq.namesrv

    def send(count: int) -> None:
        with Producer("group", name_server) as producer:
            for number in range(count):
                producer.send(Message(TOPIC, b"%d" % number), MessageQueue(TOPIC, "broker-a", 0))

    async def delete() -> None:
        async with AdminClient(name_server) as admin:
            await admin.delete_topic(TOPIC, "DefaultCluster")

    rocketmq.create_topic(TOPIC)
    send(20)
    assert archive(table, TOPIC, name_server=name_server) == 20
    asyncio.run(delete())
    rocketmq.create_topic(TOPIC)
    send(30)
    assert archive(table, TOPIC, name_server=name_server) == 30
    assert archive(table, TOPIC, store=rocketmq.store, broker_name="another") == 0
    send(5)
    assert archive(table, TOPIC, store=rocketmq.store, broker_name="another") == 5
    assert archive(table, TOPIC, name_server=name_server) == 0
    snapshot = delta_log(table).snapshot()
    assert {queue.broker_name for queue in snapshot.offsets.offsets} == {"broker-a"}
    assert {len(ended) for ended in snapshot.lives.values()} == {1}
    assert sum(brokers(tmp_path).values()) == 55


def test_labels_are_applied_row_by_row() -> None:
    import pyarrow as pa

    rows = [("a", "x", 0), ("a", "x", 2**31 - 1), ("b", "x", 0), ("a", "y", 0), ("a", "x", 0)]
    columns = [pa.array(values) for values in zip(*rows, strict=True)]
    columns[2] = columns[2].cast(pa.int32())
    batch = pa.RecordBatch.from_arrays(columns, names=["topic", "brokerName", "queueId"])
    labels = Labels({
        MessageQueue("a", "x", 0): Label("z", 1), MessageQueue("a", "x", 2**31 - 1): Label("x", 3),
        MessageQueue("a", "y", 0): Label("y", 2),
    })  # fmt: skip
    found = labels.applied(batch, 3)
    assert found.column("brokerName").to_pylist() == ["z", "x", "x", "y", "z"]
    assert found.column("life").to_pylist() == [1, 3, 0, 2, 1]
    assert Labels().applied(batch, 1).schema.names == ["topic", "life", "brokerName", "queueId"]


class TestRaw:
    """The same for raw tables."""

    def test_a_log_goes_on_under_its_name(self, tmp_path: Path, store: MessageStore) -> None:
        archive_raw(tmp_path / "table", tmp_path / "store", broker_name="east")
        put(store, 120, 100)
        store.shutdown()
        archive_raw(tmp_path / "table", tmp_path / "store")
        assert archive_raw(tmp_path / "table", tmp_path / "store", broker_name="west") == 0
        restored = restore(tmp_path / "table", tmp_path / "new", rebuild=False)
        assert [one.name for one in restored] == sorted(
            path.name for path in (tmp_path / "store" / "commitlog").iterdir()
        )

    def test_another_log_has_a_part_of_its_own(self, tmp_path: Path, store: MessageStore) -> None:
        other = open_store(tmp_path / "two")
        put(other, 7, 200)
        other.shutdown()
        archive_raw(tmp_path / "table", tmp_path / "store", broker_name="one")
        assert archive_raw(tmp_path / "table", tmp_path / "two", broker_name="two") > 200
        names = {queue.broker_name for queue in delta_log(tmp_path / "table", TableKind.RAW).snapshot().offsets.offsets}
        assert names == {"one", "two"}

    def test_expired_records_show_nothing(self, tmp_path: Path, store: MessageStore) -> None:
        archive_raw(tmp_path / "table", tmp_path / "store", broker_name="east")
        shutil.copytree(tmp_path / "table", tmp_path / "later")
        put(store, 120, 300)
        store.shutdown()
        without_segments(tmp_path / "store", 2)
        with pytest.raises(ConfigError, match="--broker-name east"):
            archive_raw(tmp_path / "table", tmp_path / "store")
        with pytest.raises(DataLossError):
            archive_raw(tmp_path / "table", tmp_path / "store", broker_name="east")
        # A log with an older record than the mark's is another one.
        log = delta_log(tmp_path / "later", TableKind.RAW)
        base = log.snapshot()
        queue = next(iter(base.offsets.offsets))
        from rucola.lake.table_log import Change

        log.commit(base, Change("archive", offsets=replace(base.offsets, marks={queue: Mark(2**45, 5)})))
        assert archive_raw(tmp_path / "later", tmp_path / "store") > 100
