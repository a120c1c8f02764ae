"""A client's first message. Arguments: ``send|send-sync|push``, name server address, topic, start of the process in
nanoseconds since the epoch, and for ``push`` the group.

The process works once, prints one JSON line with times in ms, and ends. ``send``: ``imported`` is the time from the
start of the process until the import is done, ``acknowledged`` the time from there until the first send is
acknowledged. ``push``: ``joined`` is the time until ``start`` returned, ``arrived`` the time from there until a message
that is sent at once reaches the listener; the producer has sent before.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

FIRST_S = 30.0
"""How long to wait for the first message, in seconds."""


def _since_ms(begin_ns: int) -> float:
    return (time.time_ns() - begin_ns) / 1e6


async def send(namesrv: str, topic: str, begin_ns: int) -> None:
    """The asynchronous producer."""
    from rucola import Message, Producer

    imported_ms = _since_ms(begin_ns)
    begin = time.perf_counter()
    async with Producer("first_send", namesrv) as producer:
        await producer.send(Message(topic, b"first"))
        say({"imported": imported_ms, "acknowledged": (time.perf_counter() - begin) * 1e3})


def send_sync(namesrv: str, topic: str, begin_ns: int) -> None:
    """The producer with blocking calls."""
    from rucola.sync import Message, Producer

    imported_ms = _since_ms(begin_ns)
    begin = time.perf_counter()
    with Producer("first_send", namesrv) as producer:
        producer.send(Message(topic, b"first"))
        say({"imported": imported_ms, "acknowledged": (time.perf_counter() - begin) * 1e3})


async def push(namesrv: str, topic: str, begin_ns: int, group: str) -> None:
    """A push consumer that is alone in a new group."""
    from rucola import Message, MessageExt, Producer, PushConsumer

    body = str(begin_ns).encode()
    arrived = asyncio.Event()

    async def listener(message: MessageExt) -> None:
        if message.body == body:
            arrived.set()

    async with Producer("first_send", namesrv) as producer:
        await producer.send(Message(topic, b"before"))
        consumer = PushConsumer(group, namesrv, topics=[topic])
        consumer.register_message_listener(listener)
        begin = time.perf_counter()
        async with consumer:
            joined = time.perf_counter()
            await producer.send(Message(topic, body))
            async with asyncio.timeout(FIRST_S):
                await arrived.wait()
            say({"joined": (joined - begin) * 1e3, "arrived": (time.perf_counter() - joined) * 1e3})


def say(answer: dict[str, float]) -> None:
    """Prints the result."""
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    kind, namesrv_address, topic_name, begin_text, *rest = sys.argv[1:]
    if kind == "push":
        asyncio.run(push(namesrv_address, topic_name, int(begin_text), rest[0]))
    elif kind == "send":
        asyncio.run(send(namesrv_address, topic_name, int(begin_text)))
    else:
        send_sync(namesrv_address, topic_name, int(begin_text))
