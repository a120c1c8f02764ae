"""Our broker and the official one beside the smallest server that the same client accepts (``bench.floor_server``).

All sides run in turns under the same load. The smallest server shows what a message costs a Python process at least:
what is left is the cost of our own code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

from tools.peers.packages import ROOT
from tools.peers.servers import Servers, facts_of

from bench.context import Context
from bench.figure import Budget, Figure, at_least, at_most, cost, rate, share, within_floor
from bench.program import Program, Round, alternate, java_load, median, others_stopped, python_load, scratch_directory
from bench.receive import STORED, fill

GROUP = "broker beside the smallest server that the client accepts, 1 KiB, async flush"
SYNC_GROUP = "broker beside the smallest server that the client accepts, 1 KiB, sync flush"
TOPIC = "bench_floor"
PACE = 2_000
PILOT = 4_000
BATCH = 32
WRITES = {"async": "write", "sync": "sync"}
PEER = "Java broker"


class FloorServers(Servers):
    """The smallest server, as name server and broker in one process.

    Args:
        kind: what it answers: ``send``, ``relay`` or ``pull``.
        disk: ``none``, ``write`` or ``sync``.
        file_bytes: size of the file that is written, which begins again when it is full.
    """

    name = "floor"

    def __init__(self, kind: str, disk: str, file_bytes: int = 1 << 30) -> None:
        super().__init__()
        self._arguments = (kind, str(self.store), disk, str(file_bytes))

    def _start(self) -> None:
        self.store.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "bench.floor_server", *self._arguments]
        process = self._spawn(command, "floor.log", {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}, capture=True)
        facts = facts_of(process, self)
        self.namesrv, self.broker = facts["namesrv"], facts["brokers"][0]


Load = Callable[[Servers], Program]


class Sides:
    """One load on our broker, the official one, and the smallest server with and without its write."""

    def __init__(self, context: Context, stack: ExitStack, kind: str, load: Load, flush: str = "async") -> None:
        self._context = context
        ours, java = context.both(flush)
        floors = [stack.enter_context(FloorServers(kind, disk)) for disk in (WRITES[flush], "none")]
        self._programs = [stack.enter_context(load(servers)) for servers in (ours, java, *floors)]

    def warm_up(self, line: str) -> None:
        """Runs a round on each side that does not count."""
        for program in self._programs:
            with others_stopped(self._programs, program):
                program.round(line)

    def turns(self, line: str, pilot: int = PILOT) -> list[list[Round]]:
        """Runs rounds whose size suits the rate of each side; ``line`` has ``{}`` for the number of messages."""
        return alternate(self._programs, line.format, self._context.seconds, self._context.rounds, pilot)

    def same(self, lines: Sequence[str], settle: str = "") -> list[list[Round]]:
        """Runs a round of each line on each side, each time after the round ``settle``, which does not count: while a
        side was stopped, its requests have timed out.
        """
        results: list[list[Round]] = [[] for _ in self._programs]
        for line in lines:
            for program, rounds in zip(self._programs, results, strict=True):
                with others_stopped(self._programs, program):
                    if settle:
                        program.round(settle)
                    rounds.append(program.round(line))
        return results


def measure(context: Context) -> Iterator[Figure]:
    """Measures sends one by one, 64 at a time and in batches, and pulls."""
    yield from _sends(context)
    yield from _pulls(context)


def measure_paced(context: Context) -> Iterator[Figure]:
    """Measures 2,000 messages a second, sent, and from the producer to a waiting consumer."""

    def load(servers: Servers) -> Program:
        return java_load("EndToEndLoad", servers.namesrv, f"{TOPIC}_end", "1024", servers=servers)

    with ExitStack() as stack:
        sides = Sides(context, stack, "relay", load)
        context.show(f"floor: end to end at {PACE:,}/s")
        line = f"{int(PACE * context.seconds * 2)} {PACE}"
        sides.warm_up(line)
        what = f"from producer to waiting push consumer, official clients, {PACE:,}/s"
        results = sides.same([line] * context.rounds, f"{PACE} {PACE}")
        yield from _figures(GROUP, what, results, 1.5, paced=True)
        yield from _tail(what, results)
    with ExitStack() as stack:
        sides = Sides(context, stack, "send", _sender)
        sides.warm_up(f"64 {context.warm_up} 0")
        context.show(f"floor: sends at {PACE:,}/s")
        line = f"16 {int(PACE * context.seconds * 2)} {PACE}"
        results = sides.same([line] * context.rounds, f"16 {PACE} {PACE}")
        what = f"send, official client, {PACE:,}/s"
        yield from _figures(GROUP, what, results, 1.5, paced=True)
        yield from _tail(what, results)


def measure_sync(context: Context) -> Iterator[Figure]:
    """Measures sends that wait for the disk."""
    with ExitStack() as stack:
        sides = Sides(context, stack, "send", _sender, "sync")
        sides.warm_up(f"64 {context.warm_up} 0")
        for threads, limit in ((1, 1.5), (64, 1.6)):
            context.show(f"floor: sync flush, {threads} threads")
            what = f"send, official client, {_threads(threads)}"
            yield from _figures(SYNC_GROUP, what, sides.turns(f"{threads} {{}} 0", 200), limit)


def _sends(context: Context) -> Iterator[Figure]:
    with ExitStack() as stack:
        sides = Sides(context, stack, "send", _sender)
        sides.warm_up(f"64 {context.warm_up} 0")
        for threads, limit in ((1, 1.5), (64, 1.6)):
            context.show(f"floor: {threads} threads")
            what = f"send, official client, {_threads(threads)}"
            yield from _figures(GROUP, what, sides.turns(f"{threads} {{}} 0"), limit)
        store_us = _store_us(context)
        for threads in (1, 16):
            context.show(f"floor: batches of {BATCH}, {threads} threads")
            results = sides.turns(f"{threads} {{}} 0 {BATCH}", PILOT * 8)
            what = f"send, official client, batches of {BATCH}, {_threads(threads)}"
            yield from _batch_figures(what, results, store_us)


def _sender(servers: Servers) -> Program:
    return java_load("SendLoad", servers.namesrv, TOPIC, "1024", servers=servers)


def _store_us(context: Context) -> float:
    """CPU time per message of our store alone: append, queues and index."""
    context.show("floor: our store alone")
    with scratch_directory() as directory, python_load("load_store", directory, "1024", "async", "index") as store:
        (rounds,) = alternate([store], "put 1 {}".format, context.seconds, context.rounds, 20_000)
    return median(rounds, lambda one: one.load_us)


def _batch_figures(what: str, results: list[list[Round]], store_us: float) -> Iterator[Figure]:
    """A batch costs our broker what the smallest server costs that stores nothing, and what our store costs alone."""
    ours, java, _, bare = results
    budget = at_least(1.5)
    yield rate(GROUP, f"{what}: rate", median(ours, _rate), median(java, _rate), PEER, budget)
    socket_us = median(bare, _us)
    parts = f"{what}: CPU; floor: {socket_us:.2f} µs of the smallest server, {store_us:.2f} µs of our store alone"
    figure = cost(GROUP, parts, median(ours, _us), median(java, _us), PEER, within_floor(1.3))
    yield replace(figure, floor=socket_us + store_us)


def _pulls(context: Context) -> Iterator[Figure]:
    for servers in context.both():
        fill(servers, STORED // 4 if context.quick else STORED)

    def pulls(servers: Servers) -> Program:
        return python_load("load_client", "pull", servers.namesrv, "bench_receive", servers=servers)

    def consumes(servers: Servers) -> Program:
        return java_load("ConsumeLoad", servers.namesrv, "bench_receive", servers=servers)

    with ExitStack() as stack:
        sides = Sides(context, stack, "pull", pulls)
        for count in (1, 8):
            context.show(f"floor: {count} pulls")
            what = f"pull of 32, our client, {count} in flight"
            yield from _figures(GROUP, what, sides.turns(f"{{}} {count}", 20_000), 1.5, Budget("ratio", "min", 1.5))
    with ExitStack() as stack:
        sides = Sides(context, stack, "pull", consumes)
        context.show("floor: official push consumer")
        lines = [f"bench_floor_{number} {STORED // 4}" for number in range(context.rounds + 2)]
        results = [rounds[2:] for rounds in sides.same(lines)]
        yield from _figures(GROUP, "consume, official push consumer", results, 1.5)


def _figures(
    group: str, what: str, results: list[list[Round]], limit: float, *budgets: Budget, paced: bool = False
) -> Iterator[Figure]:
    ours, java, floor, bare = results
    if not paced:
        figure = rate(group, f"{what}: rate", median(ours, _rate), median(java, _rate), PEER, *budgets)
        yield replace(figure, floor=median(floor, _rate))
    parts = f"{what}: CPU; floor without its write: {median(bare, _us):.3g} µs"
    figure = cost(group, parts, median(ours, _us), median(java, _us), PEER, within_floor(limit))
    yield replace(figure, floor=median(floor, _us))


def _tail(what: str, results: list[list[Round]]) -> Iterator[Figure]:
    """Latencies; the budgets are multiples of Java's."""
    for name, key, limit in (("p99", "p99_us", 0.5), ("p99.9", "p999_us", 1.0)):
        ours, java, floor, _ = (median(rounds, lambda one: one.extra[key] / 1000) for rounds in results)  # noqa: B023
        yield replace(share(GROUP, f"{what}: {name}", ours, java, PEER, at_most(limit)), floor=floor)


def _rate(one: Round) -> float:
    return one.rate


def _us(one: Round) -> float:
    return one.server_us


def _threads(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"
