"""A message whose body cannot be decompressed: it fails wherever its body is read, and becomes a dead letter."""

from __future__ import annotations

import asyncio

import pytest
from tests.brokers import run_virtual
from tests.unit.client.consuming import cluster

from rucola import (
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullConsumerConfig,
    MessageExt,
    MessageQueue,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    SimpleConsumer,
)
from rucola.common.key_builder import TRACE_TOPIC, dlq_topic
from rucola.errors import RucolaError, UnreadableBodyError

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
BODY = b"compressed, but damaged"


async def send_damaged(servers, count: int = 1) -> None:
    for _ in range(count):
        answer = await servers.send("T", BODY, "UNIQ_KEY\x01U\x02TRACE_ON\x01true\x02", sys_flag=1)
        assert answer.code == 0


async def dead_letters(servers) -> list[MessageExt]:
    """Waits for dead letters."""
    queue = MessageQueue(dlq_topic("G"), "broker-a", 0)
    async with PullConsumer("reader", servers.namesrv.address) as consumer:
        while True:
            try:
                found = (await consumer.pull(queue, 0)).messages
            except RucolaError:  # the topic does not exist yet
                found = []
            if found:
                return found
            await asyncio.sleep(0.02)


@pytest.mark.few
@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("form", ["coroutine", "function"])
@pytest.mark.parametrize("orderly", [False, True])
def test_a_listener_that_reads_the_body_fails_until_the_message_is_a_dead_letter(
    orderly, form, trace, tmp_path, caplog
):
    async def scene() -> None:
        async with cluster(tmp_path, trace_topic_enable=True) as (servers, _):
            config = PushConsumerConfig(
                consume_orderly=orderly,
                max_reconsume_times=1,
                suspend_current_queue_time_ms=10,
                consume_from_where=FIRST,
                enable_trace=trace,
            )
            consumer = PushConsumer("G", servers.namesrv.address, config)
            read = []

            async def coroutine(message):
                repr(message)
                read.append(message.reconsume_times)
                read.append(message.body)

            def function(message):
                repr(message)
                read.append(message.reconsume_times)
                read.append(message.body)

            await send_damaged(servers)
            await consumer.subscribe("T")
            consumer.register_message_listener(coroutine if form == "coroutine" else function)
            async with consumer:
                (dead,) = await dead_letters(servers)
            with pytest.raises(UnreadableBodyError):
                dead.body  # noqa: B018
            assert read == [0, 1]
            if trace:
                assert await servers.bodies(TRACE_TOPIC)

    run_virtual(scene())
    failures = [record for record in caplog.records if record.rucola_event == "listener failed"]
    assert len(failures) == 2
    assert isinstance(failures[0].exc_info[1], UnreadableBodyError)
    assert not [record for record in caplog.records if "not traced" in record.rucola_event]


def test_a_listener_that_does_not_read_the_body_consumes_the_message(tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, _):
            consumer = PushConsumer("G", servers.namesrv.address, PushConsumerConfig(consume_from_where=FIRST))
            seen = asyncio.Queue()
            await send_damaged(servers)
            await consumer.subscribe("T")
            consumer.register_message_listener(seen.put)
            async with consumer:
                message = await seen.get()
                assert (message.topic, message.msg_id) == ("T", "U")
            assert servers.broker.services.offsets.query("G", "T", 0) == 1

    run_virtual(scene())


async def first_of(kind: str, address: str):
    """Yields the first message, and its consumer."""
    if kind == "push loop":
        push = PushConsumer("G", address, PushConsumerConfig(consume_from_where=FIRST))
        await push.subscribe("T")
        async with push:
            async for message in push:
                yield message, push
                return
    elif kind == "simple":
        async with SimpleConsumer("G", address) as simple:
            await simple.subscribe("T")
            (message,) = await simple.receive()
            yield message, simple
    else:
        lite = LitePullConsumer("G", address, LitePullConsumerConfig(consume_from_where=FIRST))
        await lite.subscribe("T")
        async with lite:
            messages = []
            while not messages:
                messages = await lite.poll()
            yield messages[0], lite


@pytest.mark.parametrize("kind", ["push loop", "lite", "simple"])
def test_loops_and_polls_get_the_error_when_they_read_the_body(kind, tmp_path):
    async def scene() -> None:
        async with cluster(tmp_path) as (servers, _):
            await send_damaged(servers)
            async for message, consumer in first_of(kind, servers.namesrv.address):
                with pytest.raises(UnreadableBodyError, match="body of message 0 of T, queue 0"):
                    message.body  # noqa: B018
                assert "body=<compressed body" in repr(message)
                if isinstance(consumer, PushConsumer):
                    assert await consumer.send_message_back(message, -1)
                    assert len(await dead_letters(servers)) == 1

    run_virtual(scene())


@pytest.mark.parametrize("orderly", [False, True])
def test_a_message_that_the_broker_does_not_take_back_stays(orderly, tmp_path, caplog):
    """A copy cannot be made without the body, so the listener gets the message again."""

    async def scene() -> None:
        async with cluster(tmp_path) as (servers, _):
            config = PushConsumerConfig(
                consume_orderly=orderly,
                max_reconsume_times=0 if orderly else -1,
                suspend_current_queue_time_ms=10,
                consume_from_where=FIRST,
            )
            consumer = PushConsumer("G", servers.namesrv.address, config)
            failed = asyncio.Event()
            await send_damaged(servers)

            async def listener(message):
                failed.set()
                assert message.body

            async def refuse(*_):
                raise UnreadableBodyError("T", 0, 0, "stands for any refusal")

            await consumer.subscribe("T")
            consumer.register_message_listener(listener)
            consumer._member.api.send_back = refuse
            async with consumer:
                await failed.wait()
                while "message not sent back" not in caplog.text:
                    await asyncio.sleep(0.01)
            assert not servers.broker.services.offsets.query("G", "T", 0)

    run_virtual(scene())
