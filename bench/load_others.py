"""Load programs that use other Python clients. Arguments: ``cpp|grpc``, ``send|consume``, server address, topic, body
bytes, package folder.

``cpp`` is PyPI's ``rocketmq`` on top of the official C++ library, with one thread for each send in flight; ``grpc`` is
the official ``rocketmq-python-client``. Each line on standard input is one round and gets one JSON line. ``send``:
``IN_FLIGHT MESSAGES``. ``consume``: ``GROUP MESSAGES`` starts a push consumer in a new group with a listener that only
counts; the time runs from the first message to the last.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from bench.samples import body_of

CONSUME_S = 60.0


def cpp(address: str, topic: str, body: bytes) -> Callable[[int, int], int]:
    """Prepares blocking sends from many threads; returns a function that runs one round and counts failures."""
    from rocketmq.client import Message, Producer, SendStatus

    producer = Producer("send_others", timeout=10_000)
    producer.set_namesrv_addr(address)
    producer.start()

    def send() -> bool:
        message = Message(topic)
        message.set_body(body)
        message.set_tags("TagA")
        message.set_keys("key")
        return bool(producer.send_sync(message).status == SendStatus.OK)

    send()
    return lambda in_flight, messages: _threads(send, in_flight, messages)


def grpc(address: str, topic: str, body: bytes) -> Callable[[int, int], int]:
    """Prepares asynchronous sends; returns a function that runs one round and counts failures, as ``cpp`` does."""
    from rocketmq import ClientConfiguration, Credentials, Message, Producer

    producer = Producer(ClientConfiguration(address, Credentials(), request_timeout=10), (topic,))
    producer.startup()

    def message() -> Any:
        made = Message()
        made.topic, made.body, made.tag, made.keys = topic, body, "TagA", "key"
        return made

    producer.send(message())

    def sends(in_flight: int, messages: int) -> int:
        window, failed = threading.Semaphore(in_flight), []

        def answered(future: Any) -> None:
            if future.exception() is not None:
                failed.append(future)
            window.release()

        for _ in range(messages):
            window.acquire()
            producer.send_async(message()).add_done_callback(answered)
        for _ in range(in_flight):
            window.acquire()
        return len(failed)

    return sends


def _threads(send: Callable[[], bool], in_flight: int, messages: int) -> int:
    failed: list[int] = []

    def work() -> None:
        failed.append(sum(not send() for _ in range(messages // in_flight)))

    threads = [threading.Thread(target=work) for _ in range(in_flight)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(failed)


class Count:
    """Counts the messages that listeners receive, in any thread."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()
        self._all = threading.Event()
        self.seen, self.first, self.last = 0, 0.0, 0.0

    def one(self) -> None:
        """Counts one message."""
        with self._lock:
            if not self.seen:
                self.first = time.perf_counter()
            self.seen += 1
            if self.seen == self._wanted:
                self.last = time.perf_counter()
                self._all.set()

    def wait(self) -> dict[str, float]:
        """Waits for the last message; returns the figures for the output line of a round."""
        complete = self._all.wait(CONSUME_S)
        seconds = self.last - self.first if complete else CONSUME_S
        return {"messages": self.seen, "failed": max(0, self._wanted - self.seen), "seconds": seconds}


def consume_cpp(address: str, topic: str, group: str, messages: int) -> dict[str, float]:
    """Consumes one round with ``cpp``."""
    from rocketmq.client import PushConsumer

    count = Count(messages)
    consumer = PushConsumer(group)
    consumer.set_namesrv_addr(address)
    consumer.set_instance_name(group)
    consumer.subscribe(topic, lambda _message: count.one())
    consumer.start()
    result = count.wait()
    consumer.shutdown()
    return result


def consume_grpc(address: str, topic: str, group: str, messages: int) -> dict[str, float]:
    """Consumes one round with ``grpc``."""
    from rocketmq import (
        ClientConfiguration,
        ConsumeResult,
        Credentials,
        FilterExpression,
        MessageListener,
        PushConsumer,
    )

    count = Count(messages)

    class Listener(MessageListener):  # type: ignore[misc]
        def consume(self, _message: Any) -> Any:
            count.one()
            return ConsumeResult.SUCCESS

    configuration = ClientConfiguration(address, Credentials(), request_timeout=10)
    consumer = PushConsumer(configuration, group, Listener(), {topic: FilterExpression()})
    consumer.startup()
    result = count.wait()
    consumer.shutdown()
    return result


def _sends(kind: str, address: str, topic: str, body: bytes) -> Callable[[str], dict[str, float]]:
    sends = {"cpp": cpp, "grpc": grpc}[kind](address, topic, body)

    def round_of(line: str) -> dict[str, float]:
        in_flight, messages = map(int, line.split())
        messages -= messages % in_flight
        began = time.perf_counter()
        failed = sends(in_flight, messages)
        return {"messages": messages, "failed": failed, "seconds": time.perf_counter() - began}

    return round_of


def _consumes(kind: str, address: str, topic: str) -> Callable[[str], dict[str, float]]:
    consume = {"cpp": consume_cpp, "grpc": consume_grpc}[kind]

    def round_of(line: str) -> dict[str, float]:
        group, messages = line.split()
        return consume(address, topic, group, int(messages))

    return round_of


def main() -> None:
    """Runs rounds until standard input ends."""
    kind, what, address, topic, body_bytes, packages = sys.argv[1:]
    sys.path.insert(0, packages)
    round_of = (
        _sends(kind, address, topic, body_of(int(body_bytes))) if what == "send" else _consumes(kind, address, topic)
    )
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(round_of(line)), flush=True)


if __name__ == "__main__":
    main()
