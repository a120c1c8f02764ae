"""``topic_table`` on Spark: archive and store as one table, compared with a read of the store directory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from tests.spark.conftest import BrokerProcess
from tests.unit.arrow.records import message
from tests.unit.arrow.stores import SEGMENT_BYTES, open_store
from tests.unit.lake.logs import delta_log

from rucola.common.message import Message
from rucola.errors import ConfigError, DataLossError, TopicsFailedError
from rucola.lake.maintenance import compact
from rucola.spark.archive import archive, archive_raw, restore, topic_table
from rucola.spark.decoding import decode
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock

TOPIC = "007"
"""A name that Spark would read as a number."""
DECODE = partial(decode, schema="n int, s string")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    one = open_store(tmp_path / "store")
    put(one, 0, 200)
    yield one
    one.shutdown()


def put(store: MessageStore, first: int, count: int, body: bytes = b"") -> None:
    for number in range(first, first + count):
        one = message(number, TOPIC.encode())
        one.body = body or b'{"n": %d, "s": "%d"}' % (number, number)
        one.store_host = store.store_host
        store.put_message(one)
    store.dispatch()


def in_place(spark: SparkSession, directory: Path, topic: str = TOPIC) -> DataFrame:
    return spark.read.format("rocketmq").options(storePath=str(directory / "store"), topic=topic).load()


def same_rows(one: DataFrame, other: DataFrame) -> bool:
    names = other.columns
    found, wanted = (
        sorted(frame.select(names).collect(), key=lambda row: (row.brokerName, row.queueId, row.queueOffset))
        for frame in (one, other)
    )
    return len(found) > 0 and found == wanted


def test_archive_and_tail_are_one_table(spark: SparkSession, store: MessageStore, tmp_path: Path) -> None:
    table = tmp_path / "table"
    both = partial(topic_table, spark, TOPIC, table, store=tmp_path / "store")
    assert same_rows(both(), in_place(spark, tmp_path))  # the table does not exist yet
    assert archive(table, TOPIC, spark=spark, store=tmp_path / "store", messages_per_commit=150) == 200
    put(store, 200, 60)
    fixed = both()
    put(store, 260, 10)
    assert (fixed.count(), both().count()) == (260, 270)
    assert same_rows(both(), in_place(spark, tmp_path))
    assert fixed.columns == [*in_place(spark, tmp_path).columns, "storeDay", "life"]
    days = both(columns=["storeDay", "tags"]).selectExpr("min(storeDay)", "max(storeDay)", "count(*)").first()
    expected = in_place(spark, tmp_path).selectExpr(
        "min(date(storeTimestamp))", "max(date(storeTimestamp))", "count(*)"
    )
    assert days == expected.first()
    archive(table, TOPIC, store=tmp_path / "store")
    whole = both()
    assert "Union" not in whole._jdf.queryExecution().toString()  # the store has no more messages
    assert whole.columns == fixed.columns
    assert same_rows(whole, in_place(spark, tmp_path))


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_tables_of_other_formats(spark: SparkSession, store: MessageStore, tmp_path: Path, format: str) -> None:
    """The Delta and Iceberg libraries delete messages from the archive, and write the remaining ones to new files."""
    table, place = tmp_path / "table", {"store": tmp_path / "store", "format": format}
    both = partial(topic_table, spark, TOPIC, table, **place)
    archive(table, TOPIC, **place)
    put(store, 200, 10)
    assert same_rows(both(), in_place(spark, tmp_path))
    if format == "delta":
        DeltaTable(table).delete("queueId = 1")
    else:
        catalog = SqlCatalog("rucola", uri=f"sqlite:///{table}/catalog.db", warehouse=f"file://{table}")
        catalog.load_table("rucola.messages").delete("queueId = 1")
    archive(table, TOPIC, **place)
    left = in_place(spark, tmp_path).where("queueId != 1 OR body LIKE '%: 20_,%'")
    assert same_rows(both(), left)


@pytest.mark.few(1)
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_times_that_no_column_can_have(spark: SparkSession, tmp_path: Path, format: str) -> None:
    clock, table = ManualClock(), tmp_path / "table"
    store = open_store(tmp_path / "store", clock=clock)
    put(store, 0, 10)
    clock.set_wall_ms(1 << 60)
    put(store, 10, 10)
    place: Any = {"store": tmp_path / "store", "format": format}
    assert archive(table, TOPIC, spark=spark, **place) == 20
    put(store, 20, 10)
    store.shutdown()
    both = topic_table(spark, TOPIC, table, **place)
    assert same_rows(both, in_place(spark, tmp_path))
    assert both.where("storeDay is null and storeTimestamp is null").count() == 20
    assert both.where("storeDay = '2023-11-14'").count() == 10


def test_typed_fields_may_be_null(spark: SparkSession, store: MessageStore, tmp_path: Path) -> None:
    """Delta would make each writer check the others."""
    table = tmp_path / "table"
    typed = lambda rows: DECODE(rows).withColumn("one", lit(1))  # noqa: E731
    assert not in_place(spark, tmp_path).withColumn("one", lit(1)).schema["one"].nullable
    archive(table, TOPIC, spark=spark, store=tmp_path / "store", decode=typed)
    assert all(field.nullable for field in DeltaTable(table).schema().fields)
    put(store, 200, 10)
    assert archive(table, TOPIC, spark=spark, store=tmp_path / "store", decode=typed) == 10


def test_lookups_skip_row_groups(spark: SparkSession, store: MessageStore, tmp_path: Path) -> None:
    for first in (200, 300, 400):
        archive(tmp_path / "table", TOPIC, store=tmp_path / "store")
        put(store, first, 100)
    archive(tmp_path / "table", TOPIC, store=tmp_path / "store")

    def scanned(condition: str) -> int:
        """Returns the number of rows that the scan of the archived files has returned."""
        found = topic_table(spark, TOPIC, tmp_path / "table", store=tmp_path / "store").where(condition)
        rows = found._jdf.queryExecution().executedPlan()
        assert found.collect()
        return max(_metrics(rows, "FileSourceScanExec"))

    assert scanned("queueOffset >= 0") == 500
    assert scanned(f"msgId = '{7:032X}'") == 200  # the Bloom filters exclude three files
    assert scanned("keys = 'k450'") == 100
    assert scanned("queueOffset > 150") == 100


def _metrics(plan: Any, kind: str) -> Iterator[int]:
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if node.getClass().getSimpleName() == kind:
            yield int(node.metrics().apply("numOutputRows").value())
        children = node.children()
        waiting += [children.apply(number) for number in range(children.size())]
        if node.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
            waiting.append(node.executedPlan())


def test_rows_that_retention_takes_come_from_the_archive(
    spark: SparkSession, store: MessageStore, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    archive(table, TOPIC, store=tmp_path / "store")
    put(store, 200, 200)
    expected = in_place(spark, tmp_path).collect()
    planned = topic_table(spark, TOPIC, table, store=tmp_path / "store")
    unarchived = topic_table(spark, TOPIC, table, store=tmp_path / "store")
    for path in sorted((tmp_path / "store" / "commitlog").iterdir())[:-1]:
        path.rename(tmp_path / path.name)
    with pytest.raises(Exception, match=DataLossError.__name__):
        unarchived.collect()
    for path in tmp_path.glob("0" * 10 + "*"):
        path.rename(tmp_path / "store" / "commitlog" / path.name)
    archive(table, TOPIC, store=tmp_path / "store")
    compact(delta_log(table))
    for path in sorted((tmp_path / "store" / "commitlog").iterdir())[:-1]:
        path.unlink()
    assert sorted(planned.drop("storeDay", "life").collect()) == sorted(expected)


def test_typed_bodies_have_columns(spark: SparkSession, store: MessageStore, tmp_path: Path) -> None:
    table = tmp_path / "table"
    both = partial(topic_table, spark, TOPIC, table, store=tmp_path / "store")
    archive(table, TOPIC, store=tmp_path / "store")
    put(store, 200, 50)
    archive(table, TOPIC, spark=spark, store=tmp_path / "store", decode=DECODE)
    put(store, 250, 50)
    put(store, 300, 1, b"poison")
    rows = both(decode=DECODE)
    # The first 200 rows were archived without these columns.
    assert rows.selectExpr("count(*)", "count(n)", "sum(n)", "count(_error)").first() == (
        301,
        100,
        sum(range(200, 300)),
        1,
    )
    assert rows.columns[-5:] == ["storeDay", "life", "n", "s", "_error"]
    with pytest.raises(ConfigError, match="typed columns n, s, _error"):
        both()
    assert both(columns=["keys"]).count() == 301
    with pytest.raises(ConfigError, match="integer, the type"):
        archive(table, TOPIC, spark=spark, store=tmp_path / "store", decode=partial(decode, schema="n bigint"))


def test_lives_of_a_topic_are_one_table(spark: SparkSession, store: MessageStore, tmp_path: Path) -> None:
    table = tmp_path / "table"
    both = partial(topic_table, spark, TOPIC, table, store=tmp_path / "store", broker_name="west")
    archive(table, TOPIC, spark=spark, store=tmp_path / "store", broker_name="east")
    put(store, 200, 10)
    store.delete_topic(TOPIC.encode())
    history = both()
    assert history.count() == 200
    put(store, 210, 30)

    def lives() -> list[tuple[Any, ...]]:
        found = both(columns=["life", "brokerName", "queueId", "queueOffset"])
        places = {tuple(row) for row in found.collect()}
        counts = found.groupBy("life", "brokerName").count().orderBy("life").collect()
        assert len(places) == sum(row["count"] for row in counts)
        return [tuple(row) for row in counts]

    assert lives() == [(0, "east", 200), (1, "east", 30)]
    assert archive(table, TOPIC, spark=spark, store=tmp_path / "store", decode=DECODE) == 30
    put(store, 240, 5)
    assert lives() == [(0, "east", 200), (1, "east", 35)]
    typed = both(decode=DECODE).where("life = 1")
    assert typed.columns[-5:] == ["storeDay", "life", "n", "s", "_error"]
    assert sorted(row.n for row in typed.collect()) == list(range(210, 245))
    with pytest.raises(ConfigError, match="columns of the table"):
        archive(table, TOPIC, spark=spark, store=tmp_path / "store", decode=partial(decode, schema="life int"))


def test_a_topic_that_executors_cannot_read_stops_only_itself(
    spark: SparkSession, store: MessageStore, tmp_path: Path
) -> None:
    for number in range(50):
        one = message(number, b"other")
        one.store_host = store.store_host
        store.put_message(one)
    store.dispatch()
    store.shutdown()
    units = min((tmp_path / "store" / "consumequeue" / TOPIC / "0").iterdir()).read_bytes()
    at = int.from_bytes(units[:8], "big")
    path = tmp_path / "store" / "commitlog" / f"{at // SEGMENT_BYTES * SEGMENT_BYTES:020}"
    content = bytearray(path.read_bytes())
    content[at % SEGMENT_BYTES + 4] ^= 1  # the record's magic code
    path.write_bytes(content)
    with pytest.raises(TopicsFailedError, match=f"1 topic failed, all others are done: {TOPIC}: the job on Spark"):
        archive(tmp_path / "table", [TOPIC, "other"], spark=spark, store=tmp_path / "store")
    assert topic_table(spark, "other", tmp_path / "table", store=tmp_path / "store").count() == 50


def test_a_log_is_restored(spark: SparkSession, store: MessageStore, tmp_path: Path) -> None:
    assert archive_raw(tmp_path / "table", tmp_path / "store", spark=spark) > 200
    sizes = {"mappedFileSizeConsumeQueue": "1280", "maxHashSlotNum": "100", "maxIndexNum": "10000"}
    restored = restore(tmp_path / "table", tmp_path / "new", spark=spark, broker_conf=sizes)
    for path in (tmp_path / "new" / "consumequeue").rglob("0*"):
        assert path.is_dir() or path.read_bytes() == (
            (tmp_path / "store" / path.relative_to(tmp_path / "new")).read_bytes()
        )
    assert (tmp_path / "new" / "consumequeue" / TOPIC / "0").is_dir()
    assert [one.name for one in restored] == sorted(path.name for path in (tmp_path / "new" / "commitlog").iterdir())
    for one in restored:
        assert one.sha256 == sha256((tmp_path / "store" / "commitlog" / one.name).read_bytes()).hexdigest()


def test_through_brokers(spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    with shared_broker.producer() as producer:
        producer.send_many([Message("archived", b"%d" % number, tags="A", keys=[f"k{number}"]) for number in range(60)])
        assert archive(tmp_path / "table", "archived", name_server=shared_broker.namesrv) == 60
        producer.send_many([Message("archived", b"%d" % number) for number in range(60, 80)])
    rows = topic_table(spark, "archived", tmp_path / "table", name_server=shared_broker.namesrv, columns=["body"])
    assert sorted(int(bytes(row.body)) for row in rows.collect()) == list(range(80))
