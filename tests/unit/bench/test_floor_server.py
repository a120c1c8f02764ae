"""The smallest server serves our clients in each of its kinds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from bench import floor_server
from bench.floor import FloorServers
from bench.floor_server import PREPARED, PULL_MESSAGES

from rucola import Message, MessageQueue, Producer, PullConsumer, PullStatus

FILE_BYTES = 1 << 20
BODY = b'a body with "opaque":5 in it'


@pytest.mark.parametrize("disk", ["none", "write", "sync"])
def test_sends_are_answered_and_written(disk: str) -> None:
    async def scene(address: str) -> None:
        async with Producer("group", address) as producer:
            results = await asyncio.gather(*(producer.send(Message("T", BODY)) for _ in range(100)))
            assert len(results) == 100

    with FloorServers("send", disk, FILE_BYTES) as servers:
        asyncio.run(scene(servers.namesrv))
        written = Path(servers.store, "floor").read_bytes()
        assert (written.count(BODY) >= 100) is (disk != "none")


def test_a_pull_that_waits_gets_what_is_sent() -> None:
    async def scene(address: str) -> None:
        async with Producer("group", address) as producer, PullConsumer("group", address) as consumer:
            queue = (await consumer.message_queues("T"))[0]
            pull = asyncio.create_task(consumer.pull(queue, 0, suspend_timeout_ms=15_000))
            await asyncio.sleep(0.05)
            await producer.send(Message("T", BODY), queue)
            result = await pull
            assert [message.body for message in result.messages] == [BODY]
            assert result.next_begin_offset == 1

    with FloorServers("relay", "none", FILE_BYTES) as servers:
        asyncio.run(scene(servers.namesrv))


def test_prepared_messages_are_pulled_to_their_end() -> None:
    async def scene(address: str) -> None:
        async with PullConsumer("group", address) as consumer:
            queue = MessageQueue("T", "broker-a", 0)
            await consumer.message_queues("T")
            result = await consumer.pull(queue, 64, PULL_MESSAGES)
            assert [message.queue_offset for message in result.messages] == list(range(64, 64 + PULL_MESSAGES))
            result = await consumer.pull(queue, PREPARED, PULL_MESSAGES)
            assert result.status is not PullStatus.FOUND

    with FloorServers("pull", "none", FILE_BYTES) as servers:
        asyncio.run(scene(servers.namesrv))


@pytest.mark.parametrize(("header", "found"), [(b'{"opaque":12,', 12), (b'{"opaque": 7}', 7), (b'{"code":1}', -1)])
def test_a_number_of_a_header(header: bytes, found: int) -> None:
    assert floor_server.number(header, b'"opaque":', 0, len(header)) == found
