"""``python -m bench.steady``: compares a broker that has very many topics, groups and connections with an empty one.

The tables of a store are written as a broker writes them. Then ``rucola up`` starts with them, clients connect and send
heartbeats, and the two brokers receive rounds of sends alternately. Exit status: 0 if all limits are kept, otherwise 1.
"""

from __future__ import annotations

import argparse
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tools.peers.servers import RucolaServers, cpu_seconds

from bench.load_crowd import GROUPS_EACH
from bench.program import alternate, median, own_bytes, python_load, scratch_directory
from rucola.common.data_version import DataVersion
from rucola.common.key_builder import retry_topic
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.formats.tables import consumer_offset_pieces, subscription_group_pieces, topic_pieces

QUEUES = 8
BODY_BYTES = 1024
IN_FLIGHT = 64
PILOT = 5_000
START_S_MAX = 3.0
MEMORY_MB_MAX = 500.0
TURN_MS_MAX = 50.0
SEND_SHARE_MIN = 0.9


class Size(NamedTuple):
    """Numbers of topics, groups and connections of a broker; the topics include the retry topic of each group."""

    topics: int = 100_000
    groups: int = 20_000
    connections: int = 10_000


class Line(NamedTuple):
    """A line of output: a figure and its limit."""

    what: str
    value: float
    unit: str
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the figure is within its limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        bound = "at least" if self.at_least else "at most"
        mark = "" if self.holds else "  MISSED"
        return f"{self.what:<44}{self.value:>10.2f} {self.unit:<3} {bound} {self.limit:g}{mark}"


def write_tables(store: Path, size: Size) -> None:
    """Writes topics, groups and consumer offsets into ``store``, as a broker with this many of them does."""
    groups = [f"group{number:05d}" for number in range(size.groups)]
    topics = [f"topic{number:06d}" for number in range(size.topics - size.groups)]
    version, config = DataVersion(0, 1, 1), store / "config"
    config.mkdir(parents=True)
    table = {name: TopicConfig(name, QUEUES, QUEUES) for name in topics}
    table |= {name: TopicConfig(name, 1, 1) for name in map(retry_topic, groups)}
    offsets = {
        f"{topics[number // GROUPS_EACH % len(topics)]}@{group}": dict.fromkeys(range(QUEUES), 0)
        for number, group in enumerate(groups)
    }
    for name, pieces in (
        ("topics.json", topic_pieces(version, table)),
        (
            "subscriptionGroup.json",
            subscription_group_pieces(version, {name: SubscriptionGroupConfig(name) for name in groups}, {}),
        ),
        ("consumerOffset.json", consumer_offset_pieces(version, offsets)),
    ):
        with (config / name).open("wb") as file:
            file.writelines(pieces)


def measure(size: Size, rounds: int, seconds: float) -> Iterator[Line]:
    """Yields the figures, one after another."""
    settings = {"connectionsMax": size.connections + 100, "mappedFileSizeCommitLog": 256 << 20}
    with scratch_directory() as directory:
        store = Path(directory) / "store"
        write_tables(store, size)
        begin = time.perf_counter()
        with RucolaServers(store=store, settings=settings) as full, ExitStack() as stack:
            yield Line("start until the broker is ready", full.ready_at - begin, "s", START_S_MAX)
            yield Line("CPU time of start-up", cpu_seconds(full.pids[0]), "s", START_S_MAX)
            empty = stack.enter_context(RucolaServers(settings=settings))
            with python_load("load_crowd", full.broker, str(size.connections), servers=full):
                yield from _while_connected(full, empty, rounds, seconds)


def _while_connected(full: RucolaServers, empty: RucolaServers, rounds: int, seconds: float) -> Iterator[Line]:
    """Yields the figures that are measured while the clients are connected."""
    arguments = ("steady", str(BODY_BYTES))
    with (
        python_load("load_frames", full.namesrv, full.broker, *arguments, servers=full) as on_full,
        python_load("load_frames", empty.namesrv, empty.broker, *arguments, servers=empty) as on_empty,
    ):
        on_full.round(f"{IN_FLIGHT} {PILOT}")
        # Iterations are measured before the rounds. In rounds, each broker is stopped while the other one is measured,
        # and it would count the pause as a long iteration of its loop.
        for what, name in (("longest iteration of the loop", "turn"), ("most CPU time of an iteration", "turn_cpu")):
            yield Line(what, longest_s(full.http, name) * 1000, "ms", TURN_MS_MAX)
        ours, theirs = alternate([on_full, on_empty], lambda count: f"{IN_FLIGHT} {count}", seconds, rounds, PILOT)
    share = median(ours, lambda each: each.rate) / median(theirs, lambda each: each.rate)
    cost = median(ours, lambda each: each.server_us) / median(theirs, lambda each: each.server_us)
    yield Line("rate of sends, as a fraction of the empty broker's", share, "", SEND_SHARE_MIN, at_least=True)
    yield Line("CPU of the broker per send, as a multiple of the empty broker's", cost, "", 1 / SEND_SHARE_MIN)
    yield Line("memory of broker and name server", own_bytes(full.pids) / 1e6, "MB", MEMORY_MB_MAX)


def longest_s(http: str, name: str) -> float:
    """Returns one of the broker's metrics in seconds: the longest iteration of its event loop in the last one to two
    minutes (``turn``), or the longest CPU time of an iteration (``turn_cpu``).
    """
    with urllib.request.urlopen(f"http://{http}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            figure, _, value = line.partition(" ")
            if figure == f"rucola_loop_longest_{name}_seconds":
                return float(value)
    raise LookupError("the metric of the longest iteration is missing")


def main() -> int:
    """Prints each figure as soon as it is measured; returns the exit status."""
    usual = Size()
    parser = argparse.ArgumentParser(prog="python -m bench.steady", description=__doc__)
    parser.add_argument("--topics", type=int, default=usual.topics)
    parser.add_argument("--groups", type=int, default=usual.groups)
    parser.add_argument("--connections", type=int, default=usual.connections)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of sends to each of the two brokers")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each round in seconds")
    options = parser.parse_args()
    missed = 0
    for line in measure(Size(options.topics, options.groups, options.connections), options.rounds, options.seconds):
        print(line, flush=True)
        missed += not line.holds
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
