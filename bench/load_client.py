"""Load program on our client. Arguments: ``send|pull``, name server address, topic, body bytes.

Each line on standard input is one round and gets one JSON line. ``send``: ``IN_FLIGHT MESSAGES``, always so many
unanswered. ``pull``: ``MESSAGES IN_FLIGHT``, so many pulls of 32 messages side by side, each reading a queue from its
start.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array

import orjson
import uvloop

from bench.samples import body_of
from rucola import Message, MessageQueue, Producer, ProducerConfig, PullConsumer, PullStatus, SendResult

PULL_MESSAGES = 32


class SendWindow:
    """Keeps ``in_flight`` sends unanswered until ``messages`` were sent and answered."""

    def __init__(self, producer: Producer, topic: str, body: bytes, in_flight: int, messages: int) -> None:
        self._producer = producer
        self._topic = topic
        self._body = body
        self._in_flight = in_flight
        self._left = messages
        self._waiting = messages
        self._done = asyncio.get_running_loop().create_future()
        self.failed = 0
        self.latencies_ns = array("q")

    async def run(self) -> None:
        """Returns when the last answer is there."""
        for _ in range(min(self._in_flight, self._left)):
            self._next()
        await self._done

    def _next(self) -> None:
        self._left -= 1
        message = Message(self._topic, self._body, tags="TagA", keys="key")
        start = time.perf_counter_ns()
        self._producer.submit(message).add_done_callback(lambda answer: self._answered(answer, start))

    def _answered(self, answer: asyncio.Future[SendResult], start: int) -> None:
        self.latencies_ns.append(time.perf_counter_ns() - start)
        if answer.exception() is not None:
            if not self.failed:
                print(repr(answer.exception()), file=sys.stderr)
            self.failed += 1
        self._waiting -= 1
        if self._left:
            self._next()
        elif not self._waiting:
            self._done.set_result(None)


async def send(namesrv: str, topic: str, body_bytes: int) -> None:
    """Rounds of ``IN_FLIGHT MESSAGES``."""
    config = ProducerConfig(retry_times_when_send_async_failed=0, send_msg_timeout_ms=20_000)
    async with Producer("send_load", namesrv, config) as producer:
        body = body_of(body_bytes)
        await producer.send(Message(topic, body))  # makes the topic
        _say({"ready": 1})
        while line := await asyncio.to_thread(sys.stdin.readline):
            in_flight, messages = map(int, line.split())
            window = SendWindow(producer, topic, body, in_flight, messages)
            start = time.perf_counter()
            await window.run()
            seconds = time.perf_counter() - start
            ordered = sorted(window.latencies_ns)
            p50, p99 = ordered[len(ordered) // 2] / 1e3, ordered[int(len(ordered) * 0.99)] / 1e3
            _say({"messages": messages, "failed": window.failed, "seconds": seconds, "p50_us": p50, "p99_us": p99})


async def pull(namesrv: str, topic: str) -> None:
    """Rounds of ``MESSAGES IN_FLIGHT``; records stay as they are stored."""
    async with PullConsumer("pull_load", namesrv) as consumer:
        queues = await consumer.message_queues(topic)
        _say({"ready": 1})
        while line := await asyncio.to_thread(sys.stdin.readline):
            messages, in_flight = map(int, line.split())
            each = messages // in_flight // PULL_MESSAGES * PULL_MESSAGES
            start = time.perf_counter()
            readers = (_read(consumer, queues[number % len(queues)], each) for number in range(in_flight))
            seen = sum(await asyncio.gather(*readers))
            seconds = time.perf_counter() - start
            _say({"messages": seen, "failed": each * in_flight - seen, "seconds": seconds})


async def _read(consumer: PullConsumer, queue: MessageQueue, messages: int) -> int:
    """Reads so many messages from the start of the queue, again from there at its end; returns how many it got."""
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


def _say(facts: dict[str, float]) -> None:
    sys.stdout.write(orjson.dumps(facts).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    kind, namesrv_address, topic_name, *rest = sys.argv[1:]
    work = send(namesrv_address, topic_name, int(rest[0])) if kind == "send" else pull(namesrv_address, topic_name)
    uvloop.run(work)
