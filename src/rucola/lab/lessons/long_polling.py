"""Three ways for a consumer to wait for messages: it asks repeatedly, its request is held, or messages are pushed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from random import Random
from statistics import median
from struct import Struct
from typing import Any

from rucola.broker import Broker, BrokerConfig
from rucola.client.producer import Producer
from rucola.client.pull_consumer import PullConsumer
from rucola.common.message import Message
from rucola.common.message_queue import MessageQueue
from rucola.errors import StoreError
from rucola.formats.message import decode_messages
from rucola.lab.engine import TOPIC, open_store
from rucola.lab.lesson import Claim, Lesson, Numbers, Quantity
from rucola.lab.small_server import ANSWER, LONG, PUSH, REQUEST, SHORT, SmallServer
from rucola.lab.text import listed, ratio
from rucola.lab.workbench import Workbench
from rucola.namesrv import NameServer, NamesrvConfig
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore

SENT_AT = Struct(">d")
SHORT_10, SHORT_100 = "short polling every 10 ms", "short polling every 100 ms"
HELD, PUSHED, BROKER = "long polling", "push", "long polling, Rucola's broker"
WAYS = {SHORT_100: (SHORT, 0.1), SHORT_10: (SHORT, 0.01), HELD: (LONG, 0.0), PUSHED: (PUSH, 0.0), BROKER: (LONG, 0.0)}
Reading = Coroutine[Any, Any, None]
Send = Callable[[bytes], Coroutine[Any, Any, None]]


async def consume(address: tuple[str, int], how: bytes, pause_s: float, queue_offset: int, took: list[float]) -> None:
    """Receives messages until the task is cancelled; adds the age of each message, in seconds, to ``took``."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        if how == PUSH:
            writer.write(REQUEST.pack(PUSH, queue_offset))
        while True:
            if how != PUSH:
                writer.write(REQUEST.pack(how, queue_offset))
            size, queue_offset = ANSWER.unpack(await reader.readexactly(ANSWER.size))
            took += ages(decode_messages(await reader.readexactly(size)))
            if how == SHORT and size == 0:
                await asyncio.sleep(pause_s)
    finally:
        writer.close()


async def consume_from_broker(consumer: PullConsumer, queue: MessageQueue, took: list[float], asked: list[int]) -> None:
    """Receives messages with Rucola's consumer: the broker holds each pull until there is a message."""
    queue_offset = await consumer.max_offset(queue)
    while True:
        asked.append(1)
        result = await consumer.pull(queue, queue_offset, suspend_timeout_ms=10_000)
        took += ages(result.messages)
        queue_offset = result.next_begin_offset


def ages(messages: Sequence[Message]) -> list[float]:
    """Returns the seconds since each message was sent; the body of a message holds the send time."""
    now = time.perf_counter()
    return [now - SENT_AT.unpack(message.body)[0] for message in messages]


async def spend(
    reading: Reading, rate: int, seconds: float, send: Send, took: list[float], asked: list[int], random: Random
) -> tuple[float, float]:
    """Sends messages at random moments while ``reading`` receives them.

    Returns:
        CPU time of the process as a fraction of the duration; requests per second, not counting the first request.
    """
    task = asyncio.ensure_future(reading)
    while not (asked or task.done()):
        await asyncio.sleep(0.001)
    count = max(1, round(rate * seconds))
    asked.clear()
    begin, cpu = time.perf_counter(), time.process_time()
    for moment in sorted(random.random() * seconds for _ in range(count)):
        await asyncio.sleep(max(begin + moment - time.perf_counter(), 0))
        await send(SENT_AT.pack(time.perf_counter()))
    await asyncio.sleep(max(begin + seconds - time.perf_counter(), 0))
    took_s = time.perf_counter() - begin
    cost, requests = (time.process_time() - cpu) / took_s, len(asked) / took_s
    while len(took) < count and not task.done():
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait([task])
    if len(took) != count:
        raise StoreError(f"{count} messages were sent, {len(took)} came")
    return cost, requests


async def measure(bench: Workbench, store: MessageStore, broker: Broker, namesrv: str) -> None:
    """At each rate, measures all ways to wait, one after the other."""
    server = SmallServer(store)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    address = listening.sockets[0].getsockname()
    async with Producer("lab", namesrv) as producer, PullConsumer("lab-readers", namesrv) as consumer:
        queue = (await producer.send(Message("lab", SENT_AT.pack(0)))).message_queue

        async def send_to_broker(body: bytes) -> None:
            await producer.send_oneway(Message("lab", body), queue)

        for number in bench.repetitions():
            for rate in (1, 100, 2000) if bench.choose(0, 1, 1) else (50, 400):
                seconds = bench.choose(30, 1000 if rate == 1 else 300, 3000) / 1000
                for name, (how, pause_s) in WAYS.items():
                    took: list[float] = []
                    asked: list[int] = []
                    server.asked = asked
                    if name == BROKER:
                        reading, send = consume_from_broker(consumer, queue, took, asked), send_to_broker
                    else:
                        reading = consume(address, how, pause_s, store.max_queue_offset(TOPIC, 0), took)
                        send = server.append
                    cost, requests = await spend(reading, rate, seconds, send, took, asked, Random(number))
                    bench.note("latency", name, rate, median(took) * 1000)
                    bench.note("requests", name, rate, requests)
                    bench.note("cpu", name, rate, cost * 100)
        listening.close()
        await listening.wait_closed()


async def serve_and_measure(bench: Workbench, directory: Path) -> None:
    """Starts Rucola's name server and broker, opens a store for the lesson's own ``SmallServer``, and measures."""
    namesrv = NameServer(NamesrvConfig(listen_port=0))
    await namesrv.start()
    config = MessageStoreConfig(store_path_root_dir=str(directory / "broker"), mapped_file_size_commit_log=16 << 20)
    broker = Broker(BrokerConfig(namesrv_addr=namesrv.address, listen_port=0), config)
    await broker.start()
    with open_store(directory / "store") as store:
        await measure(bench, store, broker, namesrv.address)
    await broker.shutdown()
    await namesrv.shutdown()


def run(bench: Workbench) -> None:
    """Runs servers and clients in one process, over loopback."""
    with bench.directory() as directory:
        asyncio.run(serve_and_measure(bench, directory))


def say_requests(n: Numbers) -> str:
    """Says at which rates long polling saves requests, and why it saves none at other rates."""
    held, short = n["requests"][HELD], n["requests"][SHORT_10]
    saves = [f"{row:,}" for row in held if held[row] < short[row]]
    rate = [int(row) for row in held][-1]
    text = (
        f"Only at {listed(saves)} messages a second does long polling need fewer requests than polling every 10 ms."
        if saves
        else "At no rate does long polling need fewer requests than polling every 10 ms."
    )
    return (
        f"{text} With long polling the consumer sends a request after each response ({ratio(held['last'], rate)} "
        "requests per message at the highest rate), and gets each message almost immediately. With short polling, one "
        "request fetches the messages that arrived during a pause, so these messages are delivered later."
    )


LESSON = Lesson(
    title="Long polling compared with short polling and push",
    intro=(
        "A consumer that pulls does not know when a message has arrived. With **short polling** it asks, and pauses "
        "after an empty response before it asks again; after a response with messages (at most 32) it asks again "
        "immediately. With **long polling** the server holds the request, and responds when a message comes or a time "
        "limit is over. With **push** the server sends each message as it comes, without another request. A small "
        "server over the real store does all three in one protocol; messages come at random moments. Latency is the "
        "time from the append to the decoded message; CPU is that of the whole process, with client and server. The "
        "first request of a consumer is not counted. The last series is Rucola's own broker with Rucola's producer "
        "and consumer: here the latency includes the time from the producer to the broker."
    ),
    design=(
        "The broker holds a pull that finds no messages. When a message with a matching tag arrives, the broker "
        "responds to the pull in the same iteration of its event loop. So a consumer decides how much it takes and "
        "when, but a message hardly ever waits for a request."
    ),
    quantities=(
        Quantity("latency", "From append to consumer", "ms, median", "messages a second"),
        Quantity("requests", "Requests of the consumer", "requests a second", "messages a second"),
        Quantity("cpu", "CPU of client and server", "% of a core", "messages a second"),
    ),
    claims=(
        Claim(
            "RocketMQ's documentation (Message Storage, pull with long polling)",
            "a held pull gets its response as soon as a message comes (our test: at each rate, the median latency is "
            "at most 1 ms longer than with push)",
            lambda n: all(held < n["latency"][PUSHED][rate] + 1 for rate, held in n["latency"][HELD].items()),
            f"at the lowest rate, the median latency is {{latency[{HELD}][first]}} ms with long polling and "
            f"{{latency[{PUSHED}][first]}} ms with push; at the highest rate it is {{latency[{HELD}][last]}} ms and "
            f"{{latency[{PUSHED}][last]}} ms; with Rucola's broker, from producer to consumer, it is "
            f"{{latency[{BROKER}][first]}} ms at the lowest rate and {{latency[{BROKER}][last]}} ms at the highest",
            "The request is at the server already; only the response has to travel.",
            "After each response, the server has to wait for the consumer's next request before it can send more.",
        ),
        Claim(
            "Kafka's documentation (Design, Push vs. pull)",
            "a consumer that keeps polling while there is no data is busy waiting; a long poll avoids this (our test: "
            "at the lowest rate, long polling takes less CPU than polling every 10 ms, and sends less than a tenth as "
            "many requests)",
            lambda n: (
                n["requests"][SHORT_10]["first"] > 10 * n["requests"][HELD]["first"]
                and n["cpu"][SHORT_10]["first"] > n["cpu"][HELD]["first"]
            ),
            f"at the lowest rate, polling every 10 ms takes {{requests[{SHORT_10}][first]}} requests a second and "
            f"{{cpu[{SHORT_10}][first]}} % of a core; long polling takes {{requests[{HELD}][first]}} requests a second "
            f"and {{cpu[{HELD}][first]}} % of a core",
            "Nearly all requests of short polling find no message.",
            "Here empty requests cost hardly any CPU, or few requests are empty.",
        ),
        Claim(
            "What one might expect",
            "polling less often saves requests, but half the interval is added to the latency (our test: at "
            "the middle rate, polling every 100 ms makes fewer requests than polling every 10 ms, and its median "
            "latency is 20 to 80 ms)",
            lambda n: (
                n["requests"][SHORT_100]["middle"] < n["requests"][SHORT_10]["middle"]
                and 20 < n["latency"][SHORT_100]["middle"] < 80
            ),
            f"at the middle rate, polling every 100 ms gives a latency of {{latency[{SHORT_100}][middle]}} ms and "
            f"takes {{requests[{SHORT_100}][middle]}} requests a second; polling every 10 ms gives "
            f"{{latency[{SHORT_10}][middle]}} ms and takes {{requests[{SHORT_10}][middle]}} requests a second",
            "A message waits for the next request, which is half an interval away on average.",
            "Messages come so often that few requests find nothing.",
        ),
        Claim(
            "What one might expect",
            "long polling needs fewer requests than polling every 10 ms, at each rate",
            lambda n: all(held < n["requests"][SHORT_10][rate] for rate, held in n["requests"][HELD].items()),
            f"long polling makes {{requests[{HELD}][first]}} requests a second at the lowest rate and "
            f"{{requests[{HELD}][last]}} at the highest; polling every 10 ms makes {{requests[{SHORT_10}][first]}} and "
            f"{{requests[{SHORT_10}][last]}}; push makes {{requests[{PUSHED}][last]}} at the highest",
            "A held request gets a response with messages; most short polls get an empty response.",
            say_requests,
        ),
        Claim(
            "What one might expect",
            "at the highest rate push needs less CPU than long polling, since nobody has to ask",
            lambda n: n["cpu"][PUSHED]["last"] < n["cpu"][HELD]["last"],
            f"{{cpu[{PUSHED}][last]}} % of a core with push, {{cpu[{HELD}][last]}} % with long polling",
            "Push saves one request for each response.",
            "A request costs little compared with what each message costs anyway, and one response brings the "
            "messages that came since the previous response.",
        ),
    ),
    space_bytes=lambda size: 200 << 20,
    run=run,
    parts=("small_server",),
)
