"""Load program that sends prepared requests in lock step (see ``bench.lockstep``).

Arguments: broker address, prefix of the topics. Each line on standard input is a JSON object with fields of ``Work``;
it starts one round, which prints one JSON line.
"""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import dataclass
from itertools import cycle, islice

from bench.load_client import quantiles, say
from bench.lockstep import BROKER_NAME, Lockstep
from bench.samples import STORE_TIMESTAMP_MS, body_of
from rucola.common.message_queue import MessageQueue
from rucola.protocol.codes import RequestCode
from rucola.protocol.send_request import encode_send_head, header_head, properties_json, properties_text

QUEUES_EACH = 1000
"""Number of queues of each topic."""
DELAYED = 4096
"""Number of different due times of delayed messages."""
DELAY_S = (3600, 86_400)
"""Shortest and longest delay in seconds: none of these messages is due while the program runs."""


@dataclass(frozen=True)
class Work:
    """What one round sends.

    Attributes:
        messages: how many messages.
        window: how many of them are written at once.
        queues: how many queues get messages in turn, ``QUEUES_EACH`` of each topic.
        body: bytes of a body.
        properties: number of properties that the application sets.
        delayed: whether the messages are delayed.
    """

    messages: int
    window: int = 16
    queues: int = 4
    body: int = 1024
    properties: int = 0
    delayed: bool = False


def topic_name(prefix: str, queue: int) -> str:
    """Returns the topic of one of ``Work.queues``."""
    return f"{prefix}{queue // QUEUES_EACH}"


def prepared(prefix: str, work: Work) -> list[tuple[bytes, int]]:
    """Returns the writes of a round, which are repeated: the frames, and their number."""
    body, rng = body_of(work.body), random.Random(1)
    given = {f"property{number:03}": f"value{number:07}" for number in range(work.properties)}
    frames = []
    for number in range(max(work.queues, work.window, DELAYED if work.delayed else 0)):
        queue = number % work.queues
        place = MessageQueue(topic_name(prefix, queue), BROKER_NAME, queue % QUEUES_EACH)
        head = header_head(RequestCode.SEND_MESSAGE_V2, "bench", place, "TBW102", 4)
        properties = {"KEYS": f"key{number}", "TAGS": "TagA", "UNIQ_KEY": f"7F000001000A{number:020X}", "WAIT": "true"}
        if work.delayed:
            properties["TIMER_DELAY_SEC"] = str(rng.randint(*DELAY_S))
        text = properties_json(properties_text(properties | given))
        frames.append(encode_send_head(head, 0, STORE_TIMESTAMP_MS, 0, text, 0, number + 1, len(body)) + body)
    groups = (frames[start : start + work.window] for start in range(0, len(frames), work.window))
    return [(b"".join(group), len(group)) for group in groups]


def main(broker: str, prefix: str) -> None:
    """Runs rounds until the input ends."""
    connection = Lockstep(broker)
    writes: dict[Work, list[tuple[bytes, int]]] = {}
    say({"ready": 1})
    for line in sys.stdin:
        work = Work(**json.loads(line))
        kind = Work(**json.loads(line) | {"messages": 0})
        if kind not in writes:
            writes = {kind: prepared(prefix, kind)}
        connection.begin()
        start, sent = time.perf_counter(), 0
        for frames, count in islice(cycle(writes[kind]), -(-work.messages // work.window)):
            connection.send(frames, count)
            sent += count
        seconds = time.perf_counter() - start
        say({"messages": sent, "failed": connection.failed, "seconds": seconds} | quantiles(connection.latencies_ns))


if __name__ == "__main__":
    main(*sys.argv[1:])
