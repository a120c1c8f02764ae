"""Sends numbered messages at a steady rate, and notes each acknowledgement: ``python -m tests.conformance.paced_load``.

``PacedLoad`` runs it as a process of its own, so that nothing else that the caller does disturbs the pace.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.peers.packages import PeerError
from tools.peers.servers import OURS

from rucola import Message, Producer, ProducerConfig, SendStatus

BODY_BYTES = 1024
TICK_S = 0.01
_CALL_MS = 60_000
_PATIENT = ProducerConfig(send_msg_timeout_ms=_CALL_MS, mq_client_api_timeout_ms=_CALL_MS, connect_timeout_ms=_CALL_MS)
"""A broker that has just started, on a busy machine, may take seconds for its first messages."""
_STOP_S = 60.0


class Sent(NamedTuple):
    """An acknowledged message: its number, its queue and its queue offset."""

    number: int
    queue_id: int
    queue_offset: int


class PacedLoad:
    """The process, from the start to ``stop``.

    Args:
        rate: number of messages a second.
        ledger: a new file, which gets a line for each acknowledged message.
    """

    def __init__(self, namesrv: str, topic: str, rate: int, ledger: Path) -> None:
        self._ledger = ledger
        words = [namesrv, topic, str(rate), str(ledger)]
        command = [sys.executable, "-m", "tests.conformance.paced_load", *words]
        self.process = subprocess.Popen(command, env={**os.environ, **OURS}, stderr=subprocess.PIPE, text=True)

    def check(self) -> None:
        """Checks that it still sends.

        Raises:
            PeerError: it has ended.
        """
        if self.process.poll() is not None:
            raise PeerError(f"the load ended with {self.process.returncode}: {self.process.communicate()[1][-2000:]}")

    def stop(self) -> None:
        """Ends the process once all that it has sent is acknowledged.

        Raises:
            PeerError: a message was not acknowledged.
        """
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=_STOP_S)
        if self.process.returncode:
            raise PeerError(f"the load ended with {self.process.returncode}: {errors[-2000:]}")

    def sent(self) -> list[Sent]:
        """What was acknowledged so far."""
        lines = self._ledger.read_text().splitlines() if self._ledger.exists() else []
        return [Sent(*map(int, line.split())) for line in lines]


async def send(namesrv: str, topic: str, rate: int, ledger: Path) -> None:
    """Sends until SIGTERM, then waits for the acknowledgements that are missing."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGINT, stopping.set)
    waiting: set[asyncio.Task[None]] = set()
    failures: list[BaseException] = []

    def done(task: asyncio.Task[None]) -> None:
        waiting.discard(task)
        if (error := task.exception()) is not None:
            failures.append(error)

    with ledger.open("w", buffering=1 << 16) as lines:
        async with Producer("paced", namesrv, _PATIENT) as producer:

            async def one(number: int) -> None:
                result = await producer.send(Message(topic, b"%-*d" % (BODY_BYTES, number)))
                if result.status is not SendStatus.SEND_OK:
                    raise PeerError(f"message {number}: {result.status}")
                lines.write(f"{number} {result.message_queue.queue_id} {result.queue_offset}\n")

            await one(0)  # the topic is created
            for numbers in _paced(loop, rate):
                for number in numbers:
                    task = asyncio.ensure_future(one(number))
                    waiting.add(task)
                    task.add_done_callback(done)
                if stopping.is_set() or failures:
                    break
                await asyncio.sleep(TICK_S)
            await asyncio.gather(*waiting, return_exceptions=True)
    if failures:
        raise failures[0]


def _paced(loop: asyncio.AbstractEventLoop, rate: int) -> Iterator[range]:
    """Yields, whenever it is asked, the numbers that are due."""
    begun, sent = loop.time(), 1
    while True:
        due = 1 + int((loop.time() - begun) * rate)
        yield range(sent, due)
        sent = due


def main(arguments: list[str]) -> None:
    """Sends until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.paced_load", description=__doc__)
    parser.add_argument("namesrv")
    parser.add_argument("topic")
    parser.add_argument("rate", type=int, help="messages a second")
    parser.add_argument("ledger", type=Path)
    options = parser.parse_args(arguments)
    asyncio.run(send(options.namesrv, options.topic, options.rate, options.ledger))


if __name__ == "__main__":
    main(sys.argv[1:])
