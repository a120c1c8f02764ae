"""Promises of the clients' methods that no other test shows, against a broker: see tests/promises.toml."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterator
from itertools import accumulate

import pytest

from rucola import (
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    RemotingClosedError,
    RemotingConnectError,
    SimpleConsumer,
    SimpleConsumerConfig,
)
from rucola.errors import BrokerError
from rucola.formats.message import decode_messages
from rucola.protocol.batch_members import pack_members
from rucola.testing.rocketmq import RocketMQ


@pytest.fixture
def rocketmq() -> Iterator[RocketMQ]:
    with RocketMQ() as servers:
        yield servers


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))


async def _send(rocketmq: RocketMQ, topic: str, *bodies: bytes, keys: str = "") -> None:
    async with Producer("pg", rocketmq.namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, keys=keys or None))


def test_connections_are_opened_when_needed() -> None:
    async def work() -> None:
        async with PullConsumer("cg", "127.0.0.1:1") as consumer:
            with pytest.raises(RemotingConnectError):
                await consumer.topics()

    run(work)


def test_a_producer_that_ends_waits_for_its_results(rocketmq: RocketMQ) -> None:
    async def work() -> None:
        with rocketmq.faults.delay(0.2, "send"):
            async with Producer("pg", rocketmq.namesrv) as producer:
                sent = producer.submit(Message("ended", b"x"))
            assert sent.done() and sent.result().queue_offset == 0

    run(work)


def test_packed_messages_go_to_one_queue(rocketmq: RocketMQ) -> None:
    async def work() -> None:
        async with Producer("pg", rocketmq.namesrv) as producer:
            await _send(rocketmq, "packed", b"first")
            bodies = [b"a", b"bc", b"def"]
            result = await producer.submit_packed("packed", _packed(bodies))
            stored = [message for message in rocketmq.messages("packed") if message.body in bodies]
            assert [message.body for message in stored] == bodies
            assert {message.queue_id for message in stored} == {result.message_queue.queue_id}
            assert len({message.uniq_key for message in stored}) == 3

    run(work)


def _packed(bodies: list[bytes]) -> bytes:
    offsets = array("i", accumulate(map(len, bodies), initial=0))
    ids = b"".join(b"%032d" % number for number in range(len(bodies)))
    no_texts = array("i", [0] * (len(bodies) + 1))
    return pack_members(offsets, b"".join(bodies), no_texts, b"", ids, 0, 1 << 20, 100)[1]


def test_the_broker_knows_a_client_by_its_id(rocketmq: RocketMQ) -> None:
    async def work() -> None:
        rocketmq.create_topic("known")
        await _send(rocketmq, "known", b"x")
        push, lite = (
            kind(kind.__name__, rocketmq.namesrv, topics=["known"]) for kind in (PushConsumer, LitePullConsumer)
        )
        simple = SimpleConsumer("SimpleConsumer", rocketmq.namesrv)
        await simple.subscribe("known")
        async with push, lite, simple:
            assert await simple.receive(1)  # until then, it needs no connection
            for consumer in (push, lite, simple):
                members = await asyncio.to_thread(rocketmq.consumers, type(consumer).__name__, 1)
                assert members == [consumer.client_id]

    run(work)


def test_a_message_that_a_loop_sends_back_comes_again(rocketmq: RocketMQ) -> None:
    async def work() -> None:
        rocketmq.create_topic("back", queues=1)
        await _send(rocketmq, "back", b"not now", b"next")
        async with PushConsumer("back", rocketmq.namesrv, topics=["back"]) as consumer:
            seen = []
            async for message in consumer:
                seen.append((message.body, message.reconsume_times))
                if seen == [(b"not now", 0)]:
                    assert await consumer.send_message_back(message)
                elif len(seen) == 2:
                    await asyncio.to_thread(rocketmq.retries, "back", 1)
                    await asyncio.to_thread(rocketmq.clock.advance, seconds=11)
                else:
                    break
        assert seen == [(b"not now", 0), (b"next", 0), (b"not now", 1)]

    run(work)


def test_a_lite_pull_consumer_knows_queues_and_their_offsets(rocketmq: RocketMQ) -> None:
    async def work() -> None:
        rocketmq.create_topic("counted", queues=1)
        await _send(rocketmq, "counted", b"0")
        await asyncio.to_thread(rocketmq.clock.advance, seconds=2)
        await _send(rocketmq, "counted", b"1", b"2")
        async with LitePullConsumer("counted", rocketmq.namesrv, topics=["counted"]) as consumer:
            (queue,) = await consumer.message_queues("counted")
            assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 3)
            times = [message.store_timestamp_ms for message in rocketmq.messages("counted")]
            assert await consumer.offset_for_time(queue, times[1]) == 1
            assert await consumer.offset_for_time(queue, times[2] + 1_000_000) == 3

    run(work)


def test_messages_unacknowledged_by_a_simple_consumer_come_again_after_its_end(rocketmq: RocketMQ) -> None:
    async def work() -> None:
        rocketmq.create_topic("work", queues=1)
        await _send(rocketmq, "work", b"kept", b"done")
        first, second = (SimpleConsumer("workers", rocketmq.namesrv) for _ in range(2))
        await first.subscribe("work")
        await second.subscribe("work")
        async with first:
            _, done = await first.receive(2)
            await first.ack(done)
        await asyncio.to_thread(rocketmq.clock.advance, minutes=2)
        await _send(rocketmq, "work", b"new")
        async with second:
            found: list[bytes] = []
            while b"new" not in found or b"kept" not in found:
                found += [message.body for message in await second.receive(8)]
        assert sorted(found) == [b"kept", b"new"]

    run(work)


def test_a_simple_consumer_receives_nothing_of_a_topic_that_it_left(rocketmq: RocketMQ) -> None:
    async def work() -> None:
        for topic in ("stays", "goes"):
            rocketmq.create_topic(topic, queues=1)
            await _send(rocketmq, topic, topic.encode())
        consumer = SimpleConsumer("leavers", rocketmq.namesrv, SimpleConsumerConfig(await_duration_ms=500))
        await consumer.subscribe("stays")
        await consumer.subscribe("goes")
        await consumer.unsubscribe("goes")
        async with consumer:
            found = [message.body for _ in range(3) for message in await consumer.receive(8)]
        assert found == [b"stays"]

    run(work)


def test_a_pull_that_waits_fails_when_its_consumer_ends(rocketmq: RocketMQ) -> None:
    async def work() -> None:
        rocketmq.create_topic("quiet", queues=1)
        async with PullConsumer("quiet", rocketmq.namesrv) as consumer:
            (queue,) = await consumer.message_queues("quiet")
            with rocketmq.faults.delay(0, "pull") as pulls:
                pulling = asyncio.create_task(consumer.pull(queue, 0, suspend_timeout_ms=20_000))
                await asyncio.to_thread(pulls.wait)
        with pytest.raises(RemotingClosedError):
            await pulling

    run(work)


def test_a_tool_sees_clusters_and_looks_into_an_index(rocketmq: RocketMQ) -> None:
    async def work() -> None:
        await _send(rocketmq, "indexed", b"0", b"1", keys="k")
        await _send(rocketmq, "indexed", b"2", keys="other")
        async with PullConsumer("tool", rocketmq.namesrv) as consumer:
            info = await consumer.cluster_info()
            ((broker_name, broker),) = info.broker_addr_table.items()
            assert list(broker.broker_addrs.values()) == [rocketmq.broker]
            found = await consumer.query_index("indexed", broker_name, "k", 8)
            first = next(iter(decode_messages(found.records)))
            assert (await consumer.message_at("indexed", broker_name, first.physical_offset)).body == first.body
            with pytest.raises(BrokerError):
                await consumer.message_at("indexed", broker_name, 1 << 40)
        assert sorted(message.body for message in decode_messages(found.records)) == [b"0", b"1"]

    run(work)
