"""Start-up of empty servers: the time until the first send is acknowledged, and their memory at that moment."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tools.peers.servers import Servers, servers
from tools.peers.wire import make_topic

from bench.context import Context
from bench.figure import Budget, Figure, share

GROUP = "start of an empty broker and name server"


def measure(context: Context) -> Iterator[Figure]:
    """Measures our servers and the official ones, both started on an empty directory."""
    context.show("start: ours and Java")
    ours = min((_start("rucola") for _ in range(context.rounds)), key=lambda facts: facts[0])
    java = _start("java")
    yield share(
        GROUP, "until the first acknowledged send", ours[0], java[0], "Java", Budget("ours", "max", 0.3), unit="s"
    )
    yield share(GROUP, "resident memory", ours[1], java[1], "Java", Budget("ours", "max", 60), unit="MB")


def _start(name: str) -> tuple[float, float]:
    """Starts the servers; returns the seconds until the first acknowledged send, and the megabytes of memory."""
    pair: Servers = servers(name)
    begin = time.perf_counter()
    with pair:
        make_topic(pair.namesrv, pair.broker, "bench_start")
        return time.perf_counter() - begin, pair.resident_bytes() / 1e6
