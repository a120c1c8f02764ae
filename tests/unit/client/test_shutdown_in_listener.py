"""A listener may shut down its own consumer, and call its other methods."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.brokers import run_virtual
from tests.unit.client.consuming import cluster, send

from rucola import ConsumeFromWhere, Message, MessageModel, PushConsumer, PushConsumerConfig
from rucola.errors import ClientError
from rucola.sync import PushConsumer as BlockingPushConsumer

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
ORDERLY = [False, True]


def config(orderly: bool, **options: object) -> PushConsumerConfig:
    return PushConsumerConfig(consume_orderly=orderly, consume_from_where=FIRST, **options)


def progress(servers, group: str) -> int:
    """Sum of the group's stored offsets of topic T."""
    stored = servers.broker.services.offsets
    return sum(stored.query(group, "T", queue_id) or 0 for queue_id in range(8))


def members(servers, group: str) -> list[str]:
    found = servers.broker.services.consumers.group(group)
    return [] if found is None else found.client_ids()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("orderly", ORDERLY)
def test_a_coroutine_shuts_its_consumer_down(orderly, fails, tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            consumer = PushConsumer("G", servers.namesrv.address, config(orderly))
            got, gate = [], asyncio.Event()

            async def listener(message):
                got.append(message.body)
                await consumer.shutdown()
                got.append("goes on")
                await gate.wait()
                if fails:
                    raise ValueError("no")

            await producer.message_queues("T")
            await consumer.subscribe("T")
            consumer.register_message_listener(listener)
            await consumer.start()
            await send(producer, b"1")
            while len(got) < 2:
                await asyncio.sleep(0.01)
            with pytest.raises(ClientError, match="is shut down"):
                consumer.suspend()
            assert members(servers, "G")  # the call still runs, so the consumer has not left
            gate.set()
            await consumer.shutdown()  # waits for the end
            assert got == [b"1", "goes on"]
            assert members(servers, "G") == []
            assert progress(servers, "G") == (0 if fails and orderly else 1)
            assert not [task for task in asyncio.all_tasks() if "rucola: worker" in task.get_name()]

    run_virtual(scene())


@pytest.mark.parametrize("orderly", ORDERLY)
def test_a_function_shuts_its_consumer_down_by_a_blocking_call(orderly, tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            got, consumer = [], BlockingPushConsumer("G", servers.namesrv.address, config(orderly))

            def listener(message):
                got.append(message.body)
                consumer.shutdown()
                got.append("goes on")

            consumer.subscribe("T")
            consumer.register_message_listener(listener)
            await asyncio.to_thread(consumer.start)
            await send(producer, b"1")
            while len(got) < 2:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(consumer.shutdown)
            assert got == [b"1", "goes on"]
            assert members(servers, "G") == []
            assert progress(servers, "G") == 1
            assert not [thread for thread in threading.enumerate() if thread.name.startswith("rucola-consume")]

    run_virtual(scene())


@pytest.mark.parametrize("orderly", ORDERLY)
def test_no_further_call_begins_after_shutdown_in_a_listener(orderly, tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            consumer = PushConsumer("G", servers.namesrv.address, config(orderly, consume_thread_max=1))
            got = []

            async def listener(message):
                got.append(message.body)
                await consumer.shutdown()

            await producer.message_queues("T")
            await consumer.subscribe("T")
            consumer.register_message_listener(listener)
            queue = (await producer.message_queues("T"))[0]
            for body in b"1", b"2":
                await producer.send(Message("T", body), queue)
            async with consumer:
                while not got:
                    await asyncio.sleep(0.01)
            assert got == [b"1"]
            assert progress(servers, "G") == 1

    run_virtual(scene())


def test_several_calls_at_the_same_time_share_one_shutdown(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            consumer = PushConsumer("G", servers.namesrv.address, config(False))
            got = []

            async def listener(message):
                got.append(message.body)
                while len(got) < 3:
                    await asyncio.sleep(0.01)
                await consumer.shutdown()

            await producer.message_queues("T")
            await consumer.subscribe("T")
            consumer.register_message_listener(listener)
            await consumer.start()
            await send(producer, b"1", b"2", b"3")
            while len(got) < 3:
                await asyncio.sleep(0.01)
            await asyncio.gather(consumer.shutdown(), consumer.shutdown())
            assert progress(servers, "G") == 3
            await consumer.shutdown()

    run_virtual(scene())


def test_the_shutdown_goes_on_if_its_caller_is_cancelled(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            consumer = PushConsumer("G", servers.namesrv.address, config(False))
            gate, got = asyncio.Event(), []

            async def listener(message):
                got.append(message.body)
                await gate.wait()

            await producer.message_queues("T")
            await consumer.subscribe("T")
            consumer.register_message_listener(listener)
            await consumer.start()
            await send(producer, b"1")
            while not got:
                await asyncio.sleep(0.01)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.shutdown(), 0.05)
            gate.set()
            await consumer.shutdown()
            assert members(servers, "G") == []
            assert progress(servers, "G") == 1

    run_virtual(scene())


@pytest.mark.parametrize("model", [MessageModel.CLUSTERING, MessageModel.BROADCASTING])
@pytest.mark.parametrize("orderly", ORDERLY)
def test_other_methods_may_be_called_inside_a_listener(orderly, model, tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            options = config(orderly, message_model=model, local_offset_store_dir=str(tmp_path / "offsets"))
            consumer = PushConsumer("G", servers.namesrv.address, options)
            done = asyncio.Event()

            async def listener(message):
                assert consumer.assignment
                consumer.suspend()
                await consumer.subscribe("U")
                await consumer.unsubscribe("U")
                await consumer.unsubscribe("T")
                await consumer.subscribe("T")
                assert await consumer.send_message_back(message)
                consumer.resume()
                with pytest.raises(ClientError, match="before the consumer is started"):
                    consumer.register_message_listener(print)
                await consumer.start()  # does nothing
                done.set()

            await producer.message_queues("T")
            await consumer.subscribe("T")
            consumer.register_message_listener(listener)
            async with consumer:
                await send(producer, b"1")
                await asyncio.wait_for(done.wait(), 20)

    run_virtual(scene())


@pytest.mark.ends_with_loop
def test_a_consumer_forgotten_after_shutdown_in_a_listener_raises_nothing(tmp_path):
    """``shutdown`` may be the last call: the loop ends at once."""

    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            consumer = PushConsumer("G", servers.namesrv.address, config(False))
            done = asyncio.Event()

            async def listener(message):
                await consumer.shutdown()
                done.set()

            await producer.message_queues("T")
            await consumer.subscribe("T")
            consumer.register_message_listener(listener)
            await consumer.start()
            await send(producer, b"1")
            await done.wait()

    run_virtual(scene())
