"""The producer process: ``python -m demo.flights.produce --namesrv HOST:PORT --part 0 --parts 2 --rows 336776``.

Sends its share of the rows, pipelined, and prints one JSON line with a `Progress` several times a second. After the
acknowledgement of the first `FIRST_ROWS`, it waits for a line on standard input, because the pipeline warms up with
these rows.

If the response to a send is lost, the message may or may not be stored. The row is sent again, so the log may have it
twice. The key therefore contains the flight id, by which readers can recognise duplicates.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Annotated
from zlib import crc32

import orjson
import typer

from rucola import Message, MessageQueue, Producer, ProducerConfig, SendResult
from rucola.errors import ClientError, RucolaError

from .data import ROWS_ALL, TOPIC, FlightMessage, flight_rows, message_of

FIRST_ROWS = 500
"""Number of rows that each producer sends before it waits for the pipeline to warm up."""

IN_FLIGHT_MAX = 512
REPORT_INTERVAL_S = 0.1
PACE_INTERVAL_S = 0.002
RESEND_PAUSE_S = 0.1
STALL_TIMEOUT_S = 60.0
"""The producer gives up after this time without an acknowledgement, in seconds."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a producer. ``resent`` is the number of sends repeated because their response was lost or bad."""

    acknowledged: int = 0
    resent: int = 0
    waiting: bool = False
    """Whether the producer waits for the signal to continue after its first rows."""


class StalledError(Exception):
    """Raised if nothing was acknowledged for too long."""


def queue_of_flight(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """The queue for a flight. All duplicates of a flight go to the same queue, so a reader of the queue sees them."""
    return queues[crc32((message.keys or "").encode()) % len(queues)]


class Publisher:
    """Sends each message until it is acknowledged, at a steady rate, with at most `IN_FLIGHT_MAX` in flight."""

    def __init__(self, producer: Producer, rate: float) -> None:
        """Prepares the publisher; it sends nothing yet.

        Args:
            rate: messages per second; 0 means as fast as responses arrive.
        """
        self._producer = producer
        self._rate = rate
        self._in_flight = 0
        self._again: deque[FlightMessage] = deque()
        self._troubled = False
        self._last_error: BaseException | None = None
        self._fatal: BaseException | None = None
        self._stall_mark, self._stall_since_s = -1, 0.0
        self.acknowledged = 0
        self.resent = 0
        self.waiting = False

    async def publish(self, messages: Iterable[FlightMessage]) -> None:
        """Sends all of ``messages`` and returns when every one is acknowledged.

        After an outage the publisher is late, and sends at full speed until it has caught up.

        Raises:
            StalledError: nothing was acknowledged for `STALL_TIMEOUT_S`.
            RucolaError: the broker's response makes repeated sends useless.
        """
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        # The time since an earlier call of this method does not count as a stall.
        self._stall_mark, self._stall_since_s = self.acknowledged, begin_s
        for taken, message in enumerate(messages):
            while self._rate and taken > (loop.time() - begin_s) * self._rate:
                await self._pause(PACE_INTERVAL_S)
            while self._in_flight >= IN_FLIGHT_MAX or self._again:
                await self._resend_or_wait()
            self._send(message)
        while self._in_flight or self._again:
            await self._resend_or_wait()

    async def _resend_or_wait(self) -> None:
        # While the broker is unavailable, only one message at a time is tried, because all others would fail, too.
        room = 1 if self._troubled else IN_FLIGHT_MAX
        if not self._again or self._in_flight >= room:
            await self._pause(PACE_INTERVAL_S)
            return
        if self._troubled:
            await self._pause(RESEND_PAUSE_S)
        self._send(self._again.popleft())

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._fatal is not None:
            raise self._fatal
        now_s = asyncio.get_running_loop().time()
        if self.acknowledged != self._stall_mark or not self._in_flight | len(self._again):
            self._stall_mark, self._stall_since_s = self.acknowledged, now_s
        elif now_s - self._stall_since_s > STALL_TIMEOUT_S:
            raise StalledError(f"nothing acknowledged for {STALL_TIMEOUT_S:.0f} s; last error: {self._last_error!r}")

    def _send(self, flight: FlightMessage) -> None:
        message = Message(
            topic=TOPIC, body=flight.body, tags=flight.tag, keys=flight.key, properties=dict(flight.properties)
        )
        self._in_flight += 1
        answer = self._producer.submit(message, selector=queue_of_flight)
        answer.add_done_callback(lambda done: self._answered(flight, done))

    def _answered(self, flight: FlightMessage, answer: asyncio.Future[SendResult]) -> None:
        self._in_flight -= 1
        error = answer.exception()
        if error is None:
            self.acknowledged += 1
            self._troubled = False
            return
        # While broker and name server restart, the topic may have no route for a moment, which is a ClientError.
        if not (isinstance(error, ClientError) or (isinstance(error, RucolaError) and error.retriable)):
            self._fatal = self._fatal or error
            return
        self._last_error = error
        self._troubled = True
        self.resent += 1
        self._again.append(flight)


async def produce(namesrv: str, part: int, parts: int, rows: int, rate: float) -> None:
    """Sends share ``part`` of ``parts`` of the first ``rows`` rows, and reports on standard output."""
    # The Publisher repeats sends: it counts them, and it does not give up while a broker restarts.
    config = ProducerConfig(retry_times_when_send_async_failed=0)
    producer = Producer(f"flights_producer_{part}", namesrv, config)
    await producer.start()
    try:
        publisher = Publisher(producer, rate)
        # Reading the CSV takes as long as sending, so it is done first. In real use, it would load other machines.
        messages = iter(_messages(rows, part, parts))
        reporting = asyncio.create_task(_report(publisher))
        await publisher.publish(islice(messages, FIRST_ROWS))
        publisher.waiting = True
        await asyncio.to_thread(sys.stdin.readline)
        publisher.waiting = False
        await publisher.publish(messages)
        reporting.cancel()
        _print_progress(publisher)
    finally:
        await producer.shutdown()


def _messages(rows: int, part: int, parts: int) -> list[FlightMessage]:
    """All messages of this producer's share. They exist until the process ends, so the garbage collector skips them."""
    gc.disable()
    messages = [message_of(row) for row in flight_rows(rows, part, parts)]
    gc.freeze()
    gc.enable()
    return messages


async def _report(publisher: Publisher) -> None:
    while True:
        _print_progress(publisher)
        await asyncio.sleep(REPORT_INTERVAL_S)


def _print_progress(publisher: Publisher) -> None:
    progress = Progress(publisher.acknowledged, publisher.resent, publisher.waiting)
    sys.stdout.write(orjson.dumps(asdict(progress)).decode() + "\n")
    sys.stdout.flush()


def main(
    namesrv: Annotated[str, typer.Option(help="Name server, host:port.")],
    part: Annotated[int, typer.Option(help="Index of this producer's share of the rows, from 0.")] = 0,
    parts: Annotated[int, typer.Option(help="Number of shares into which the rows are split.")] = 1,
    rows: Annotated[int, typer.Option(help="Number of rows in all shares together.")] = ROWS_ALL,
    rate: Annotated[float, typer.Option(help="Messages per second, 0 for as fast as possible.")] = 0.0,
) -> None:
    """Publish flights."""
    asyncio.run(produce(namesrv, part, parts, rows, rate))


if __name__ == "__main__":
    typer.run(main)
