"""The pytest fixture with a broker: how fast it advances time, and how fast an application's tests run when each test
has its own broker.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from tools.peers.packages import ROOT, PeerError

from bench.context import Context
from bench.figure import Budget, Figure
from rucola import Message, ProducerConfig
from rucola.sync import Producer
from rucola.testing.rocketmq import RocketMQ

GROUP = "the pytest fixture"
TOPIC = "later"
DELAYED = 10_000
TWO_HOURS_S = 7_200
LEVELS = 18
PATIENT = ProducerConfig(send_msg_timeout_ms=60_000)


def measure(context: Context) -> Iterator[Figure]:
    """Measures ``advance(hours=2)`` with messages delayed by duration and by level, then the tests of the sample
    application.
    """
    ways: dict[str, Callable[[int], Message]] = {
        "duration": lambda number: Message(
            TOPIC, b"later", delay=timedelta(seconds=1 + number * (TWO_HOURS_S - 1) / DELAYED)
        ),
        "level": lambda number: Message(TOPIC, b"later", delay_level=1 + number % LEVELS),
    }
    for way, message in ways.items():
        context.show(f"advance over {DELAYED:,} messages delayed by {way}")
        seconds = statistics.median(_advance(message) for _ in range(context.rounds))
        what = f"advance(hours=2), {DELAYED:,} messages delayed by {way}"
        yield Figure(GROUP, what, "s", seconds, budgets=(Budget("ours", "max", 1),))
    context.show("100 tests with a broker each")
    yield Figure(GROUP, "100 tests with a broker each", "s", _shop(), budgets=(Budget("ours", "max", 60),))


def _advance(message: Callable[[int], Message]) -> float:
    with RocketMQ() as rocketmq, Producer("bench", rocketmq.namesrv, PATIENT) as producer:
        rocketmq.create_topic(TOPIC)
        for sent in [producer.submit(message(number)) for number in range(DELAYED)]:
            sent.result()
        start = time.perf_counter()
        rocketmq.clock.advance(hours=2, seconds=1)
        seconds = time.perf_counter() - start
        if len(rocketmq.messages(TOPIC)) != DELAYED:
            raise PeerError(f"{len(rocketmq.messages(TOPIC))} of {DELAYED} delayed messages came")
        return seconds


def _shop() -> float:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    start = time.perf_counter()
    ended = subprocess.run(command, cwd=ROOT / "examples" / "shop", capture_output=True, text=True, check=False)
    if ended.returncode:
        raise PeerError(f"tests of examples/shop failed\n{ended.stdout[-2000:]}")
    return time.perf_counter() - start
