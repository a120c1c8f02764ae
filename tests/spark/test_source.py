"""The ``rocketmq`` format in Spark: batches over a store directory and through a broker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import LongType, StructField, StructType
from tests.unit.arrow.records import expected_row
from tests.unit.arrow.stores import open_store

from rucola.arrow.schema import all_columns
from rucola.common.hosts import host_bytes
from rucola.common.message import Message, StoreMessage
from rucola.common.message_const import CRC32
from rucola.errors import ConfigError
from rucola.formats.properties import encode_properties
from rucola.spark.options import parse_options
from rucola.spark.pruning import prune
from rucola.store.message_store import MessageStore
from rucola.store.offline.offline_store import OfflineStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .conftest import BrokerProcess

pytestmark = pytest.mark.spark

COUNT = 5000


def put(store: MessageStore, topic: str, numbers: range) -> None:
    for number in numbers:
        properties = {"TAGS": f"T{number % 3}", "KEYS": f"k{number}", "origin": "Zürich" if number % 2 else 'a"b'}
        if number % 4:
            properties["UNIQ_KEY"] = f"{number:032X}"
        store.put_message(
            StoreMessage(
                topic=topic.encode(),
                queue_id=number % 4,
                body=f"body {number}".encode() * (number % 9 + 1),
                properties=encode_properties(properties),
                born_timestamp_ms=1_700_000_000_000 + number,
                born_host=host_bytes("10.1.2.3" if number % 5 else "2001:db8::1", 40_000 + number % 7),
                flag=number,
                reconsume_times=number % 2,
            )
        )
    store.dispatch()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "store"
    store = open_store(path, segment_bytes=512 * 1024, queue_file_units=1000, index_entries=20_000)
    put(store, "flights", range(COUNT))
    put(store, "other", range(100))
    store.shutdown()
    return path


def load(spark: SparkSession, schema: StructType | str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("rocketmq").options(**options)
    return (reader.schema(schema) if schema is not None else reader).load()


def expected(directory: Path) -> list[dict[str, Any]]:
    store = OfflineStore(str(directory))
    rows = [
        expected_row(one, "broker-a", 1)
        | {"properties": {name: value for name, value in one.properties.items() if name != CRC32}}
        for queue_id in store.queues("flights")
        for one in store.messages("flights", queue_id, 0, COUNT)
    ]
    store.close()
    return sorted(rows, key=lambda row: int(row["physicalOffset"]))


@pytest.mark.parametrize("order", ["log", "queue"])
def test_all_columns_of_a_store_directory(spark: SparkSession, directory: Path, order: str) -> None:
    rows = load(spark, storePath=str(directory), topic="flights", scanOrder=order, maxBytesPerPartition="300000")
    millis = [f"cast(unix_millis({name}) as bigint) as {name}" for name in ("bornTimestamp", "storeTimestamp")]
    others = [name for name in rows.columns if not name.endswith("Timestamp")]
    assert rows.columns == [column.name for column in all_columns(parse_options({"storePath": "d", "topic": "t"}))]
    assert rows.rdd.getNumPartitions() > 2 if order == "log" else rows.rdd.getNumPartitions() >= 4
    found = [row.asDict() for row in rows.selectExpr(*others, *millis).collect()]
    for row in found:
        row["properties"] = json.loads(row["properties"])
        row["body"] = bytes(row["body"])
    assert sorted(found, key=lambda row: int(row["physicalOffset"])) == expected(directory)


def test_map_and_kafka_styles(spark: SparkSession, directory: Path) -> None:
    given = {"storePath": str(directory), "topic": "flights"}
    row = load(spark, **given, propertiesAsMap="true").where("keys = 'k7'").select("properties").first()
    assert row is not None
    properties = {name: value for name, value in row.properties.items() if name != "__CRC32#"}
    assert properties == {"TAGS": "T1", "KEYS": "k7", "origin": "Zürich", "UNIQ_KEY": f"{7:032X}"}
    kafka = load(spark, **given, schemaStyle="kafka", includeHeaders="true")
    assert kafka.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    row = kafka.where("key = cast('k7' as binary)").first()
    assert row is not None
    assert (bytes(row.value), row.partition, row.offset) == (b"body 7" * 8, 3, 1)
    assert {header.key: bytes(header.value) for header in row.headers}["origin"] == "Zürich".encode()


def test_narrow_schemas(spark: SparkSession, directory: Path) -> None:
    given = {"storePath": str(directory), "topic": "flights"}
    narrow = load(spark, "queueOffset bigint, topic string", **given)
    assert narrow.columns == ["queueOffset", "topic"]
    assert narrow.selectExpr("sum(queueOffset)", "count(*)").first() == (4 * sum(range(COUNT // 4)), COUNT)
    assert load(spark, **given, columns="tags,queueId").where("tags = 'T1'").count() == len(range(1, COUNT, 3))
    # A column that is not nullable in Spark must not be nullable in Arrow's schema either.
    strict = StructType([StructField("queueOffset", LongType(), nullable=False)])
    assert load(spark, strict, **given).count() == COUNT


def test_sql_view_and_limit(spark: SparkSession, directory: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW flights USING rocketmq "
        f"OPTIONS (storePath '{directory}', topic 'flights', subExpression 'T0 || T2')"
    )
    row = spark.sql("SELECT count(*) AS n, count(DISTINCT msgId) AS ids FROM flights").first()
    assert row is not None
    assert (row.n, row.ids) == (COUNT - len(range(1, COUNT, 3)),) * 2
    assert len(spark.sql("SELECT * FROM flights LIMIT 3").collect()) == 3


def test_an_empty_range_gives_no_rows(spark: SparkSession, directory: Path) -> None:
    assert load(spark, storePath=str(directory), topic="flights", startingOffsets="latest").count() == 0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"topik": "flights"}, "the nearest is topic"),
        ({"nameServer": "h:1"}, "exactly one of these two"),
        ({"topic": "fligths"}, "existing topics: flights, other"),
        (
            {"startingOffsets": '{"flights":{"broker-a":{"0":9999,"1":0,"2":0,"3":0}}}'},
            r"queue flights@broker-a:0: offsets 9999 to 9999 are wanted, 0 to 1250 exist",
        ),
    ],
)
def test_mistakes_are_told(spark: SparkSession, directory: Path, given: dict[str, str], text: str) -> None:
    with pytest.raises((AnalysisException, PySparkException), match=text):
        load(spark, **{"storePath": str(directory), "topic": "flights", **given}).count()


def test_through_a_broker(spark: SparkSession, shared_broker: BrokerProcess) -> None:
    shared_broker.send_all(
        Message("batch", f"body {number}".encode(), tags="T", keys=str(number)) for number in range(3000)
    )
    rows = load(spark, nameServer=shared_broker.namesrv, topic="batch", maxRecordsPerPartition="500")
    row = rows.selectExpr("count(*)", "count(distinct keys)", "count(distinct brokerName, queueId)").first()
    assert row is not None
    assert tuple(row)[:2] == (3000, 3000)
    assert rows.where("cast(body as string) = 'body 17'").select("keys").first() == ("17",)
    # The same messages are read in place while the broker runs.
    in_place = load(spark, storePath=str(shared_broker.store), topic="batch")
    assert in_place.exceptAll(rows).count() == 0


def test_filters_make_less_to_read_and_the_same_result(spark: SparkSession, directory: Path) -> None:
    given = {"storePath": str(directory), "subscribePattern": ".*", "scanOrder": "queue"}
    conditions = {
        "topic = 'flights' AND queueId IN (1, 2) AND queueOffset >= 1000 AND queueOffset < 1100 AND tags = 'T1'": 2,
        "storeTimestamp > timestamp'2100-01-01'": 1,
    }
    reused = load(spark, **given)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for condition, partitions in conditions.items():
            whole, cut = reused.where(condition), load(spark, **given, pushFilters="true").where(condition)
            assert (whole.count(), whole.rdd.getNumPartitions()) == (cut.count(), 8)
            assert cut.rdd.getNumPartitions() == partitions
        assert reused.count() == COUNT + 100
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_query_reads_the_columns_it_uses(spark: SparkSession, directory: Path) -> None:
    given = {"storePath": str(directory), "topic": "flights"}
    cases = {
        "SELECT tags, count(*) AS n FROM rows WHERE queueId < 2 GROUP BY tags": {"tags", "queueId"},
        "SELECT count(*) AS n FROM rows": {"topic"},
        "SELECT a.keys FROM rows a JOIN rows b USING (msgId)": {"keys", "msgId"},
        "SELECT b.tags FROM rows a JOIN rows b ON a.keys = b.keys AND b.queueId < 2": {"tags", "keys", "queueId"},
    }
    for text, columns in cases.items():
        loaded: list[DataFrame] = []

        def query(rows: DataFrame, text: str = text, loaded: list[DataFrame] = loaded) -> DataFrame:
            loaded.append(rows)
            return spark.sql(text.replace("rows", "{rows}"), rows=rows)

        found = prune(spark, query, **given)
        assert set(loaded[1].columns) == columns
        if "tags" in columns:
            assert sorted(found.collect()) == sorted(query(load(spark, **given)).collect())
    with pytest.raises(ConfigError, match="the query determines the columns"):
        prune(spark, lambda rows: rows, **given, columns="topic")


def test_a_query_that_reads_the_rows_twice_takes_all_of_them(spark: SparkSession, directory: Path) -> None:
    given = {"storePath": str(directory), "topic": "flights"}

    def query(rows: DataFrame) -> DataFrame:
        return rows.where("queueId = 1").union(rows.where("queueId = 2 AND queueOffset < 10"))

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert prune(spark, query, **given).count() == COUNT // 4 + 10
        once = prune(spark, lambda rows: rows.where("queueId = 1"), **given)
        assert (once.count(), once.rdd.getNumPartitions()) == (COUNT // 4, 1)
        # Spark uses one plan for all reads of a ``load()``, based on the filters that it pushed last. Until Spark
        # changes this, pushFilters cannot be on by default.
        rows = load(spark, **given, pushFilters="true", scanOrder="queue")
        assert query(rows).count() < COUNT // 4 + 10
        assert rows.count() < COUNT
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


TABLE = (
    "CREATE TABLE made USING rocketmq OPTIONS (storePath '{0}', topic 'flights')",
    "CREATE TABLE made USING rocketmq TBLPROPERTIES (topic 'flights') LOCATION '{0}'",
    "CREATE TABLE made USING rocketmq LOCATION '{0}'",
    "CREATE TABLE made (queueId int) USING rocketmq OPTIONS (storePath '{0}', topic 'flights'); SELECT * FROM made",
)


@pytest.mark.parametrize("text", TABLE)
def test_create_table_says_what_works(spark: SparkSession, directory: Path, text: str) -> None:
    """Spark passes the options of a table on under other names, or not at all."""
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW") as caught:
        for statement in text.split("; "):
            spark.sql(statement.format(directory)).collect()
    spark.sql("DROP TABLE IF EXISTS made")
    found = re.search(r"CREATE TEMPORARY VIEW \w+ USING rocketmq OPTIONS \(\.\.\.\)", str(caught.value))
    assert found is not None
    spark.sql(found[0].replace("...", f"storePath '{directory}', topic 'flights'"))
    try:
        assert spark.sql("SELECT count(*) AS n FROM v").collect() == [(COUNT,)]
    finally:
        spark.catalog.dropTempView("v")


def test_create_table_as_select_says_what_works(spark: SparkSession, shared_broker: BrokerProcess) -> None:
    options = f"OPTIONS (nameServer '{shared_broker.namesrv}', topic 'as-select')"
    with pytest.raises(PySparkException, match=r"df\.write\.format\("):
        spark.sql(f"CREATE TABLE made USING rocketmq {options} AS SELECT 'x' AS body")
    spark.sql("DROP TABLE IF EXISTS made")
    df = spark.sql("SELECT 'x' AS body")
    where = {"nameServer": shared_broker.namesrv, "topic": "as-select"}
    df.write.format("rocketmq").options(**where).mode("append").save()
    assert load(spark, **where).count() == 1
