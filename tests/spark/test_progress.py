"""The progress of a stream is published as the progress of a consumer group."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rucola.client.admin import AdminClient
from rucola.common.message import Message
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError
from rucola.spark.progress import ProgressPublisher
from rucola.sync import PullConsumer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .conftest import BrokerProcess

PATIENCE_S = 300


@pytest.mark.spark
def test_a_stream_is_seen_as_a_consumer(spark: SparkSession, shared_broker: BrokerProcess, tmp_path: Path) -> None:
    with shared_broker.producer() as producer:
        producer.send_many([Message("followed", b"x") for _ in range(500)])
    publisher = ProgressPublisher(shared_broker.namesrv, "spark-followed", query_name="followed")
    spark.streams.addListener(publisher)
    given = {"nameServer": shared_broker.namesrv, "topic": "followed", "startingOffsets": "earliest"}
    rows = spark.readStream.format("rocketmq").options(**given, columns="queueId").load()
    try:
        query = (
            rows.writeStream.format("noop")
            .queryName("followed")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(PATIENCE_S)
        with PullConsumer("spark-followed", shared_broker.namesrv) as consumer:
            queues = consumer.message_queues("followed")
            deadline = time.monotonic() + PATIENCE_S
            while sum(consumer.committed(queue) or 0 for queue in queues) < 500:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    finally:
        spark.streams.removeListener(publisher)
        publisher.close()


def test_mqadmin_shows_progress_also_without_a_broker(own_broker: BrokerProcess) -> None:
    with own_broker.producer() as producer:
        for _ in range(7):
            producer.send(Message("watched", b"x"), MessageQueue("watched", "broker-a", 0) if _ else None)
    publisher = ProgressPublisher(own_broker.namesrv, "watching")

    def report(end: int) -> Any:
        source = SimpleNamespace(endOffset=json.dumps({"watched": {"broker-a": {"0": end}}}), latestOffset=None)
        return SimpleNamespace(progress=SimpleNamespace(id="i", name=None, sources=[source]))

    publisher.onQueryProgress(report(2))
    own_broker.kill()
    publisher.onQueryProgress(report(4))
    own_broker.start()

    async def shown() -> list[int]:
        async with AdminClient(own_broker.namesrv) as admin:
            stats = await admin.consume_stats("watching")
            return [one.consumer_offset for queue, one in stats.offset_table.items() if queue.queue_id == 0]

    # The official broker refuses offsets of a group that it does not know. It learns of the group, and creates the
    # retry topic, when the publisher's client comes back.
    deadline = time.monotonic() + PATIENCE_S
    found: list[int] = []
    while not found:
        assert time.monotonic() < deadline
        publisher.onQueryIdle(SimpleNamespace(id="i"))
        with suppress(BrokerError):
            found = asyncio.run(shown())
        time.sleep(0 if found else 0.1)
    publisher.close()
    assert found == [4]
