"""Many messages with the official Python client, and a server that is killed in the middle:
``python -m tests.conformance.grpc.many [--messages 100000] [--kills 3]``.

Every message whose send was confirmed must be received. It is told how many were received again, which may happen to
those that were on their way when the server was killed, and how long all of it took. Exit status: 0 if nothing is
missing, 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer
from tests.conformance.grpc.scenarios import Admin
from tools.peers.servers import RucolaServers

TOPIC, GROUP = "T_many", "G_many"
SENDERS, RECEIVERS = 16, 8
PATIENCE_S = 120.0
INVISIBLE_S = 30


class Many:
    """The messages, as both sides count them."""

    def __init__(self, endpoints: str, count: int) -> None:
        self._configuration = ClientConfiguration(endpoints, Credentials())
        self._left = iter(range(count))
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.count = count
        self.confirmed: set[str] = set()
        self.received: Counter[str] = Counter()
        self.acknowledged: set[str] = set()
        self.failures: Counter[str] = Counter()

    def run(self, servers: RucolaServers, kills: int) -> None:
        """Sends, receives, and kills the server at even distances."""
        producer = Producer(self._configuration, (TOPIC,))
        consumer = SimpleConsumer(self._configuration, GROUP, {TOPIC: FilterExpression()}, 5)
        producer.startup()
        consumer.startup()
        work = [threading.Thread(target=self._send, args=(producer,)) for _ in range(SENDERS)]
        work += [threading.Thread(target=self._receive, args=(consumer,)) for _ in range(RECEIVERS)]
        for thread in work:
            thread.start()
        for number in range(1, kills + 1):
            due = self.count * number // (kills + 1)
            self._wait(partial(self._has_confirmed, due))
            print(f"killed after {len(self.confirmed):,} sends and {len(self.received):,} receives", flush=True)
            servers.restart()
        self._wait(partial(self._has_confirmed, self.count))
        self._wait(lambda: self.confirmed <= self.received.keys())
        self._stopped.set()
        for thread in work:
            thread.join()
        consumer.shutdown()
        producer.shutdown()

    def _has_confirmed(self, count: int) -> bool:
        return len(self.confirmed) >= count

    def _wait(self, is_done: Callable[[], bool]) -> None:
        """Waits as long as something happens."""
        last, until_s = None, 0.0
        while not is_done():
            now = len(self.confirmed), len(self.received)
            if now != last:
                last, until_s = now, time.monotonic() + PATIENCE_S
            elif time.monotonic() > until_s:
                print(f"nothing has happened for {PATIENCE_S:.0f} s", file=sys.stderr)
                return
            time.sleep(0.05)

    def _send(self, producer: Producer) -> None:
        while (number := self._next()) is not None:
            message = Message()
            message.topic, message.body = TOPIC, f"{number}".encode() + b" " * 1000
            while not self._stopped.is_set():
                try:
                    producer.send(message)
                    break
                except Exception as error:  # noqa: BLE001 - the server may be down
                    self.failures[f"send: {type(error).__name__}"] += 1
                    time.sleep(0.1)
            with self._lock:
                self.confirmed.add(f"{number}")

    def _next(self) -> int | None:
        with self._lock:
            return next(self._left, None)

    def _receive(self, consumer: SimpleConsumer) -> None:
        while not self._stopped.is_set():
            try:
                found = consumer.receive(32, INVISIBLE_S)
            except Exception as error:  # noqa: BLE001 - the server may be down
                self.failures[f"receive: {type(error).__name__}"] += 1
                time.sleep(0.1)
                continue
            for message in found:
                body = message.body.decode().strip()
                with self._lock:
                    self.received[body] += 1
                try:
                    consumer.ack(message)
                except Exception as error:  # noqa: BLE001 - the server may be down
                    self.failures[f"ack: {type(error).__name__}"] += 1
                else:
                    with self._lock:
                        self.acknowledged.add(body)


def main(arguments: list[str]) -> int:
    """Runs it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=3)
    options = parser.parse_args(arguments)
    with RucolaServers(grpc=True) as servers:
        admin = Admin(servers.broker)
        admin.topic(TOPIC, "NORMAL", 8)
        many = Many(servers.proxy, options.messages)
        begun_s, cpu_s = time.monotonic(), servers.cpu_seconds()
        many.run(servers, options.kills)
        took_s, cpu_s = time.monotonic() - begun_s, servers.cpu_seconds() - cpu_s
    missing = many.confirmed - many.received.keys()
    again = sum(times - 1 for times in many.received.values())
    print(f"{len(many.confirmed):,} sends confirmed, {len(missing)} of them not received, {again:,} received again")
    print(f"{len(many.acknowledged):,} acknowledged; {took_s:.0f} s; failures: {dict(many.failures)}")
    return 1 if missing or len(many.confirmed) < options.messages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
