"""Messages, queues and servers for the tests of consumers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.brokers import Cluster

from rucola import Message, Producer
from rucola.client.received import PullOrigin, ReceivedMessage
from rucola.common.message import MessageExt, StoreMessage
from rucola.common.message_queue import MessageQueue
from rucola.formats.message import encode_message
from rucola.formats.properties import encode_properties

QUEUE = MessageQueue("T", "broker-a", 1)
HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])


def record(queue_offset: int, body: bytes = b"body", topic: str = "T", sys_flag: int = 0, **properties: str) -> bytes:
    text = encode_properties({"UNIQ_KEY": f"U{queue_offset}", **properties})
    message = StoreMessage(topic.encode(), 1, body, text, 1_699_999_999_000, HOST, sys_flag=sys_flag)
    return encode_message(message, 1000 + queue_offset, queue_offset, 1_700_000_000_000, HOST)


def messages(*queue_offsets: int, body: bytes = b"body", **properties: str) -> list[MessageExt]:
    records = b"".join(record(offset, body, **properties) for offset in queue_offsets)
    return ReceivedMessage.of_records(records, PullOrigin("broker-a", 0, 100))


async def ignore(message: object) -> None:
    """A listener that does nothing."""


@asynccontextmanager
async def cluster(path: Path, **options: Any) -> AsyncIterator[tuple[Cluster, Producer]]:
    servers = Cluster(path / "store", message_delay_level="1s 1s 1s 1s 1s 1s", **options)
    async with servers, Producer("pg", servers.namesrv.address) as producer:
        yield servers, producer


async def send(producer: Producer, *bodies: bytes, **options: Any) -> None:
    await producer.send_batch([Message("T", body, **options) for body in bodies])
