"""``python -m bench.console``: what the console costs, and how fast it answers, with a cluster of some size.

The tables of a store are written as a broker writes them. Then ``rucola up`` starts with them, clients connect and send
heartbeats, and a console shows the cluster to several visitors, who refresh the overview as its script does. Exit
status: 0 if all limits are kept, otherwise 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self
from urllib.request import urlopen

from tools.peers.servers import OURS, RucolaServers, cpu_seconds

from bench import steady
from bench.load_crowd import GROUPS_EACH
from bench.program import Program, own_bytes, python_load, scratch_directory
from bench.steady import Line

LISTS = ("topics", "topics?only=all&sort=-messages", "groups?sort=-lag", "clients?sort=address", "brokers")
REQUESTS = 20
WARM = 2
"""Requests of a list before those that count."""
REFRESH_S = 2.0
LIST_MS_MAX = 1_000.0
BROKER_SHARE_MAX = 0.02
CONSOLE_SHARE_MAX = 0.20
SEND_SHARE_MIN = 0.97
FIRST_PAGE_S_MAX = 2.0
CONSOLE_MB_MAX = 150.0
UP_S_MAX = 0.3
UP_MB_MAX = 60.0
_WAIT_S = 120.0


class Size(NamedTuple):
    """Numbers of topics (without retry topics), groups, connections and open pages."""

    topics: int = 1_000
    groups: int = 200
    connections: int = 10_000
    pages: int = 10


class ConsoleProcess:
    """A console in a process of its own, with a directory of its own.

    Attributes:
        address: where it serves, ``http://host:port``.
        first_page_s: seconds from its start to the last byte of the first page.
    """

    def __init__(self, namesrv: str, data: Path) -> None:
        command = [sys.executable, "-m", "rucola", "console", "-n", namesrv, "--port", "0", "--data", str(data)]
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            [*command, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **OURS},
        )
        assert self._process.stdout is not None
        self.address = f"http://{json.loads(self._process.stdout.readline())['console']}"
        read(f"{self.address}/cluster/")
        self.first_page_s = time.perf_counter() - begin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        self._process.communicate()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """In the block, it does nothing."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


def read(address: str) -> bytes:
    """The whole answer of an address."""
    with urlopen(address, timeout=_WAIT_S) as answer:
        found: bytes = answer.read()
        return found


@contextmanager
def open_pages(address: str, count: int) -> Iterator[None]:
    """In the block, ``count`` visitors have the overview open."""
    ending = threading.Event()

    def visit(first_s: float) -> None:
        pause_s = first_s  # they did not all come at the same moment
        while not ending.wait(pause_s):
            pause_s = REFRESH_S
            with suppress(OSError):  # the console is stopped while sends are measured without it
                read(f"{address}/cluster/")

    threads = [threading.Thread(target=visit, args=(REFRESH_S * at / count,)) for at in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ending.set()
        for thread in threads:
            thread.join()


def p95(values: Sequence[float]) -> float:
    """The value that 95 of 100 do not exceed."""
    ordered = sorted(values)
    return ordered[min(-(-len(ordered) * 95 // 100), len(ordered)) - 1]


def measure(size: Size, seconds: float, rounds: int) -> Iterator[Line]:
    """Yields the figures, one after another.

    Args:
        size: of the cluster.
        seconds: for which CPU times are measured.
        rounds: of sends with and without the console.
    """
    settings = {"connectionsMax": size.connections + 500, "mappedFileSizeCommitLog": 256 << 20}
    with scratch_directory() as directory:
        store = Path(directory) / "store"
        steady.write_tables(store, steady.Size(size.topics + size.groups, size.groups, size.connections))
        members = max(size.connections * GROUPS_EACH // size.groups, 1)
        with (
            RucolaServers(store=store, settings=settings) as servers,
            python_load("load_crowd", servers.broker, str(size.connections), "0", str(members), servers=servers),
            python_load(
                "load_frames", servers.namesrv, servers.broker, "orders", str(steady.BODY_BYTES), servers=servers
            ) as sends,
        ):
            idle = cpu_share(servers.pids, seconds)
            with ConsoleProcess(servers.namesrv, Path(directory) / "console") as console:
                yield Line("start of the console to its first page", console.first_page_s, "s", FIRST_PAGE_S_MAX)
                _wait_for_clients(console.address, size)
                with open_pages(console.address, size.pages):
                    yield from _lists(console.address)
                    yield from _costs(servers, console, idle, seconds)
                    yield from _sends(sends, console, rounds)
                yield Line("memory of the console", own_bytes([console.pid]) / 1e6, "MB", CONSOLE_MB_MAX)
        yield from _up(Path(directory))


def cpu_share(pids: Sequence[int], seconds: float) -> float:
    """How many cores processes use in the next seconds."""
    before, begin = sum(map(cpu_seconds, pids)), time.perf_counter()
    time.sleep(seconds)
    return (sum(map(cpu_seconds, pids)) - before) / (time.perf_counter() - begin)


def _wait_for_clients(address: str, size: Size) -> None:
    """Waits until the console has asked for the members of every group.

    Raises:
        TimeoutError: it does not see all of them.
    """
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end:
        found = json.loads(read(f"{address}/api/cluster/clients?size=1"))
        if found["total"] >= size.connections and found["unasked"] == 0:
            return
        time.sleep(0.5)
    raise TimeoutError(f"the console sees {found['total']} of {size.connections} clients")


def _lists(address: str) -> Iterator[Line]:
    for path in LISTS:
        times = []
        for _ in range(WARM + REQUESTS):
            begin = time.perf_counter()
            read(f"{address}/cluster/{path}")
            times.append(time.perf_counter() - begin)
        yield Line(f"{path}: last byte, p95 of {REQUESTS}", p95(times[WARM:]) * 1000, "ms", LIST_MS_MAX)


def _costs(servers: RucolaServers, console: ConsoleProcess, idle: float, seconds: float) -> Iterator[Line]:
    before, begin = cpu_seconds(console.pid), time.perf_counter()
    busy = cpu_share(servers.pids, seconds)
    used = (cpu_seconds(console.pid) - before) / (time.perf_counter() - begin)
    yield Line("cores that the pages cost the broker", max(busy - idle, 0.0), "", BROKER_SHARE_MAX)
    yield Line("cores of the console", used, "", CONSOLE_SHARE_MAX)


def _sends(sends: Program, console: ConsoleProcess, rounds: int) -> Iterator[Line]:
    """The rate of sends while the console looks, compared with rounds in which it is stopped, in turn."""
    order = f"{steady.IN_FLIGHT} {steady.PILOT}"
    sends.round(order)
    pairs = []
    for _ in range(rounds):
        with console.stopped():
            alone = sends.round(order).rate
        pairs.append(sends.round(order).rate / alone)
    yield Line("rate of sends, as a fraction of that without pages", statistics.median(pairs), "", SEND_SHARE_MIN, True)


def _up(directory: Path) -> Iterator[Line]:
    """``rucola up --console``: how soon it is ready, and its own memory, without that of its child."""
    command = [sys.executable, "-m", "rucola", "up", "--ephemeral", "--no-grpc", "--json", "--console"]
    for name in ("console", "namesrv", "broker", "http"):
        command += [f"--{name}-port", "0"]
    begin = time.perf_counter()
    environment = {**os.environ, **OURS, "XDG_STATE_HOME": str(directory)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environment
    ) as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        yield Line("rucola up --console: ready", time.perf_counter() - begin, "s", UP_S_MAX)
        _wait_for_page(f"http://{facts['console']}/cluster/")
        yield Line("rucola up --console: memory of its own", own_bytes([process.pid]) / 1e6, "MB", UP_MB_MAX)
        process.terminate()
        process.communicate()


def _wait_for_page(address: str) -> None:
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end:
        try:
            read(address)
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"{address} does not answer")


def main() -> int:
    """Prints each figure as soon as it is measured; returns the exit status."""
    usual = Size()
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    parser.add_argument("--topics", type=int, default=usual.topics)
    parser.add_argument("--groups", type=int, default=usual.groups)
    parser.add_argument("--connections", type=int, default=usual.connections)
    parser.add_argument("--pages", type=int, default=usual.pages, help="open pages")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which CPU times are measured")
    parser.add_argument("--rounds", type=int, default=9, help="pairs of rounds of sends")
    options = parser.parse_args()
    size = Size(options.topics, options.groups, options.connections, options.pages)
    missed = 0
    for line in measure(size, options.seconds, options.rounds):
        print(line, flush=True)
        missed += not line.holds
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
