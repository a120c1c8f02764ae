"""Load programs on other Python clients. Arguments: ``cpp|grpc``, server address, topic, body bytes, package folder.

``cpp`` is PyPI's ``rocketmq`` over the official C++ library, with a thread for each send under way; ``grpc`` is the
official ``rocketmq-python-client``. Each line on standard input, ``IN_FLIGHT MESSAGES``, is one round and gets one JSON
line.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from bench.samples import body_of


def cpp(address: str, topic: str, body: bytes) -> Callable[[int, int], int]:
    """Blocking sends of many threads; gives a function that makes a round and counts failures."""
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
    """Asynchronous sends, as many under way as asked for; as ``cpp``."""
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


def main() -> None:
    """Make rounds until standard input ends."""
    kind, address, topic, body_bytes, packages = sys.argv[1:]
    sys.path.insert(0, packages)
    body = body_of(int(body_bytes))
    sends = {"cpp": cpp, "grpc": grpc}[kind](address, topic, body)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        in_flight, messages = map(int, line.split())
        messages -= messages % in_flight
        began = time.perf_counter()
        failed = sends(in_flight, messages)
        seconds = time.perf_counter() - began
        print(json.dumps({"messages": messages, "failed": failed, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
