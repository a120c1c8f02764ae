"""Planning of a stream, without Spark, while topics are deleted and one of two brokers is killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType
from tests.spark.conftest import BrokerProcess, SecondBroker

from rucola.arrow import broker_catalog
from rucola.arrow.broker_pull import pull_queue
from rucola.arrow.columns import BatchBuilder
from rucola.arrow.offsets import StreamDocument, StreamOffsets
from rucola.arrow.ranges import QueueRange
from rucola.client.admin import AdminClient
from rucola.common.message import Message
from rucola.common.message_queue import MessageQueue
from rucola.errors import DataLossError
from rucola.spark.options import parse_options
from rucola.spark.stream import RocketMQStreamReader

PATIENCE_S = 300
LIVE_ROWS_S = 5


def stream_of(broker: BrokerProcess, topic: str, **given: str) -> RocketMQStreamReader:
    options = parse_options(
        {
            "nameServer": broker.namesrv,
            "subscribePattern": topic,
            "startingOffsets": "earliest",
            "retryTimeoutMs": "5000",
            **given,
        }
    )
    return RocketMQStreamReader(options, StructType().add("queueOffset", "long"))


def send(broker: BrokerProcess, topic: str, count: int, queue: MessageQueue | None = None) -> None:
    with broker.producer() as producer:
        for _ in range(count):
            producer.send(Message(topic, b"x"), queue)


def delete(broker: BrokerProcess, topic: str) -> None:
    async def ask() -> None:
        async with AdminClient(broker.namesrv) as admin:
            await admin.delete_topic(topic, next(iter((await admin.cluster_info()).cluster_addr_table)))

    asyncio.run(ask())


def latest(stream: RocketMQStreamReader, start: StreamDocument) -> StreamDocument:
    return stream.latestOffset(start, ReadAllAvailable())


def end_of(end: StreamDocument, queue: MessageQueue) -> int:
    return StreamOffsets.from_document(end).offsets[queue]


def count_of(stream: RocketMQStreamReader, start: StreamDocument, end: StreamDocument) -> int:
    return sum(partition.value.count for partition in stream.partitions(start, end))


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_catalog, "QUEUES_AGE_MAX_S", 0.05)
    monkeypatch.setattr(broker_catalog, "GONE_PATIENCE_S", 0.3)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("restarted", [True, False])
def test_a_deleted_topic_does_not_end_a_lenient_query(shared_broker: BrokerProcess, restarted: bool) -> None:
    doomed, kept = f"doomed-{restarted}", f"kept-{restarted}"
    for topic in (doomed, kept):
        send(shared_broker, topic, 4)
    strict = stream_of(shared_broker, f".*-{restarted}")
    lenient = stream_of(shared_broker, f".*-{restarted}", failOnDataLoss="false")
    first = latest(lenient, {})
    assert latest(strict, {}) == first
    delete(shared_broker, doomed)
    send(shared_broker, kept, 3)
    if restarted:
        strict.stop()
        lenient.stop()
    time.sleep(0.1)
    wait_for(lambda: count_of(lenient, first, latest(lenient, first)) == 3)
    with pytest.raises(DataLossError, match=doomed):
        for _ in range(100):
            latest(strict, first)
            time.sleep(0.05)
    strict.stop()
    lenient.stop()


@pytest.mark.usefixtures("hasty")
def test_a_topic_made_again_and_grown_is_another_one(shared_broker: BrokerProcess) -> None:
    queue = MessageQueue("again", "broker-a", 0)
    send(shared_broker, "again", 1)
    send(shared_broker, "again", 5, queue)
    lenient = stream_of(shared_broker, "again", failOnDataLoss="false")
    strict = stream_of(shared_broker, "again")
    first = latest(lenient, {})
    delete(shared_broker, "again")
    time.sleep(0.2)
    send(shared_broker, "again", 1)
    send(shared_broker, "again", 20, queue)
    with pytest.raises(DataLossError, match="again@broker-a"):
        for _ in range(100):  # the replacement is seen as soon as the queue has grown past the logged offset
            latest(strict, first)
            time.sleep(0.05)
    wait_for(lambda: end_of(latest(lenient, first), queue) >= 20)
    end = latest(lenient, first)
    pieces = [partition.value for partition in lenient.partitions(first, end)]
    assert [piece for piece in pieces if piece.queue == queue] == [QueueRange(queue, 0, end_of(end, queue))]
    assert latest(lenient, end) == end
    strict.stop()
    lenient.stop()


def test_reading_leaves_nothing_in_the_broker(own_broker: BrokerProcess) -> None:
    send(own_broker, "quiet", 3)

    async def left() -> tuple[set[str], set[str]]:
        async with AdminClient(own_broker.namesrv) as admin:
            address = (await admin.masters(None, None))[0]
            return set(await admin.topic_list()), set(await admin.api.all_groups(address))

    before = asyncio.run(left())
    for pattern in ("quiet", ".*"):
        stream = stream_of(own_broker, pattern)
        end = latest(stream, {})
        assert {queue.topic for queue in StreamOffsets.from_document(end).offsets} == {"quiet"}
        builder = BatchBuilder(stream.options, [], pa.schema([]), "broker-a")
        for partition in stream.partitions({}, end):
            list(pull_queue(stream.options, builder, partition.value))
        stream.stop()
    assert asyncio.run(left()) == before


@pytest.fixture
def second_broker(own_broker: BrokerProcess, tmp_path: Path) -> Iterator[SecondBroker]:
    second = SecondBroker(tmp_path, own_broker.namesrv)
    second.start()
    yield second
    second.kill()


def test_one_of_two_brokers_dead(own_broker: BrokerProcess, second_broker: SecondBroker) -> None:
    near, far = (MessageQueue("pair", name, 0) for name in ("broker-a", "broker-b"))
    send(own_broker, "pair", 40)  # the producer sends to both brokers in turn, so both create the topic
    stream = stream_of(own_broker, "pair")
    first = latest(stream, {})
    assert {queue.broker_name for queue in StreamOffsets.from_document(first).offsets} == {"broker-a", "broker-b"}
    assert count_of(stream, {}, first) == 40
    send(own_broker, "pair", 7, far)
    second_broker.kill()
    send(own_broker, "pair", 5, near)
    wait_for(lambda: end_of(latest(stream, first), near) == end_of(first, near) + 5, LIVE_ROWS_S)
    second = latest(stream, first)
    at = end_of(first, near)
    assert [partition.value for partition in stream.partitions(first, second)] == [QueueRange(near, at, at + 5)]
    assert latest(stream, second) == second
    second_broker.start()
    at = end_of(first, far)
    wait_for(lambda: end_of(latest(stream, second), far) == at + 7)
    third = latest(stream, second)
    assert [partition.value for partition in stream.partitions(second, third)] == [QueueRange(far, at, at + 7)]
    stream.stop()


def test_a_planned_micro_batch_waits_for_its_broker(
    own_broker: BrokerProcess, second_broker: SecondBroker, caplog: pytest.LogCaptureFixture
) -> None:
    send(own_broker, "planned", 40)
    stream = stream_of(own_broker, "planned", retryTimeoutMs="500")
    end = latest(stream, {})
    far = [one for one in stream.partitions({}, end) if one.value.queue.broker_name == "broker-b"]
    assert sum(one.value.count for one in far) > 1
    second_broker.kill()
    again = stream_of(own_broker, "planned", retryTimeoutMs="100")
    wait_for(lambda: [one.value for one in again.partitions({}, end)] == [o.value for o in stream.partitions({}, end)])
    with ThreadPoolExecutor(1) as pool:
        rows = pool.submit(lambda: [at.as_py() for batch in stream.read(far[0]) for at in batch["queueOffset"]])
        wait_for(lambda: "waits for its broker" in caplog.text)
        time.sleep(1.0)  # twice the patience
        assert not rows.done()
        assert caplog.text.count("waits for its broker") == 1
        second_broker.start()
        assert rows.result(PATIENCE_S) == list(range(far[0].value.count))
    for one in (stream, again):
        one.stop()


@pytest.mark.usefixtures("hasty")
def test_a_topic_deleted_under_a_task_is_data_loss(shared_broker: BrokerProcess) -> None:
    send(shared_broker, "vanishing", 8)
    strict, lenient = (
        stream_of(shared_broker, "vanishing", retryTimeoutMs="300", failOnDataLoss=fails) for fails in ("true", "false")
    )
    piece = lenient.partitions({}, latest(lenient, {}))[0]
    delete(shared_broker, "vanishing")
    wait_for(lambda: not lenient._open().queues(all_needed=False))
    assert not list(lenient.read(piece))
    with pytest.raises(DataLossError, match="vanishing"):
        list(strict.read(piece))
    lenient.stop()


@pytest.mark.usefixtures("hasty")
def test_a_stream_outlives_its_name_servers(own_broker: BrokerProcess, caplog: pytest.LogCaptureFixture) -> None:
    send(own_broker, "alone", 8)
    stream = stream_of(own_broker, "alone", retryTimeoutMs="100")
    first = latest(stream, {})
    own_broker.kill()
    for _ in range(4):
        assert latest(stream, first) == first
        time.sleep(0.1)
    assert caplog.text.count("no name server responds") == 1
    own_broker.start()
    send(own_broker, "alone", 3)
    wait_for(lambda: count_of(stream, first, latest(stream, first)) == 3)
    stream.stop()
