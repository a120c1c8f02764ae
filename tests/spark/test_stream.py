"""The ``rocketmq`` format as a stream: restarts, limits, and a broker that is killed meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rucola.common.message import Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from .conftest import BrokerProcess

pytestmark = pytest.mark.spark

PATIENCE_S = 300


def send(broker: BrokerProcess, topic: str, numbers: range) -> None:
    broker.send_all(Message(topic, b"x" * 100, keys=str(number)) for number in numbers)


def stream(spark: SparkSession, **options: str) -> DataFrame:
    fixed = {"columns": "queueId,queueOffset,keys", "startingOffsets": "earliest"}
    return spark.readStream.format("rocketmq").options(**fixed | options).load()


def run_available(rows: DataFrame, directory: Path) -> StreamingQuery:
    """Runs the stream once with AvailableNow, into Parquet with a checkpoint."""
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .option("path", str(directory / "rows"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)
    return query


def keys_in(spark: SparkSession, directory: Path) -> list[int]:
    return sorted(int(row["keys"]) for row in spark.read.parquet(str(directory / "rows")).collect())


def wait_until(condition: Callable[[], bool], query: StreamingQuery) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)


@pytest.mark.few(1)
@pytest.mark.parametrize("place", ["broker", "directory"])
def test_a_restart_takes_exactly_the_new_rows(
    spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path, place: str
) -> None:
    topic = f"restart-{place}"
    where = {"nameServer": shared_broker.namesrv} if place == "broker" else {"storePath": str(shared_broker.store)}
    send(shared_broker, topic, range(2000))
    query = run_available(stream(spark, topic=topic, maxOffsetsPerTrigger="900", **where), tmp_path)
    batches = [json.loads(progress.json) for progress in query.recentProgress]
    assert [batch["numInputRows"] for batch in batches if batch["numInputRows"]] == [900, 900, 200]
    assert keys_in(spark, tmp_path) == list(range(2000))
    send(shared_broker, topic, range(2000, 2500))
    query = run_available(stream(spark, topic=topic, **where), tmp_path)
    batches = [json.loads(progress.json) for progress in query.recentProgress]
    assert sum(batch["numInputRows"] for batch in batches) == 500
    assert keys_in(spark, tmp_path) == list(range(2500))
    end = batches[-1]["sources"][0]["endOffset"]
    assert set(end) == {"#last", topic}
    assert sum(end[topic]["broker-a"].values()) == 2500
    run_available(stream(spark, topic=topic, **where), tmp_path)
    assert keys_in(spark, tmp_path) == list(range(2500))


def test_a_broker_killed_under_a_stream(spark: SparkSession, own_broker: BrokerProcess, tmp_path: Path) -> None:
    send(own_broker, "killed", range(1000))
    query = (
        stream(spark, topic="killed", nameServer=own_broker.namesrv, retryTimeoutMs="200")
        .writeStream.format("memory")
        .queryName("killed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        wait_until(lambda: spark.table("killed").count() >= 1000, query)
        own_broker.kill()
        time.sleep(1.0)
        assert query.isActive
        own_broker.start()
        send(own_broker, "killed", range(1000, 1600))
        wait_until(lambda: spark.table("killed").count() >= 1600, query)
    finally:
        query.stop()
    keys = [int(row["keys"]) for row in spark.table("killed").collect()]
    assert sorted(keys) == list(range(1600))


def test_a_stream_starts_before_its_topic(spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    query = (
        stream(spark, topic="later", nameServer=shared_broker.namesrv)
        .writeStream.format("memory")
        .queryName("later")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        wait_until(lambda: query.status["message"] != "Initializing sources", query)
        send(shared_broker, "later", range(50))
        wait_until(lambda: spark.table("later").count() >= 50, query)
    finally:
        query.stop()
    assert sorted(int(row["keys"]) for row in spark.table("later").collect()) == list(range(50))


def test_messages_sent_while_a_stream_without_a_topic_is_down(
    spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path
) -> None:
    """Spark must log the first offsets of the query, although the query has read nothing."""
    options = {"topic": "afterwards", "nameServer": shared_broker.namesrv, "startingOffsets": "latest"}
    query = (
        stream(spark, **options)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("path", str(tmp_path / "rows"))
        .start()
    )
    try:
        wait_until((tmp_path / "checkpoint" / "commits" / "0").exists, query)
        time.sleep(0.5)  # an idle query logs nothing more
        assert sorted(path.name for path in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")) == ["0"]
    finally:
        query.stop()
    send(shared_broker, "afterwards", range(10))
    run_available(stream(spark, **options), tmp_path)
    send(shared_broker, "afterwards", range(10, 15))
    run_available(stream(spark, **options), tmp_path)
    assert keys_in(spark, tmp_path) == list(range(15))


def test_lost_messages_stop_a_stream(spark: SparkSession, own_broker: BrokerProcess, tmp_path: Path) -> None:
    send(own_broker, "lost", range(100))
    run_available(stream(spark, topic="lost", nameServer=own_broker.namesrv), tmp_path)
    own_broker.stop()
    # The store comes back empty: the messages to which the checkpoint points do not exist.
    own_broker.store.rename(own_broker.directory / "old")
    own_broker.start()
    send(own_broker, "lost", range(8))
    with pytest.raises(Exception, match=r"queue lost@broker-a:\d: offsets .* failOnDataLoss=false"):
        run_available(stream(spark, topic="lost", nameServer=own_broker.namesrv), tmp_path)
    lenient = stream(spark, topic="lost", nameServer=own_broker.namesrv, failOnDataLoss="false")
    run_available(lenient, tmp_path)
    assert keys_in(spark, tmp_path) == sorted([*range(100), *range(8)])
