"""A subscription, or an assignment, that changes while messages flow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.brokers import Cluster
from tests.unit.client.test_loops_with_broker import ALL, FIRST, first, made, scene_of, until

from rucola import (
    BrokerError,
    ClientError,
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    MessageQueue,
    MessageSelector,
    Producer,
    PullConsumer,
)
from rucola.client.group_member import GroupMember


async def collect(consumer: Any, found: list[bytes]) -> None:
    async for message in consumer:
        found.append(message.body)


async def send_both(producer: Producer) -> None:
    """Sends messages with tags a and b in turn to one queue, at once: a pull that waits for tag a passes over tag b."""
    queue = (await producer.message_queues("T"))[0]
    await producer.send_batch([Message("T", b"%d" % number, tags="ab"[number % 2]) for number in range(10, 20)], queue)


@pytest.mark.parametrize("kind", ["push", "lite", "assigned"])
def test_a_changed_expression_applies_to_what_is_sent_after_the_call(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        found: list[bytes] = []
        if kind == "assigned":
            queues = await producer.message_queues("T")
            one = LitePullConsumer("cg", servers.namesrv.address, LitePullConsumerConfig(consume_from_where=FIRST))
            await one.assign(queues, "a")
        else:
            one = made(kind, servers)
            await one.subscribe("T", "a")
        async with one:
            task = asyncio.ensure_future(collect(one, found))
            await send_both(producer)
            await until(lambda: len(found) == 5)
            await asyncio.sleep(0.1)  # the pulls wait at the broker
            await (one.assign(queues, "b") if kind == "assigned" else one.subscribe("T", "b"))
            await send_both(producer)
            await until(lambda: len(found) == 10)
            assert found[5:] == [b"%d" % number for number in range(11, 20, 2)]
            task.cancel()

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", ["push", "lite"])
def test_a_refused_expression_changes_nothing(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        found: list[bytes] = []
        async with made(kind, servers) as one:
            task = asyncio.ensure_future(collect(one, found))
            await until(lambda: len(found) == len(ALL))
            version = one._member.subscriptions["T"].sub_version
            with pytest.raises(BrokerError):
                await one.subscribe("T", MessageSelector.by_sql("a > ("))
            restored = one._member.subscriptions["T"]
            assert (restored.sub_string, restored.sub_version > version) == ("*", True)  # brokers take only a later one
            with pytest.raises(BrokerError):
                await one.subscribe("Other", MessageSelector.by_sql("a > ("))
            assert sorted(topic for topic in one._member.subscriptions if "%" not in topic) == ["T"]
            await producer.send_many(Message("T", b"x") for _ in range(8))
            await until(lambda: len(found) == len(ALL) + 8)
            task.cancel()

    async def with_other(servers: Cluster, producer: Producer) -> None:
        await producer.send(Message("Other", b"o"))
        await work(servers, producer)

    scene_of(tmp_path, with_other)


@pytest.mark.parametrize("kind", ["push", "lite"])
@pytest.mark.parametrize("starts", [True, False])
def test_a_topic_unsubscribed_while_it_is_subscribed_is_gone(tmp_path, monkeypatch, kind, starts):
    before = GroupMember._find
    looked, go = asyncio.Event(), asyncio.Event()

    async def slow(self: GroupMember, topic: str) -> None:
        looked.set()
        await go.wait()
        await before(self, topic)

    async def work(servers: Cluster, producer: Producer) -> None:
        one = made(kind, servers)
        if not starts:
            await one.start()
        monkeypatch.setattr(GroupMember, "_find", slow)
        call = asyncio.ensure_future(one.start() if starts else one.subscribe("T", "b"))
        await looked.wait()
        leaving = asyncio.ensure_future(one.unsubscribe("T"))
        await asyncio.sleep(0)
        go.set()
        async with asyncio.timeout(15):
            await asyncio.gather(call, leaving)
        assert "T" not in one._member.subscriptions
        await until(lambda: not [queue for queue in one.assignment if queue.topic == "T"])
        await one.shutdown()

    scene_of(tmp_path, work)


def test_of_several_assignments_at_once_the_last_one_decides(tmp_path):
    async def work(servers: Cluster, producer: Producer) -> None:
        queues = await producer.message_queues("T")
        one = LitePullConsumer("ag", servers.namesrv.address)
        await one.assign(queues[:1])
        async with one:
            await asyncio.gather(one.assign(queues[:2]), one.assign(queues[1:]), one.assign(queues[2:3]))
            assert one.assignment == sorted(queues[2:3])

    scene_of(tmp_path, work)


@pytest.mark.parametrize("kind", ["push", "lite", "assigned"])
def test_the_same_expression_again_leaves_the_pulls_alone(tmp_path, kind):
    async def work(servers: Cluster, producer: Producer) -> None:
        queues = await producer.message_queues("T")
        one = LitePullConsumer("cg", servers.namesrv.address) if kind == "assigned" else made(kind, servers)
        if kind == "assigned":
            await one.assign(queues)
        async with one:
            tasks = {task for task in asyncio.all_tasks() if task.get_name().startswith("rucola: pulls of")}
            await (one.assign(queues) if kind == "assigned" else one.subscribe("T"))
            await asyncio.sleep(0)
            assert tasks and not any(task.done() for task in tasks)

    scene_of(tmp_path, work)


def test_any_iterable_of_queues_may_be_paused(tmp_path):
    async def work(servers: Cluster, producer: Producer) -> None:
        async with made("lite", servers) as one:
            one.pause(queue for queue in one.assignment)
            assert await one.poll(100) == []
            one.resume(queue for queue in one.assignment)
            async with asyncio.timeout(15):
                assert await one.poll(10_000)

    scene_of(tmp_path, work)


def test_commit_takes_only_offsets_that_the_queue_has(tmp_path):
    async def work(servers: Cluster, producer: Producer) -> None:
        async with made("lite", servers) as one:
            await first(one)
            (queue,) = [queue for queue in one.assignment if await one.max_offset(queue) == len(ALL)]
            for offset in (-1, 1.5, True, "5", 10**30, len(ALL) + 1):
                with pytest.raises(ClientError, match="the offset of MessageQueue"):
                    await one.commit({queue: offset})
            with pytest.raises(ClientError, match="must be a MessageQueue"):
                await one.commit({"T": 1})
            with pytest.raises(ClientError, match="must be a MessageQueue"):
                one.pause(["T"])
            with pytest.raises(ClientError, match="is not assigned"):
                await one.commit({MessageQueue("T", "absent", 0): 1})
            await one.commit({queue: len(ALL)})
        async with PullConsumer("cg", servers.namesrv.address) as stored:
            assert await stored.committed(queue) == len(ALL)

    scene_of(tmp_path, work)
