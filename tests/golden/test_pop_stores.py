"""Directories with popped messages from RocketMQ's broker, stopped and killed: our broker delivers the messages that
must come, and none that was acknowledged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.brokers import run_virtual
from tests.golden.broker_case import LaterClock, broker_of

from rucola.broker import Broker
from rucola.broker.pop.retry_copy import retry_copy
from rucola.formats.message import decode_message, decode_messages, encode_message
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient

GROUP, TOPIC = "G_store", "T_store"
RETRY = f"%RETRY%{GROUP}_{TOPIC}"
NEVER_POPPED = "pop message 5"
COMES_AGAIN = ["pop message 0", "pop message 3", "pop message 4"]


async def popped(client: RemotingClient, broker: Broker, clock: LaterClock, patience_ms: int) -> list[str]:
    fields: dict[str, Any] = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 32, "invisibleTime": 600_000,
        "pollTime": patience_ms, "bornTime": clock.wall_ms(), "initMode": 0,
    }  # fmt: skip
    command = RemotingCommand(200050, ext_fields={name: str(value) for name, value in fields.items()})
    answer = await client.invoke(broker.address, command, 90_000)
    return [message.body.decode() for message in decode_messages(answer.body)]


@pytest.mark.parametrize("name", ["pop_clean", "pop_killed"])
def test_due_messages_come_once(name: str, tmp_path: Path) -> None:
    async def work() -> None:
        broker, clock = broker_of(name, tmp_path)
        await broker.start()
        client = RemotingClient()
        try:
            found: list[str] = []
            while len(found) < 1 + len(COMES_AGAIN):
                bodies = await popped(client, broker, clock, 60_000)
                assert bodies, found
                found += bodies
            assert sorted(found) == sorted([NEVER_POPPED, *COMES_AGAIN])
            assert await popped(client, broker, clock, 3_000) == []
            assert broker.store.max_queue_offset(RETRY.encode(), 0) == len(COMES_AGAIN)
        finally:
            await client.close()
            await broker.shutdown()

    run_virtual(work())


@pytest.mark.parametrize("name", ["pop_clean", "pop_killed"])
def test_a_message_that_comes_again_has_the_bytes_of_the_reference(name: str, tmp_path: Path) -> None:
    broker, _ = broker_of(name, tmp_path)
    store = broker.store
    store.load()
    record = store.message_at(store.queue_unit(RETRY.encode(), 0, 0)[0])
    assert record is not None
    theirs = decode_message(record)
    original = store.message_at(store.queue_unit(TOPIC.encode(), 0, 0)[0])
    assert original is not None
    copy = retry_copy(decode_message(original), RETRY, int(theirs.properties["1ST_POP_TIME"]), theirs.store_host)
    place = (theirs.physical_offset, theirs.queue_offset, theirs.store_timestamp_ms, theirs.store_host)
    assert encode_message(copy, *place) == bytes(record)
    store.shutdown()
