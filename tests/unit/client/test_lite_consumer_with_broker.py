"""Lite consumers at our broker: order, restarts, dead letters, take-over, and the blocking face."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from rucola import (
    BrokerError,
    ConsumeResultSuspend,
    LiteConsumer,
    LiteConsumerConfig,
    LiteOffset,
    LiteQuotaError,
    Message,
    Producer,
)
from rucola.sync import LiteConsumer as BlockingLiteConsumer
from rucola.sync import Producer as BlockingProducer
from rucola.testing.rocketmq import RocketMQ

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def servers() -> Iterator[RocketMQ]:
    with RocketMQ() as running:
        running.create_lite_parent("agents", "gateway", "failing", "other", "again")
        running.create_lite_parent("owned", "owner", exclusive=True)
        running.create_lite_parent("wild", "all", wildcard=True)
        yield running


def send(servers: RocketMQ, lite_topic: str, *bodies: bytes, parent: str = "agents") -> None:
    with BlockingProducer("pg", servers.namesrv) as producer:
        for body in bodies:
            producer.send(Message(parent, body, lite_topic=lite_topic))


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not reached():
            await asyncio.sleep(0.005)


def consumer(servers: RocketMQ, listener: Any, group: str = "gateway", topic: str = "agents", **options: Any) -> Any:
    made = LiteConsumer(group, servers.namesrv, topic, LiteConsumerConfig(retry_delay_ms=10, **options))
    made.register_message_listener(listener)
    return made


def test_the_blocking_face(servers: RocketMQ) -> None:
    send(servers, "blocking", b"0", b"1", b"2")
    got: list[Any] = []
    with BlockingLiteConsumer("gateway", servers.namesrv, "agents") as reader:
        reader.subscribe_lite("blocking")
        assert reader.lite_topics == {"blocking"}
        for message in reader:
            got.append((message.body, message.lite_offset))
            if len(got) == 3:
                break
        reader.unsubscribe_lite("blocking")
        assert reader.lite_topics == frozenset()
        with pytest.raises(LiteQuotaError, match="lite_subscription_quota"):
            reader.subscribe_lite([f"session-{number}" for number in range(2_001)])
    assert got == [(b"0", 0), (b"1", 1), (b"2", 2)]


def test_a_blocking_listener_runs_in_threads(servers: RocketMQ) -> None:
    got: list[bytes] = []
    done = threading.Event()

    def listen(message: Any) -> None:
        assert threading.current_thread() is not threading.main_thread()
        got.append(message.body)
        if len(got) == 2:
            done.set()

    reader = BlockingLiteConsumer("gateway", servers.namesrv, "agents", lite_topics=["threads"])
    reader.register_message_listener(listen)
    with reader:
        send(servers, "threads", b"0", b"1")
        assert done.wait(PATIENCE_S)
    assert got == [b"0", b"1"]


def test_attempts_suspensions_and_dead_letters(servers: RocketMQ) -> None:
    async def scene() -> None:
        seen: list[tuple[bytes, int]] = []

        async def listen(message: Any) -> Any:
            seen.append((message.body, message.reconsume_times))
            if message.body == b"dead":
                raise ValueError("no")
            suspends = message.body == b"suspended" and [body for body, _ in seen].count(b"suspended") < 3
            return ConsumeResultSuspend(timedelta(milliseconds=50)) if suspends else None

        async with consumer(servers, listen, "failing", max_reconsume_times=1) as reader:
            await reader.subscribe_lite("failing")
            async with Producer("pg", servers.namesrv) as producer:
                for body in (b"suspended", b"dead", b"behind"):
                    await producer.send(Message("agents", body, lite_topic="failing"))
            await until(lambda: (b"behind", 0) in seen)
        assert seen == [(b"suspended", 0)] * 3 + [(b"dead", 0), (b"dead", 1), (b"behind", 0)]

    asyncio.run(scene())
    (letter,) = servers.dead_letters("failing", count=1)
    assert (letter.body, letter.lite_topic, letter.lite_offset) == (b"dead", "failing", None)


def test_a_consumer_goes_on_after_a_restart_and_a_kill_of_the_broker() -> None:
    async def scene(servers: RocketMQ) -> None:
        seen: list[bytes] = []
        gate = asyncio.Event()

        async def listen(message: Any) -> None:
            seen.append(message.body)
            if message.body == b"2":
                await gate.wait()

        async with consumer(servers, listen, broker_suspend_max_time_ms=1_000) as reader:
            await reader.subscribe_lite("killed")
            await asyncio.to_thread(send, servers, "killed", b"0", b"1", b"2", b"3")
            await until(lambda: seen == [b"0", b"1", b"2"])
            await asyncio.to_thread(servers.restart)
            gate.set()
            await until(lambda: b"3" in seen)
            await asyncio.to_thread(servers.kill)
            await asyncio.to_thread(servers.start)
            await asyncio.to_thread(send, servers, "killed", b"4")
            await until(lambda: b"4" in seen)
        assert sorted(set(seen)) == [b"0", b"1", b"2", b"3", b"4"]
        assert (seen.count(b"0"), seen.count(b"1")) == (1, 1)  # the clean stop has written that they are consumed

    with RocketMQ() as servers:
        servers.create_lite_parent("agents", "gateway")
        asyncio.run(scene(servers))


def test_the_last_of_two_has_an_exclusive_lite_topic(servers: RocketMQ) -> None:
    async def scene() -> None:
        seen: list[tuple[str, bytes]] = []
        told: list[str] = []

        def listener(name: str) -> Any:
            async def listen(message: Any) -> None:
                seen.append((name, message.body))

            return listen

        first, second = (consumer(servers, listener(name), "owner", "owned") for name in ("first", "second"))
        first.register_eviction_listener(told.append)
        async with first, second:
            await first.subscribe_lite(["a", "kept"])
            await asyncio.to_thread(send, servers, "a", b"0", parent="owned")
            await until(lambda: seen == [("first", b"0")])
            await second.subscribe_lite("a")
            await until(lambda: told == ["a"])
            assert first.lite_topics == {"kept"}
            await asyncio.to_thread(send, servers, "a", b"1", parent="owned")
            await asyncio.to_thread(send, servers, "kept", b"2", parent="owned")
            await until(lambda: len(seen) == 3)
            assert sorted(seen[1:]) == [("first", b"2"), ("second", b"1")]
            await first.subscribe_lite("a", LiteOffset.MIN)
            await until(lambda: ("first", b"1") in seen)
            assert second.lite_topics == frozenset()

    asyncio.run(scene())


def test_a_wildcard_group_reads_all_lite_topics(servers: RocketMQ) -> None:
    async def scene() -> None:
        seen: list[str] = []

        async def listen(message: Any) -> None:
            seen.append(message.lite_topic)

        async with consumer(servers, listen, "all", "wild") as reader:
            with pytest.raises(BrokerError, match="604"):
                await reader.subscribe_lite("a")
            await asyncio.to_thread(send, servers, "made-later", b"0", parent="wild")
            await until(lambda: seen == ["made-later"])

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("start", "bodies"),
    [
        (None, b"23"),
        (LiteOffset.MIN, b"0123"),
        (LiteOffset.at(1), b"123"),
        (LiteOffset.tail(1), b"123"),
        (LiteOffset.MAX, b""),
    ],
)
def test_a_group_goes_on_where_it_is_told(servers: RocketMQ, start: LiteOffset | None, bodies: bytes) -> None:
    name = f"start-{bodies.decode()}-{start is None}-{start!r}".translate(str.maketrans("(), ", "____"))

    async def scene() -> None:
        seen: list[bytes] = []

        async def listen(message: Any) -> None:
            seen.append(message.body)

        async with consumer(servers, listen, "again", lite_subscription_quota=10) as reader:
            await reader.subscribe_lite(name)
            await until(lambda: seen == [b"0", b"1"])
        seen.clear()
        await asyncio.to_thread(send, servers, name, b"2", b"3")
        async with consumer(servers, listen, "again") as reader:
            await reader.subscribe_lite(name, start)
            await asyncio.to_thread(send, servers, name, b"end")
            await until(lambda: b"end" in seen)
        assert b"".join(seen) == bodies + b"end"

    send(servers, name, b"0", b"1")
    asyncio.run(scene())


def test_what_a_consumer_has_not_passed_on_is_there_at_once_for_the_next_one(servers: RocketMQ) -> None:
    async def scene() -> None:
        seen: list[bytes] = []

        async def listen(message: Any) -> None:
            seen.append(message.body)
            await asyncio.sleep(0.05)

        async with consumer(servers, listen) as reader:
            await reader.subscribe_lite("left")
            await asyncio.to_thread(send, servers, "left", b"0", b"1")
            await until(lambda: b"0" in seen)
        async with consumer(servers, listen) as reader, asyncio.timeout(5):
            await reader.subscribe_lite("left")
            await until(lambda: b"1" in seen)
        assert seen.count(b"0") == 1

    asyncio.run(scene())
