"""The push consumer with a real broker: filters, retries, loops and progress, as an application sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.brokers import Cluster, run_virtual
from tests.unit.client.consuming import cluster, ignore, send

from rucola import (
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    Message,
    MessageModel,
    MessageSelector,
    PushConsumer,
    PushConsumerConfig,
    ReconsumeLater,
)
from rucola.errors import BrokerError

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


class Collector:
    """A listener that records messages."""

    def __init__(self, count: int) -> None:
        self.messages: list[Any] = []
        self.enough = asyncio.Event()
        self.count = count

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)
        if len(self.messages) == self.count:
            self.enough.set()

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


def consumer(servers: Cluster, listener: Any = None, group: str = "cg", **options: Any) -> PushConsumer:
    config = PushConsumerConfig(**{"consume_from_where": FIRST} | options)
    made = PushConsumer(group, servers.namesrv.address, config)
    if listener is not None:
        made.register_message_listener(listener)
    return made


def test_tags_and_sql(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path, enable_property_filter=True) as (servers, producer):
            for number in range(6):
                message = Message("T", b"%d" % number, tags="AB"[number % 2], properties={"n": str(number)})
                await producer.send(message)
            by_tag, by_sql = Collector(3), Collector(2)
            one, two = consumer(servers, by_tag, "by_tag"), consumer(servers, by_sql, "by_sql")
            await one.subscribe("T", "B || C")
            await two.subscribe("T", MessageSelector.by_sql("n > 3"))
            async with one, two:
                await by_tag.enough.wait()
                await by_sql.enough.wait()
            assert sorted(by_tag.bodies) == [b"1", b"3", b"5"]
            assert sorted(by_sql.bodies) == [b"4", b"5"]

    run_virtual(scene())


def test_sql_that_the_broker_refuses(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path, enable_property_filter=True) as (servers, producer):
            await send(producer, b"1")
            refused = consumer(servers, ignore)
            await refused.subscribe("T", MessageSelector.by_sql("n >"))
            with pytest.raises(BrokerError):
                await refused.start()
            running = consumer(servers, ignore)
            await running.subscribe("T")
            async with running:
                with pytest.raises(BrokerError):
                    await running.subscribe("T", MessageSelector.by_sql("n >"))

    run_virtual(scene())


def test_retries_and_the_dead_letter(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            await send(producer, b"bad", b"good")
            times = []
            dead = asyncio.Event()

            async def listener(message):
                if message.body == b"bad":
                    times.append((message.topic, message.reconsume_times))
                    raise ReconsumeLater

            letters = Collector(1)
            one = consumer(servers, listener, max_reconsume_times=2)
            two = consumer(servers, letters, "letters")
            await one.subscribe("T")
            async with one:
                async with asyncio.timeout(30):
                    while len(times) < 3:
                        await asyncio.sleep(0.05)
                    await servers.bodies("%DLQ%cg")
                    await two.subscribe("%DLQ%cg")
                    async with two:
                        await letters.enough.wait()
            assert not dead.is_set()
            assert times == [("T", 0), ("T", 1), ("T", 2)]
            assert (letters.bodies, letters.messages[0].properties["RETRY_TOPIC"]) == ([b"bad"], "T")

    run_virtual(scene())


def test_an_orderly_dead_letter(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            await send(producer, b"bad", b"good")
            got = []
            done = asyncio.Event()

            async def listener(batch, context):
                got.append((batch[0].body, batch[0].reconsume_times))
                if batch[0].body == b"good":
                    done.set()
                    return ConsumeOrderlyStatus.SUCCESS
                context.suspend_current_queue_time_ms = 10
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

            one = PushConsumer(
                "cg",
                servers.namesrv.address,
                PushConsumerConfig(consume_orderly=True, max_reconsume_times=1, consume_from_where=FIRST),
            )
            one.register_message_listener(listener, batch=True)
            await one.subscribe("T")
            async with one:
                await done.wait()
                async with asyncio.timeout(10):
                    while not await servers.bodies("%DLQ%cg"):
                        await asyncio.sleep(0.05)
            assert got == [(b"bad", 0), (b"bad", 1), (b"good", 0)]

    run_virtual(scene())


@pytest.mark.parametrize("orderly", [False, True])
def test_a_loop_over_messages(tmp_path, orderly):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            queue = (await producer.message_queues("T"))[0]
            for number in range(10):
                await producer.send(Message("T", b"%d" % number), queue)
            got = []
            for until in (4, 10):
                one = consumer(servers, consume_orderly=orderly)
                await one.subscribe("T")
                async with one:
                    async for message in one:
                        got.append(message.body)
                        if len(got) == until:
                            break
            assert got == [b"%d" % number for number in range(10)]

    run_virtual(scene())


def test_messages_in_the_hands_of_a_failed_loop_come_again(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            await send(producer, b"0", b"1")
            got = []

            async def loop(fails: bool) -> None:
                one = consumer(servers, consume_orderly=True)
                await one.subscribe("T")
                async with one:
                    async for message in one:
                        got.append(message.body)
                        if fails:
                            raise OSError("application")
                        if len(got) == 3:
                            break

            with pytest.raises(OSError, match="application"):
                await loop(True)
            await loop(False)
            assert got == [b"0", b"0", b"1"]

    run_virtual(scene())


def test_a_loop_ends_with_the_consumer(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            await send(producer, b"0")
            one = consumer(servers)
            await one.subscribe("T")
            await one.start()
            got = []

            async def loop() -> None:
                async for message in one:
                    got.append(message.body)

            looping = [asyncio.ensure_future(loop()) for _ in range(3)]
            async with asyncio.timeout(10):
                while not got:
                    await asyncio.sleep(0.01)
                looping[0].cancel()
                await one.shutdown()
                await asyncio.gather(*looping, return_exceptions=True)
            assert got == [b"0"]

    run_virtual(scene())


def test_broadcasting_goes_on_where_its_file_says(tmp_path):
    async def scene() -> None:
        options = {"message_model": MessageModel.BROADCASTING, "local_offset_store_dir": str(tmp_path / "offsets")}
        async with cluster(tmp_path) as (servers, producer):
            await send(producer, b"0", b"1")
            first, second, third = Collector(2), Collector(2), Collector(1)
            one = consumer(servers, first, instance_name="one", **options)
            two = consumer(servers, second, instance_name="two", **options)
            await one.subscribe("T")
            await two.subscribe("T")
            async with one, two:
                await first.enough.wait()
                await second.enough.wait()
            await send(producer, b"2")
            again = consumer(servers, third, instance_name="one", **options)
            await again.subscribe("T")
            async with again:
                await third.enough.wait()
            assert third.bodies == [b"2"]

    run_virtual(scene())


def test_a_topic_that_is_made_later_and_one_no_longer_wanted(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            got = Collector(1)
            one = consumer(servers, got)
            await one.subscribe("T")
            async with one:
                await asyncio.sleep(0.05)
                await send(producer, b"0")
                async with asyncio.timeout(10):
                    await got.enough.wait()
                await one.unsubscribe("T")
                async with asyncio.timeout(10):
                    while any(queue.topic == "T" for queue in one.assignment):
                        await asyncio.sleep(0.05)

    run_virtual(scene())
