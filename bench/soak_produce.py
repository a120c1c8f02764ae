"""Producers of a soak, all in one process. Arguments: ledger, name server, topics, body bytes.

Lines on standard input: ``flood`` sends as fast as responses come. ``pace RATE`` sends this many messages per second.
``pause`` waits for all responses and reports it. ``quit`` does the same and ends. Reasons for repeated sends appear as
JSON lines on standard output.

Each producer sends bursts of messages to its queues in turn, one queue per burst, like an application that collects a
few messages. A message whose send fails is sent again until it is acknowledged.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import orjson
import uvloop

from bench.samples import body_of
from bench.soak_ledger import Count, Ledger
from bench.soak_record import HEAD, MAGIC
from rucola import Message, MessageQueue, Producer, ProducerConfig, SendResult, SendStatus

BURST = 16
BURSTS_OPEN = 2
"""Largest number of bursts that a producer may have sent without a response. At this limit it waits for responses, even
if it sends at a fixed rate. Even then, the latency of a message is measured from its due time.
"""
REPEAT_AFTER_S = 0.05
SPIN_S = 0.0005


class Lane:
    """One producer and its topic."""

    def __init__(self, producer: Producer, topic: str, queues: list[MessageQueue], number: int, ledger: Ledger) -> None:
        self._producer = producer
        self._topic = topic
        self._queues = queues
        self._turn = number
        self._next = number * ledger.capacity
        self._end = self._next + ledger.capacity
        self._acknowledged = ledger.acknowledged
        self._counts = ledger.row(0)
        self._padding = b""
        self.reasons: Counter[str] = Counter()
        self.open = 0
        self.on_room: Callable[[Lane], None] | None = None

    def pad(self, body_bytes: int) -> None:
        """Sets the size of the bodies that are sent from now on."""
        self._padding = body_of(body_bytes - HEAD.size)

    def burst(self, due_ns: int) -> None:
        """Sends a burst; its latency is measured from ``due_ns``."""
        if self._next + BURST > self._end:
            raise RuntimeError("the ledger is full")
        queue = self._queues[self._turn % len(self._queues)]
        self._turn += 1
        self.open += BURST
        self._counts[Count.SENT] += BURST
        for number in range(self._next, self._next + BURST):
            self._send(number, Message(self._topic, HEAD.pack(MAGIC, number, due_ns) + self._padding), queue)
        self._next += BURST

    def _send(self, number: int, message: Message, queue: MessageQueue) -> None:
        self._producer.submit(message, queue).add_done_callback(
            lambda answer: self._answered(answer, number, message, queue)
        )

    def _answered(self, answer: asyncio.Future[SendResult], number: int, message: Message, queue: MessageQueue) -> None:
        error = answer.exception()
        if error is not None:
            self._counts[Count.REPEATED] += 1
            self.reasons[f"{type(error).__name__}: {error}"] += 1
            asyncio.get_running_loop().call_later(REPEAT_AFTER_S, self._send, number, message, queue)
            return
        if answer.result().status is not SendStatus.SEND_OK:
            self._counts[Count.FLUSH_LATE] += 1
        self._acknowledged[number] = 1
        self._counts[Count.ACKNOWLEDGED] += 1
        self.open -= 1
        if self.open == (BURSTS_OPEN - 1) * BURST and self.on_room is not None:
            self.on_room(self)


class Load:
    """Sends on all lanes."""

    def __init__(self, lanes: list[Lane], ledger: Ledger) -> None:
        self._lanes = lanes
        self._counts = ledger.row(0)
        self._pacer: asyncio.Task[None] | None = None

    def flood(self) -> None:
        """Keeps two bursts of each producer in flight: when a burst is acknowledged, its producer sends the next."""
        for lane in self._lanes:
            lane.on_room = _next_burst
            for _ in range(BURSTS_OPEN):
                _next_burst(lane)

    def pace(self, rate: float) -> None:
        """Sends this many messages per second; the producers send alternately."""
        self._pacer = asyncio.create_task(self._pace(BURST / rate))

    async def pause(self) -> None:
        """Stops sending, and waits until all messages are acknowledged."""
        if self._pacer is not None:
            self._pacer.cancel()
            await asyncio.gather(self._pacer, return_exceptions=True)
        for lane in self._lanes:
            lane.on_room = None
        while any(lane.open for lane in self._lanes):
            await asyncio.sleep(0.02)

    def reasons(self) -> dict[str, int]:
        """Returns the reasons of sends that were repeated since the last call, with their counts."""
        total: Counter[str] = Counter()
        for lane in self._lanes:
            total.update(lane.reasons)
            lane.reasons.clear()
        return dict(total)

    async def _pace(self, gap_s: float) -> None:
        start = time.monotonic()
        most = len(self._lanes) * BURSTS_OPEN * BURST
        sent = 0
        while True:
            due = start + sent * gap_s
            wait = due - time.monotonic()
            if wait > SPIN_S:
                await asyncio.sleep(wait)
            elif sent % len(self._lanes) == 0:
                await asyncio.sleep(0)
            while self._counts[Count.SENT] - self._counts[Count.ACKNOWLEDGED] > most:
                await asyncio.sleep(0.01)
            self._lanes[sent % len(self._lanes)].burst(int(due * 1e9))
            sent += 1


def _next_burst(lane: Lane) -> None:
    lane.burst(time.monotonic_ns())


async def main(path: Path, namesrv: str, topics: list[str], body_bytes: int) -> None:
    """Handles lines until ``quit`` or the end of the input."""
    ledger = Ledger(path)
    config = ProducerConfig(retry_times_when_send_async_failed=0, send_msg_timeout_ms=20_000)
    producers = [Producer(f"soak_producer_{number}", namesrv, config) for number in range(ledger.producers)]
    lanes = []
    for number, producer in enumerate(producers):
        await producer.start()
        topic = topics[number % len(topics)]
        lane = Lane(producer, topic, await producer.message_queues(topic), number, ledger)
        lane.pad(body_bytes)
        lanes.append(lane)
    load = Load(lanes, ledger)
    teller = asyncio.create_task(_tell(load))
    _say({"ready": 1})
    while line := await asyncio.to_thread(sys.stdin.readline):
        word, *rest = line.split()
        if word == "flood":
            load.flood()
        elif word == "pace":
            load.pace(float(rest[0]))
        else:
            await load.pause()
            _say({"reasons": load.reasons(), "paused": 1})
            if word == "quit":
                break
    teller.cancel()
    await asyncio.gather(*(producer.shutdown() for producer in producers))


async def _tell(load: Load) -> None:
    while True:
        await asyncio.sleep(1)
        if reasons := load.reasons():
            _say({"reasons": reasons})


def _say(facts: dict[str, object]) -> None:
    sys.stdout.write(orjson.dumps(facts).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(","), int(sys.argv[4])))
