"""What servers do at night: CPU and wake-ups with nothing connected, and with consumers that wait in long polls."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tools.peers.servers import Servers, servers
from tools.peers.wire import make_topic

from bench.context import Context
from bench.figure import Budget, Figure, at_most, share
from bench.program import python_load

GROUP = "idle name server and broker"
TOPIC = "bench_idle"
CONSUMERS = (0, 100, 1000)
SETTLE_S = 5.0
"""Starting leaves work behind: imports, the first registration, memory that is given back."""
CPU_PER_MINUTE_S, WAKE_UPS_MAX = 0.06, 20.0
"""Budgets with nothing connected: a thousandth of a processor, and 20 wake-ups a second."""


def measure(context: Context) -> Iterator[Figure]:
    """Measures our servers, then the official ones, each for half a minute (5 s with ``--quick``)."""
    seconds = 5.0 if context.quick else 30.0
    ours = dict(_nights("rucola", seconds, context))
    java = dict(_nights("java", seconds, context))
    for count in CONSUMERS:
        alone = count == 0
        what = "nothing connected" if alone else f"{count:,} consumers wait in long polls"
        cpu = Budget("ours", "max", CPU_PER_MINUTE_S) if alone else at_most(0.1)
        yield share(GROUP, f"{what}: CPU a minute", ours[count][0], java[count][0], "Java", cpu, unit="s")
        wakes = (Budget("ours", "max", WAKE_UPS_MAX),) if alone else ()
        yield share(GROUP, f"{what}: wake-ups a second", ours[count][1], java[count][1], "Java", *wakes, unit="/s")


def _nights(name: str, seconds: float, context: Context) -> Iterator[tuple[int, tuple[float, float]]]:
    with servers(name) as pair:
        make_topic(pair.namesrv, pair.broker, TOPIC, 1)
        time.sleep(SETTLE_S)
        for count in CONSUMERS:
            context.show(f"idle: {name}, {count:,} consumers")
            with ExitStack() as stack:
                if count:
                    stack.enter_context(python_load("load_polls", pair.broker, TOPIC, str(count)))
                yield count, _watched(pair, seconds)


def _watched(pair: Servers, seconds: float) -> tuple[float, float]:
    """Returns the processor time in seconds per minute, and the number of wake-ups per second."""
    cpu_s, wakes = _cpu_s(pair), _wakes(pair)
    time.sleep(seconds)
    return (_cpu_s(pair) - cpu_s) / seconds * 60, (_wakes(pair) - wakes) / seconds


def _cpu_s(pair: Servers) -> float:
    """Processor time of all threads, exact to a nanosecond; the times of whole processes are exact to 10 ms."""
    texts = [path.read_text() for pid in pair.pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(text.split()[0]) for text in texts) / 1e9


def _wakes(pair: Servers) -> int:
    """Number of times that a thread has waited; each wait ends with a wake-up."""
    texts = [path.read_text() for pid in pair.pids for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in texts)
