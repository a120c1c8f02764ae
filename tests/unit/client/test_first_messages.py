"""No message is missed that is sent after ``start`` of a new group's consumer has returned, whatever the situation.

The broker here never says that a group without an offset begins at 0, as it does while a queue's first message is in
memory: only the consumer's own choice counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.consuming import cluster, ignore
from tests.unit.client.test_push_consumer import Script, scripted

from rucola import (
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    MessageExt,
    MessageModel,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
    SimpleConsumerConfig,
)
from rucola.client.consumer_config import START_LIMIT_S
from rucola.client.group_member import CLOCKS_DIFFER_MS
from rucola.protocol.codes import RequestCode
from rucola.store.message_store import MessageStore
from rucola.testing.clock import ManualClock
from rucola.testing.event_loop import advance, run_stepped, settle

KINDS = ["push", "orderly", "lite"]
MODELS = [MessageModel.CLUSTERING, MessageModel.BROADCASTING]


@asynccontextmanager
async def reading(
    kind: str, namesrv: str, model: MessageModel, path: Path, got: list[bytes], **options: Any
) -> AsyncIterator[PushConsumer | LitePullConsumer]:
    """A started consumer that adds the bodies of its messages to ``got``."""
    where = {"message_model": model, "local_offset_store_dir": str(path), "instance_name": path.name}
    if kind == "lite":
        consumer = LitePullConsumer("G", namesrv, LitePullConsumerConfig(**where), topics=["T"], **options)

        async def loop() -> None:
            async for message in consumer:
                got.append(message.body)

        async with consumer:
            looping = asyncio.ensure_future(loop())
            yield consumer
            looping.cancel()
        return
    config = PushConsumerConfig(consume_orderly=kind == "orderly", **where)
    pushed = PushConsumer("G", namesrv, config, topics=["T"], **options)

    async def listener(message: MessageExt) -> None:
        got.append(message.body)

    pushed.register_message_listener(listener)
    async with pushed:
        yield pushed


@pytest.mark.few
@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_queue_of_a_topic_that_exists(kind, model, others, tmp_path, monkeypatch):
    monkeypatch.setattr(MessageStore, "in_memory", lambda *_: False)

    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            await producer.send(Message("T", b"old"))
            queues = list(await producer.message_queues("T"))
            for queue in queues:
                await producer.send(Message("T", b"old"), queue)
            got: list[bytes] = []
            address = servers.namesrv.address
            async with asyncio.timeout(20):
                async with (
                    reading(kind, address, model, tmp_path / "other", [] if model is MODELS[1] else got)
                    if others
                    else servers_alone(),
                    reading(kind, address, model, tmp_path / "one", got),
                ):
                    for queue in queues:
                        await producer.send(Message("T", b"new%d" % queue.queue_id), queue)
                    while len(set(got)) < len(queues):
                        await asyncio.sleep(0.005)
            assert sorted(set(got)) == [b"new%d" % queue.queue_id for queue in queues]

    run_stepped(scene())


@asynccontextmanager
async def servers_alone() -> AsyncIterator[None]:
    yield


@pytest.mark.few
@pytest.mark.parametrize("more", ["a topic that did not exist", "another queue"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_created_later_begins_with_the_first_message_since_the_start(kind, model, more, broker, tmp_path):
    searched: list[int] = []

    async def scene() -> None:
        async with scripted(broker, ignore) as it:
            await it.consumer.shutdown()
            if more != "another queue":
                del it.broker.topics["T"]
            it.broker.scripts[RequestCode.LITE_PULL_MESSAGE] = [lambda command: None] * 9
            clock = ManualClock()
            async with reading(kind, it.broker.address, model, tmp_path / "one", [], clock=clock) as consumer:
                it.members = [consumer.client_id]
                before = len(consumer.assignment)
                begun_ms = clock.wall_ms()
                clock.advance(3600)
                it.max_offset = 9
                record(it, searched)
                it.broker.topics["T"] = 2
                await pass_time(32)
                await it.broker.until(lambda: len(consumer.assignment) == 2)
                assert before < 2
        assert searched == [begun_ms - CLOCKS_DIFFER_MS] * (2 - before)

    run_stepped(scene())


def record(it: Script, searched: list[int]) -> None:
    def answer(command: Any) -> Any:
        searched.append(int(command.ext_fields["timestamp"]))
        return command.answer(0, ext_fields={"offset": "5"})

    it.broker.scripts[RequestCode.SEARCH_OFFSET_BY_TIMESTAMP] = [answer] * 4


async def pass_time(seconds: float) -> None:
    for _ in range(round(seconds / 0.1)):
        advance(0.1)
        await settle()


def test_a_simple_consumer_that_does_not_begin_with_the_first_message(tmp_path, monkeypatch):
    """The broker would begin with the last message that there is at the first pop."""
    monkeypatch.setattr(MessageStore, "in_memory", lambda *_: False)
    monkeypatch.setattr(MessageStore, "min_queue_offset", lambda *_: 1)  # the first message has expired

    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer):
            await producer.send(Message("T", b"old"))
            queues = list(await producer.message_queues("T"))
            for queue in queues:
                await producer.send_batch([Message("T", b"old")] * 2, queue)
            config = SimpleConsumerConfig(consume_from_first=False)
            got: list[bytes] = []
            async with SimpleConsumer("G", servers.namesrv.address, config, topics=["T"]) as consumer:
                for queue in queues:
                    await producer.send_batch([Message("T", b"new")] * 3, queue)
                async with asyncio.timeout(20):
                    while got.count(b"new") < 3 * len(queues):
                        got += [message.body for message in await consumer.receive()]
            assert got.count(b"old") == len(queues)  # the last of each

    run_stepped(scene())


def test_a_pull_consumer_reads_from_the_offset_that_it_is_given(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, producer), PullConsumer("G", servers.namesrv.address) as consumer:
            await producer.send(Message("T", b"old"))
            for queue in await consumer.message_queues("T"):
                begin = await consumer.max_offset(queue)
                await producer.send(Message("T", b"new"), queue)
                assert [each.body for each in (await consumer.pull(queue, begin)).messages] == [b"new"]

    run_stepped(scene())


def test_a_simple_consumer_does_not_wait_for_ever_for_its_starts(broker, caplog):
    topics = ["A", "B", "C"]

    async def scene() -> None:
        async with broker(topics=dict.fromkeys(topics, 1)) as it:
            it.scripts[RequestCode.QUERY_CONSUMER_OFFSET] = [lambda command: None] * 9
            config = SimpleConsumerConfig(consume_from_first=False)
            consumer = SimpleConsumer("G", it.address, config, topics=topics)
            starting = asyncio.ensure_future(consumer.start())
            await it.until(lambda: it.codes().count(RequestCode.QUERY_CONSUMER_OFFSET) == len(topics))
            await pass_time(START_LIMIT_S - 0.5)
            assert not starting.done()
            await pass_time(1)
            assert starting.done()
            await starting
            await consumer.shutdown()

    run_stepped(scene())
    assert {record.rucola_event for record in caplog.records} <= {
        "starts of queues not stored",
        "start of a queue not stored",
    }
