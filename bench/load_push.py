"""Load program that uses our push consumer. Arguments: ``consume|echo``, name server address, topic, body bytes for
``echo``.

Each line on standard input is one round and gets one JSON line. ``consume``: ``GROUP MESSAGES`` reads a new group from
the first message on, with a listener that only counts; the time runs from the first message to the last. ``echo``:
``MESSAGES RATE`` sends ``RATE`` messages per second to a waiting consumer; a latency is the time from the call of the
producer until the call of the listener.
"""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop

from bench.load_client import Echo, echo_rounds, say
from bench.samples import body_of
from bench.soak_record import HEAD, MAGIC
from rucola import ConsumeFromWhere, Message, MessageExt, Producer, ProducerConfig, PushConsumer, PushConsumerConfig

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
ROUND_S = 60.0


async def consume(namesrv: str, topic: str) -> None:
    """Runs rounds of ``GROUP MESSAGES``."""
    say({"ready": 1})
    while line := await asyncio.to_thread(sys.stdin.readline):
        group, messages = line.split()
        say(await _consume(namesrv, topic, group, int(messages)))


async def _consume(namesrv: str, topic: str, group: str, messages: int) -> dict[str, float]:
    consumer = PushConsumer(group, namesrv, PushConsumerConfig(consume_from_where=FIRST))
    done = asyncio.get_running_loop().create_future()
    seen, first, last = 0, 0.0, 0.0

    async def listener(_message: MessageExt) -> None:
        nonlocal seen, first, last
        if not seen:
            first = time.perf_counter()
        seen += 1
        if seen == messages:
            last = time.perf_counter()
            done.set_result(None)

    consumer.register_message_listener(listener)
    await consumer.subscribe(topic)
    async with consumer:
        await asyncio.wait([done], timeout=ROUND_S)
    return {"messages": seen, "failed": max(0, messages - seen), "seconds": last - first if last else ROUND_S}


class PushEcho(Echo):
    """Messages on their way from a producer to a listener in the same process."""

    async def listen(self, message: MessageExt) -> None:
        """Records the arrival of messages, as the listener of the consumer."""
        now_ns = time.monotonic_ns()
        magic, number, sent_ns = HEAD.unpack_from(message.body)
        if magic == MAGIC:
            self.arrived(number, now_ns - sent_ns)


async def echo(namesrv: str, topic: str, body_bytes: int) -> None:
    """Runs rounds of ``MESSAGES RATE``."""
    config = ProducerConfig(retry_times_when_send_async_failed=0, send_msg_timeout_ms=20_000)
    padding = body_of(body_bytes - HEAD.size)
    current = PushEcho(0, 0)

    async def listener(message: MessageExt) -> None:
        await current.listen(message)

    async with Producer("echo_load", namesrv, config) as producer:
        await producer.send(Message(topic, body_of(body_bytes)))  # makes the topic
        consumer = PushConsumer("push_echo_load", namesrv, PushConsumerConfig(consume_from_where=FIRST))
        consumer.register_message_listener(listener)
        await consumer.subscribe(topic)
        async with consumer:

            async def run(first: int, messages: int, rate: int) -> Echo:
                nonlocal current
                current = PushEcho(first, messages)
                await current.run(producer, topic, padding, rate)
                return current

            await echo_rounds(run)


if __name__ == "__main__":
    kind, namesrv_address, topic_name, *rest = sys.argv[1:]
    uvloop.run(
        consume(namesrv_address, topic_name) if kind == "consume" else echo(namesrv_address, topic_name, int(rest[0]))
    )
