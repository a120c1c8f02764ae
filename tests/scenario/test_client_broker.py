"""Our clients with our name server and broker, over loopback and real files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rucola import Message, MessageQueue, Producer, ProducerConfig, PullConsumer, PullStatus, SendStatus
from rucola.broker import Broker, BrokerConfig
from rucola.errors import BrokerError
from rucola.namesrv import NameServer, NamesrvConfig
from rucola.store.config import MessageStoreConfig
from rucola.testing.event_loop import run_stepped


def new_broker(names: NameServer, store: Path, port: int = 0) -> Broker:
    settings = MessageStoreConfig(
        store_path_root_dir=str(store),
        mapped_file_size_commit_log=8 * 1024 * 1024,
        mapped_file_size_consume_queue=20_000,
    )
    return Broker(BrokerConfig(listen_port=port, namesrv_addr=names.address), settings)


@asynccontextmanager
async def cluster(store: Path) -> AsyncIterator[NameServer]:
    names = NameServer(NamesrvConfig(listen_port=0))
    await names.start()
    broker = new_broker(names, store)
    await broker.start()
    try:
        yield names
    finally:
        await broker.shutdown()
        await names.shutdown()


async def read_all(consumer: PullConsumer, topic: str) -> list[tuple[MessageQueue, int, bytes]]:
    found = []
    for queue in await consumer.message_queues(topic):
        queue_offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
        while queue_offset < end:
            result = await consumer.pull(queue, queue_offset)
            assert result.status is PullStatus.FOUND
            found += [(queue, message.queue_offset, message.body) for message in result.messages]
            queue_offset = result.next_begin_offset
    return found


def test_sent_messages_can_be_pulled(tmp_path):
    async def scene() -> None:
        async with (
            cluster(tmp_path) as names,
            Producer("pg", names.address) as producer,
            PullConsumer("cg", names.address) as consumer,
        ):
            text = b"long enough to be compressed " * 1_000
            sent = await producer.send(
                Message("T", text, tags="TagA", keys=["k1", "k2"], properties={"origin": "Zürich"})
            )
            assert sent.status is SendStatus.SEND_OK
            queue = sent.message_queue
            result = await consumer.pull(queue, sent.queue_offset, suspend_timeout_ms=10_000)
            message = result.messages[0]
            assert (message.body, message.tags, message.keys) == (text, "TagA", "k1 k2")
            assert message.properties["origin"] == "Zürich"
            assert (message.msg_id, message.offset_msg_id) == (sent.msg_id, sent.offset_msg_id)
            assert message.properties["CLUSTER"] == "DefaultCluster"
            assert (await consumer.message_by_id(sent.offset_msg_id)).msg_id == sent.msg_id
            assert [found.msg_id for found in await consumer.query_by_key("T", "k2")] == [sent.msg_id]
            assert [found.body for found in await consumer.query_by_unique_key("T", sent.msg_id)] == [text]
            assert await consumer.query_by_key("T", "k3") == []
            assert await consumer.offset_for_time(queue, message.store_timestamp_ms) == 0
            assert await consumer.earliest_store_time(queue) == message.store_timestamp_ms
            assert "T" in await consumer.topics()
            assert (await consumer.pull(queue, 0, expression="TagB")).messages == []
            assert (await consumer.pull(queue, 99)).status is PullStatus.OFFSET_ILLEGAL

    run_stepped(scene())


def test_pipelined_and_batched(tmp_path):
    async def scene() -> None:
        async with (
            cluster(tmp_path) as names,
            Producer("pg", names.address, ProducerConfig(back_pressure_for_async_send_num=256)) as producer,
            PullConsumer("cg", names.address) as consumer,
        ):
            bodies = [f"message {n}".encode() * (1 + n % 7) for n in range(5_000)]
            futures = []
            for body in bodies:
                await producer.ready()
                futures.append(producer.submit(Message("T", body)))
            results = await asyncio.gather(*futures)
            batch = await producer.send_batch([Message("T", f"batch {n}".encode()) for n in range(10)])
            await consumer.pull(batch.message_queue, batch.queue_offset + 9, suspend_timeout_ms=10_000)
            found = await read_all(consumer, "T")
            stored = {(queue, queue_offset): body for queue, queue_offset, body in found}
            assert len(found) == len(stored) == 5_010
            assert [stored[result.message_queue, result.queue_offset] for result in results] == bodies
            members = [stored[batch.message_queue, batch.queue_offset + n] for n in range(10)]
            assert members == [f"batch {n}".encode() for n in range(10)]
            assert len(set(batch.msg_id.split(","))) == len(set(batch.offset_msg_id.split(","))) == 10

    run_stepped(scene())


def test_a_held_pull_is_woken_by_a_message(tmp_path):
    async def scene() -> None:
        async with (
            cluster(tmp_path) as names,
            Producer("pg", names.address) as producer,
            PullConsumer("cg", names.address) as consumer,
        ):
            first = await producer.send(Message("T", b"first"))
            queue = first.message_queue
            await consumer.pull(queue, 0, suspend_timeout_ms=10_000)
            waiting = asyncio.ensure_future(consumer.pull(queue, 1, suspend_timeout_ms=60_000))
            await consumer.max_offset(queue)  # the broker reads this request after the pull, so the pull is held now
            assert not waiting.done()
            await producer.send(Message("T", b"second"), queue)
            assert [message.body for message in (await waiting).messages] == [b"second"]

    run_stepped(scene())


def test_progress_of_a_group(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as names, Producer("pg", names.address) as producer:
            queue = (await producer.send(Message("T", b"x"))).message_queue
            async with PullConsumer("cg", names.address) as consumer:
                await consumer.pull(queue, 0)
                assert await consumer.committed(queue) is None
                await consumer.commit(queue, 1)
                assert await consumer.committed(queue) == 1
            async with PullConsumer("other", names.address) as consumer:
                await consumer.pull(queue, 0)
                assert await consumer.committed(queue) is None

    run_stepped(scene())


def test_the_broker_refuses_a_queue_that_is_not_there(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as names, Producer("pg", names.address) as producer:
            queue = (await producer.send(Message("T", b"x"))).message_queue
            far = MessageQueue("T", queue.broker_name, 1_000)
            with pytest.raises(BrokerError) as caught:
                await producer.send(Message("T", b"x"), far)
            assert caught.value.code == 29

    run_stepped(scene())


def test_everything_submitted_over_a_restart_arrives(tmp_path):
    """The broker stops and starts while messages are sent. Every send is acknowledged with its own id; some messages
    may exist twice.
    """

    async def scene() -> None:
        config = ProducerConfig(
            send_msg_timeout_ms=60_000,
            retry_times_when_send_async_failed=1_000_000,
            retry_backoff_max_ms=50,
            back_pressure_for_async_send_num=64,
        )
        names = NameServer(NamesrvConfig(listen_port=0))
        await names.start()
        broker = new_broker(names, tmp_path)
        await broker.start()
        producer = Producer("pg", names.address, config)
        await producer.start()
        await producer.send(Message("T", b"first"))
        futures = []

        async def submit_all() -> None:
            for n in range(3_000):
                await producer.ready()
                futures.append(producer.submit(Message("T", str(n).encode())))

        submitting = asyncio.ensure_future(submit_all())
        while len(futures) < 1_000:
            await asyncio.sleep(0)
        await broker.shutdown()
        broker = new_broker(names, tmp_path)  # the broker has a new port, which clients learn from the route
        await broker.start()
        await submitting
        results = await asyncio.gather(*futures)
        assert len({result.msg_id for result in results}) == 3_000
        async with PullConsumer("cg", names.address) as consumer:
            last = results[-1]
            await consumer.pull(last.message_queue, last.queue_offset, suspend_timeout_ms=10_000)
            stored = {(queue, queue_offset): body for queue, queue_offset, body in await read_all(consumer, "T")}
            for n, result in enumerate(results):
                assert stored[result.message_queue, result.queue_offset] == str(n).encode()
        await producer.shutdown()
        await broker.shutdown()
        await names.shutdown()

    run_stepped(scene())
