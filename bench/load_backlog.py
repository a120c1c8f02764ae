"""Load program that pulls old messages, one pull after another, as consumers of a topic do that fell behind.

Arguments: broker address, number of topics, queues of each, messages of each queue. The store is one of
``bench.memory``. Each line on standard input, ``MESSAGES SEED``, starts one round, which prints one JSON line. A round
goes to topics in random order, and to a random place in each. From there on, it pulls from all queues in turn. All
sizes of a store thus get the same load: the messages of a place are together in some parts of the log.
"""

from __future__ import annotations

import random
import sys
import time
from array import array
from itertools import cycle

from bench.load_client import PULL_MESSAGES, quantiles, say
from bench.lockstep import Lockstep
from bench.memory import topic_name
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader

PULLS = 6
"""Number of pulls from each queue of a topic."""
SUBSCRIPTION = 4


class Backlog:
    """The queues of a store."""

    def __init__(self, broker: str, topics: int, queues: int, length: int) -> None:
        self._connection = Lockstep(broker)
        self._topics, self._queues, self._length = topics, queues, length
        self._latencies_ns = array("q")

    def round(self, messages: int, seed: int) -> dict[str, float]:
        """Pulls at least this many messages; returns what the line of output says."""
        rng = random.Random(seed)
        self._latencies_ns = array("q")
        start, pulled = time.perf_counter(), 0
        for topic in cycle(rng.sample(range(self._topics), self._topics)):
            if pulled >= messages:
                break
            offsets = [rng.randrange(max(1, self._length - PULLS * PULL_MESSAGES))] * self._queues
            for queue in list(range(self._queues)) * PULLS:
                following = self._pull(topic_name(topic), queue, offsets[queue])
                pulled += following - offsets[queue]
                offsets[queue] = following
        facts = {"messages": pulled, "failed": 0, "seconds": time.perf_counter() - start}
        return facts | quantiles(self._latencies_ns)

    def _pull(self, topic: str, queue: int, queue_offset: int) -> int:
        """Pulls once; returns the queue offset after the messages.

        Raises:
            ConnectionError: the broker refused the pull.
        """
        header = PullMessageRequestHeader(
            "bench", topic, queue, queue_offset, PULL_MESSAGES, SUBSCRIPTION, 0, 0, 0, "*", "TAG"
        )
        start_ns = time.perf_counter_ns()
        answer = self._connection.ask(RemotingCommand(RequestCode.PULL_MESSAGE, 1, ext_fields=header.to_ext_fields()))
        self._latencies_ns.append(time.perf_counter_ns() - start_ns)
        if answer.code != ResponseCode.SUCCESS:
            raise ConnectionError(f"{topic}, queue {queue}, {queue_offset}: {answer.code} {answer.remark}")
        return PullMessageResponseHeader.from_ext_fields(answer.ext_fields).next_begin_offset


def main(broker: str, topics: str, queues: str, length: str) -> None:
    """Runs rounds until the input ends."""
    backlog = Backlog(broker, int(topics), int(queues), int(length))
    say({"ready": 1})
    for line in sys.stdin:
        messages, seed = map(int, line.split())
        say(backlog.round(messages, seed))


if __name__ == "__main__":
    main(*sys.argv[1:])
