"""Tests of the simple consumer with our broker, whose clock the test moves: what the broker makes of the receipt
handles, and when the group gets a message again.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rucola import Message, MessageSelector, Producer, SimpleConsumer, SimpleConsumerConfig
from rucola.common.message_const import POP_CK
from rucola.errors import BrokerError, ClientError
from rucola.protocol.codes import RequestCode
from rucola.testing.event_loop import advance, run_stepped
from rucola.testing.rocketmq import RocketMQ

COUNT = 4
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
RETRY = "%RETRY%cg_T"


@asynccontextmanager
async def consuming(rocketmq: RocketMQ, count: int = COUNT, **options: Any) -> AsyncIterator[SimpleConsumer]:
    """A consumer of topic T, which has ``count`` messages in one queue."""
    rocketmq.create_topic("T", queues=1)
    async with Producer("pg", rocketmq.namesrv) as producer:
        for number in range(count):
            await producer.send(Message("T", b"%d" % number))
    consumer = SimpleConsumer("cg", rocketmq.namesrv, SimpleConsumerConfig(**options))
    await consumer.subscribe("T")
    async with consumer:
        yield consumer


async def until(reached: Callable[[], bool]) -> None:
    """Waits for the servers, which run in a thread of their own."""
    async with asyncio.timeout(20):
        while not reached():
            await asyncio.sleep(0.001)


def come_again(rocketmq: RocketMQ) -> int:
    """How many messages the group will get again, once all invisible times of up to a minute have passed."""
    for _ in range(4):
        rocketmq.clock.advance(seconds=20)
    return retried(rocketmq)


def retried(rocketmq: RocketMQ) -> int:
    """How many messages the group has got, or will get, again. The broker creates the topic when it needs it."""
    rocketmq.create_topic(RETRY, queues=1)
    return len(rocketmq.messages(RETRY))


def test_each_message_can_be_acknowledged_after_a_change_of_its_invisible_time(rocketmq: RocketMQ) -> None:
    async def scene() -> None:
        async with consuming(rocketmq) as consumer:
            found = await consumer.receive(COUNT, 10_000, 3_000)
            assert len(found) == COUNT
            for message in found:
                await consumer.change_invisible_duration(message, 20_000)
                await consumer.change_invisible_duration(message, 30_000)
            for message in found:
                await consumer.ack(message)
            assert await asyncio.to_thread(come_again, rocketmq) == 0

    run_stepped(scene())


def test_renewed_messages_stay_hidden_and_can_be_acknowledged(rocketmq: RocketMQ) -> None:
    async def scene() -> None:
        async with consuming(rocketmq, auto_renew=True) as consumer:
            found = await consumer.receive(COUNT, 10_000, 3_000)
            for _ in range(4):
                before = [message.properties[POP_CK] for message in found]
                advance(5.1)
                await until(
                    lambda before=before: all(
                        message.properties[POP_CK] != old for message, old in zip(found, before, strict=True)
                    )
                )
                await asyncio.to_thread(rocketmq.clock.advance, seconds=9)
            assert retried(rocketmq) == 0
            for message in found:
                await consumer.ack(message)
            assert await asyncio.to_thread(come_again, rocketmq) == 0

    run_stepped(scene())


@pytest.mark.parametrize("effect", ["delay", "drop"])
def test_an_ack_while_a_renewal_is_on_its_way(rocketmq: RocketMQ, effect: str) -> None:
    async def scene() -> None:
        async with consuming(rocketmq, auto_renew=True) as consumer:
            first, message = await consumer.receive(2, 10_000, 3_000)
            await consumer.ack(first)
            faults = rocketmq.faults
            with faults.delay(0.2, CHANGE) if effect == "delay" else faults.drop(CHANGE) as renewal:
                advance(5.1)
                await asyncio.to_thread(renewal.wait)
                acking = asyncio.ensure_future(consumer.ack(message))
                if effect != "delay":
                    await asyncio.sleep(0)
                    advance(3.1)  # the renewal times out
                await acking
            assert await asyncio.to_thread(come_again, rocketmq) == 0

    run_stepped(scene())


def test_a_message_can_be_acknowledged_after_a_restart_of_the_broker(rocketmq: RocketMQ) -> None:
    async def scene() -> None:
        async with consuming(rocketmq) as consumer:
            found = await consumer.receive(COUNT, 10_000, 3_000)
            await consumer.change_invisible_duration(found[1], 20_000)
            await asyncio.to_thread(rocketmq.restart)
            for message in found:
                await consumer.ack(message)
            assert await asyncio.to_thread(come_again, rocketmq) == 0

    run_stepped(scene())


def test_only_consumers_of_the_group_that_received_a_message_can_acknowledge_or_hide_it(rocketmq: RocketMQ) -> None:
    async def scene() -> None:
        async with consuming(rocketmq) as consumer:
            first, second, third, fourth = await consumer.receive(COUNT, 10_000, 3_000)
            other = SimpleConsumer("other", rocketmq.namesrv, topics=["T"])
            async with other:
                for message in (first, copy.copy(first), pickle.loads(pickle.dumps(first))):
                    with pytest.raises(ClientError, match="received by group cg: a consumer of group other cannot"):
                        await other.ack(message)
                    with pytest.raises(ClientError, match="received by group cg: a consumer of group other cannot"):
                        await other.change_invisible_duration(message, 20_000)
                for message in await other.receive(COUNT, 10_000, 3_000):  # its own copies
                    await other.ack(message)
            async with SimpleConsumer("cg", rocketmq.namesrv) as same:
                await same.ack(first)
                await same.change_invisible_duration(second, 20_000)
                await same.ack(pickle.loads(pickle.dumps(second)))
                await same.ack(copy.copy(third))
            await consumer.ack(fourth)
            assert await asyncio.to_thread(come_again, rocketmq) == 0

    run_stepped(scene())


@pytest.mark.parametrize("old", ["a", "*"])
def test_messages_sent_after_a_change_of_the_filter_come_by_the_new_filter(rocketmq: RocketMQ, old: str) -> None:
    async def scene() -> None:
        rocketmq.create_topic("T", queues=1)
        consumer = SimpleConsumer("cg", rocketmq.namesrv)
        await consumer.subscribe("T", old)
        async with consumer, Producer("pg", rocketmq.namesrv) as producer, asyncio.timeout(20):
            receiving = asyncio.ensure_future(consumer.receive(await_duration_ms=15_000))
            await asyncio.sleep(0.3)  # until the pop waits at the broker
            async with asyncio.timeout(5):  # much less than the pop may wait
                await consumer.subscribe("T", "b")
            await producer.send_batch([Message("T", b"%d" % number, tags="ab"[number % 2]) for number in range(10)])
            found = await receiving
            while len(found) < 5:
                found += await consumer.receive()
            assert [message.body for message in found] == [b"1", b"3", b"5", b"7", b"9"]
            assert {message.reconsume_times for message in found} == {0}

    run_stepped(scene())


def test_an_sql_expression_that_the_broker_refuses_leaves_the_subscription_as_it_was(rocketmq: RocketMQ) -> None:
    async def scene() -> None:
        async with consuming(rocketmq) as consumer:
            for expression in ("a > (", "a > 1"):  # the broker filters by tags only
                with pytest.raises(BrokerError):
                    await consumer.subscribe("T", MessageSelector.by_sql(expression))
            assert len(await consumer.receive(COUNT, 10_000, 3_000)) == COUNT
            refused = SimpleConsumer("other", rocketmq.namesrv)
            await refused.subscribe("T", MessageSelector.by_sql("a > 1"))
            with pytest.raises(BrokerError):
                await refused.start()

    run_stepped(scene())
