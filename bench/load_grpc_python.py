"""Blocking sends with the official Python client of RocketMQ 5, from many threads. Arguments: address, topic, body
bytes. Each line on standard input, "THREADS MESSAGES", is one round and gets one JSON line.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from rocketmq import ClientConfiguration, Credentials, Message, Producer


class Load:
    """A producer and the message that it sends."""

    def __init__(self, address: str, topic: str, body_bytes: int) -> None:
        self._producer = Producer(ClientConfiguration(address, Credentials()), (topic,))
        self._topic, self._body = topic, bytes(body_bytes)
        self._producer.startup()
        self._lock = threading.Lock()
        self._failed = 0

    def round(self, threads: int, messages: int) -> dict[str, float]:
        """Sends; returns what is printed."""
        self._failed = 0
        each = max(1, messages // threads)
        began = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            for sending in [pool.submit(self._send, each) for _ in range(threads)]:
                sending.result()
        seconds = time.perf_counter() - began
        return {"messages": each * threads, "failed": self._failed, "seconds": seconds}

    def _send(self, count: int) -> None:
        for _ in range(count):
            message = Message()
            message.topic, message.body = self._topic, self._body
            try:
                self._producer.send(message)
            except Exception as error:  # noqa: BLE001 - whatever the client raises is a failed send
                with self._lock:
                    self._failed += 1
                print(repr(error), file=sys.stderr)

    def close(self) -> None:
        """Ends the producer."""
        self._producer.shutdown()


def main(address: str, topic: str, body_bytes: str) -> None:
    """Runs the rounds."""
    load = Load(address, topic, int(body_bytes))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        threads, messages = map(int, line.split())
        print(json.dumps(load.round(threads, messages)), flush=True)
    load.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
