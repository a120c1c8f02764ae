"""Load program that uses our client. Arguments: ``send|pull|echo``, name server address, topic, body bytes.

Each line on standard input starts one round, which prints one JSON line. ``send``: ``IN_FLIGHT MESSAGES [BATCH]`` keeps
``IN_FLIGHT`` sends without a response; with ``BATCH``, each send has this many messages. ``pull``: ``MESSAGES
IN_FLIGHT`` keeps ``IN_FLIGHT`` concurrent pulls of 32 messages; each reads a queue from its start. ``echo``: ``MESSAGES
RATE`` sends ``RATE`` messages per second to waiting consumers, one for each queue; a latency is the time from the call
of the producer until the message was pulled.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import orjson
import uvloop

from bench.samples import body_of
from bench.soak_record import HEAD, MAGIC, RECORD
from rucola import Message, MessageQueue, Producer, ProducerConfig, PullConsumer, PullStatus, SendResult

PULL_MESSAGES = 32
REST_S = 30.0
"""Maximum time in seconds from the last send of a round until its last message arrives."""


class SendWindow:
    """Keeps ``in_flight`` sends without a response until ``messages`` were sent and acknowledged."""

    def __init__(
        self, producer: Producer, topic: str, body: bytes, in_flight: int, messages: int, batch: int = 1
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._body = body
        self._in_flight = in_flight
        self._left = self._sends = max(1, messages // batch)
        self._batch = batch
        self._done = asyncio.get_running_loop().create_future()
        self.failed = 0
        self.latencies_ns = array("q")

    async def run(self) -> None:
        """Returns when the last response has arrived."""
        for _ in range(min(self._in_flight, self._left)):
            self._next(time.perf_counter_ns())
        await self._done

    def _next(self, now_ns: int) -> None:
        self._left -= 1
        answer: asyncio.Future[SendResult]
        message = Message(self._topic, self._body, tags="TagA", keys="key")
        if self._batch > 1:
            others = [Message(self._topic, self._body, tags="TagA", keys="key") for _ in range(self._batch - 1)]
            answer = asyncio.ensure_future(self._producer.send_batch([message, *others]))
        else:
            answer = self._producer.submit(message)
        answer.add_done_callback(partial(self._answered, now_ns))

    def _answered(self, start_ns: int, answer: asyncio.Future[SendResult]) -> None:
        now_ns = time.perf_counter_ns()
        self.latencies_ns.append(now_ns - start_ns)
        if answer.exception() is not None:
            if not self.failed:
                print(repr(answer.exception()), file=sys.stderr)
            self.failed += 1
        if self._left:
            self._next(now_ns)
        elif len(self.latencies_ns) == self._sends:
            self._done.set_result(None)


async def send(namesrv: str, topic: str, body_bytes: int) -> None:
    """Runs rounds of ``IN_FLIGHT MESSAGES``."""
    config = ProducerConfig(retry_times_when_send_async_failed=0, send_msg_timeout_ms=20_000)
    async with Producer("send_load", namesrv, config) as producer:
        body = body_of(body_bytes)
        await producer.send(Message(topic, body))  # makes the topic
        say({"ready": 1})
        while line := await asyncio.to_thread(sys.stdin.readline):
            in_flight, messages, *rest = map(int, line.split())
            batch = rest[0] if rest else 1
            window = SendWindow(producer, topic, body, in_flight, messages, batch)
            start = time.perf_counter()
            await window.run()
            seconds = time.perf_counter() - start
            sent, failed = len(window.latencies_ns) * batch, window.failed * batch
            say({"messages": sent, "failed": failed, "seconds": seconds} | quantiles(window.latencies_ns))


async def pull(namesrv: str, topic: str) -> None:
    """Runs rounds of ``MESSAGES IN_FLIGHT``; the records pulled are not decoded."""
    async with PullConsumer("pull_load", namesrv) as consumer:
        queues = await consumer.message_queues(topic)
        say({"ready": 1})
        while line := await asyncio.to_thread(sys.stdin.readline):
            messages, in_flight = map(int, line.split())
            each = messages // in_flight // PULL_MESSAGES * PULL_MESSAGES
            start = time.perf_counter()
            readers = (_read(consumer, queues[number % len(queues)], each) for number in range(in_flight))
            seen = sum(await asyncio.gather(*readers))
            seconds = time.perf_counter() - start
            say({"messages": seen, "failed": each * in_flight - seen, "seconds": seconds})


async def _read(consumer: PullConsumer, queue: MessageQueue, messages: int) -> int:
    """Reads this many messages from the start of the queue, and starts again whenever its end is reached; returns how
    many were read.
    """
    seen = queue_offset = 0
    while seen < messages:
        result = await consumer.pull_raw(queue, queue_offset, PULL_MESSAGES)
        if result.status is not PullStatus.FOUND:
            if queue_offset == 0:
                break
            queue_offset = 0
            continue
        seen += result.next_begin_offset - queue_offset
        queue_offset = result.next_begin_offset
    return min(seen, messages)


class Echo:
    """Messages on their way from a producer to consumers in the same process.

    Args:
        first: number of the first message; messages of earlier rounds have smaller numbers.
    """

    def __init__(self, first: int, messages: int) -> None:
        self._first = first
        self._messages = messages
        self._done = asyncio.get_running_loop().create_future()
        self.latencies_ns = array("q")
        self.failed = 0

    async def run(self, producer: Producer, topic: str, padding: bytes, rate: float) -> None:
        """Sends ``rate`` messages per second; returns when the last message has arrived or a time limit is reached."""
        start = time.monotonic()
        for sent in range(self._messages):
            while (wait := start + sent / rate - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            body = HEAD.pack(MAGIC, self._first + sent, time.monotonic_ns()) + padding
            producer.submit(Message(topic, body, tags="TagA", keys="key")).add_done_callback(self._answered)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._done, REST_S)

    def take(self, records: bytes) -> None:
        """Handles the messages of one pull."""
        now_ns = time.monotonic_ns()
        position = 0
        while position < len(records):
            size, magic, number, sent_ns = RECORD.unpack_from(records, position)
            position += size
            if magic == MAGIC:
                self.arrived(number, now_ns - sent_ns)

    def arrived(self, number: int, latency_ns: int) -> None:
        """Records the arrival of message ``number``; messages of an earlier round are ignored."""
        if number >= self._first:
            self.latencies_ns.append(latency_ns)
            if len(self.latencies_ns) >= self._messages and not self._done.done():
                self._done.set_result(None)

    def _answered(self, answer: asyncio.Future[SendResult]) -> None:
        self.failed += answer.exception() is not None


async def echo(namesrv: str, topic: str, body_bytes: int) -> None:
    """Runs rounds of ``MESSAGES RATE``."""
    config = ProducerConfig(retry_times_when_send_async_failed=0, send_msg_timeout_ms=20_000)
    padding = body_of(body_bytes - HEAD.size)
    current = Echo(0, 0)

    async def follow(consumer: PullConsumer, queue: MessageQueue) -> None:
        queue_offset = await consumer.max_offset(queue)
        while True:
            result = await consumer.pull_raw(queue, queue_offset, PULL_MESSAGES, suspend_timeout_ms=15_000)
            current.take(result.body)
            queue_offset = result.next_begin_offset

    async with Producer("echo_load", namesrv, config) as producer, PullConsumer("echo_load", namesrv) as consumer:
        await producer.send(Message(topic, body_of(body_bytes)))  # makes the topic
        readers = [asyncio.create_task(follow(consumer, queue)) for queue in await consumer.message_queues(topic)]
        await asyncio.sleep(0.5)

        async def run(first: int, messages: int, rate: int) -> Echo:
            nonlocal current
            current = Echo(first, messages)
            await current.run(producer, topic, padding, rate)
            return current

        await echo_rounds(run)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def echo_rounds(run: Callable[[int, int, int], Awaitable[Echo]]) -> None:
    """Runs one round for each line ``MESSAGES RATE`` of standard input.

    Args:
        run: takes the number of the round's first message, the count and the rate; returns the finished round.
    """
    say({"ready": 1})
    first = 0
    while line := await asyncio.to_thread(sys.stdin.readline):
        messages, rate = map(int, line.split())
        start = time.perf_counter()
        done = await run(first, messages, rate)
        seconds = time.perf_counter() - start
        first += messages
        failed = max(done.failed, messages - len(done.latencies_ns))
        say(
            {"messages": messages, "failed": failed, "seconds": seconds}
            | quantiles(done.latencies_ns or array("q", [0]))
        )


def quantiles(latencies_ns: array[int]) -> dict[str, float]:
    """Returns quantiles in microseconds, for the output line of a round."""
    ordered = sorted(latencies_ns)
    shares = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}
    return {name: ordered[int((len(ordered) - 1) * share)] / 1e3 for name, share in shares.items()}


def say(facts: dict[str, float]) -> None:
    """Prints a JSON line."""
    sys.stdout.write(orjson.dumps(facts).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    kind, namesrv_address, topic_name, *rest = sys.argv[1:]
    if kind == "pull":
        uvloop.run(pull(namesrv_address, topic_name))
    else:
        uvloop.run((send if kind == "send" else echo)(namesrv_address, topic_name, int(rest[0])))
