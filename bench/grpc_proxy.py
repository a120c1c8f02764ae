"""The gRPC port beside the official proxy with its broker, in one process and in two: the official Java client of
RocketMQ 5 sends, receives and acknowledges.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from tools.peers.packages import ROOT, java_program, need
from tools.peers.servers import ProxiedServers, RucolaServers
from tools.peers.wire import call

from bench.context import Context
from bench.figure import Budget, Figure, at_least, cost, rate, share
from bench.grpc_floor import CLIENT_VERSION
from bench.program import HEAP, Program, Round, alternate, java_load, median, others_stopped, python_load

NAMES = ("rucola", "proxy, one process", "proxy, two processes")
TOPIC, GROUP = "bench_grpc", "bench_grpc_group"
BODY_BYTES = 1024
THREADS = (64, 1)
RECEIVERS = 16
PILOT = 4_000
RECEIVED = 12_000
WARM_ROUNDS = 3
"""Rounds in which client and server get warm."""
PYTHON_THREADS = 16
PYTHON_PILOT = 500
PACED_PER_S = 500
BESIDE_PER_S = 1000
_SENDS, _RECEIVES = "gRPC sends, official Java client, 1 KiB", "gRPC receives with acknowledgements, 32 messages a poll"
_UPDATE_TOPIC = 17
_BUDGETS = {64: (at_least(6), at_least(2)), 1: (at_least(3), None)}
"""Budgets of CPU and rate by threads."""

Peer = RucolaServers | ProxiedServers


def measure(context: Context) -> Iterator[Figure]:
    """Measures sends, in flight and paced."""
    with ExitStack() as stack:
        peers = _peers()
        for name, peer in zip(NAMES, peers, strict=True):
            context.show(f"grpc: starting {name}")
            stack.enter_context(peer)
            _make_topic(peer)
        yield from _sends(context, peers)


def measure_receives(context: Context) -> Iterator[Figure]:
    """Measures receives with acknowledgements, of one peer after another: an official proxy that was stopped in between
    takes its own receipt handles for invalid.
    """
    rounds: list[list[Round]] = []
    for name, peer in zip(NAMES, _peers(), strict=True):
        with peer:
            _make_topic(peer)
            context.show(f"grpc: storing messages in {name}")
            with _load("GrpcSendLoad", peer, TOPIC, str(BODY_BYTES)) as load:
                load.round(f"64 {RECEIVED * (context.rounds + WARM_ROUNDS + 1)}")
            context.show(f"grpc: receiving from {name}")
            with _load("GrpcReceiveLoad", peer, TOPIC, GROUP) as load:
                count = context.rounds + WARM_ROUNDS
                rounds.append([load.round(f"{RECEIVERS} {RECEIVED}") for _ in range(count)][WARM_ROUNDS:])
    for name, theirs in zip(NAMES[1:], rounds[1:], strict=True):
        yield _cost(_RECEIVES, f"{RECEIVERS} polls: CPU per message", rounds[0], theirs, name, at_least(4))
        yield _rate(_RECEIVES, f"{RECEIVERS} polls", rounds[0], theirs, name, at_least(2))


def measure_beside(context: Context) -> Iterator[Figure]:
    """Measures remoting sends at a fixed rate, in turn with and without sends over gRPC to the same broker."""
    line = f"8 {int(PACED_PER_S * context.seconds)} {PACED_PER_S}"
    beside = f"8 {int(BESIDE_PER_S * context.seconds)} {BESIDE_PER_S}"
    with RucolaServers(grpc=True) as peer:
        _make_topic(peer)
        with (
            java_load("SendLoad", peer.namesrv, TOPIC, str(BODY_BYTES), servers=peer) as remoting,
            _load("GrpcSendLoad", peer, TOPIC, str(BODY_BYTES)) as grpc,
            ThreadPoolExecutor(1) as pool,
        ):
            with_grpc, alone = list[float](), list[float]()
            for number in range(context.rounds + 1):
                context.show(f"grpc: remoting sends beside others, round {number}")
                others = pool.submit(grpc.round, beside)
                with_grpc.append(remoting.round(line).extra["p99_us"] / 1000)
                others.result()
                alone.append(remoting.round(line).extra["p99_us"] / 1000)
        what = f"{PACED_PER_S}/s, p99 beside {BESIDE_PER_S} gRPC sends a second"
        ours, without = statistics.median(with_grpc[1:]), statistics.median(alone[1:])
        yield share("send over TCP, official Java client 5.3.3, blocking", what, ours, without, "without these")


def measure_python(context: Context) -> Iterator[Figure]:
    """Measures sends of the official Python client, which itself limits the rate."""
    peers = _peers()[:2]
    with ExitStack() as stack:
        for peer in peers:
            stack.enter_context(peer)
            _make_topic(peer)
        loads = [
            stack.enter_context(python_load("load_grpc_python", peer.proxy, TOPIC, str(BODY_BYTES), servers=peer))
            for peer in peers
        ]
        context.show("grpc: sends, official Python client")
        line = f"{PYTHON_THREADS} {{}}".format
        ours, theirs = alternate(loads, line, context.seconds, context.rounds, PYTHON_PILOT)
    group, what = "gRPC sends, official Python client, 1 KiB", f"{PYTHON_THREADS} threads"
    yield _cost(group, f"{what}: CPU per message", ours, theirs, NAMES[1], None)
    yield _rate(group, what, ours, theirs, NAMES[1], None)


def _peers() -> list[Peer]:
    return [RucolaServers(grpc=True), ProxiedServers(local=True), ProxiedServers()]


def _sends(context: Context, peers: Sequence[Peer]) -> Iterator[Figure]:
    with ExitStack() as stack:
        loads = [stack.enter_context(_load("GrpcSendLoad", peer, TOPIC, str(BODY_BYTES))) for peer in peers]
        for threads in THREADS:
            context.show(f"grpc: sends, {threads} in flight")
            rounds = alternate(loads, f"{threads} {{}}".format, context.seconds, context.rounds, PILOT)
            cpu_budget, rate_budget = _BUDGETS[threads]
            what = f"{threads} in flight"
            for name, theirs in zip(NAMES[1:], rounds[1:], strict=True):
                yield _cost(_SENDS, f"{what}: CPU per message", rounds[0], theirs, name, cpu_budget)
                yield _rate(_SENDS, what, rounds[0], theirs, name, rate_budget)
        context.show(f"grpc: {PACED_PER_S} sends a second")
        p99 = []
        for load in loads:
            with others_stopped(loads, load):
                count = int(PACED_PER_S * context.seconds * context.rounds)
                p99.append(load.round(f"8 {count} {PACED_PER_S}").extra["p99_ms"])
        for name, theirs_ms in zip(NAMES[1:], p99[1:], strict=True):
            yield cost(_SENDS, f"{PACED_PER_S}/s: p99", p99[0], theirs_ms, name, at_least(2), unit="ms")


def _cost(group: str, what: str, mine: list[Round], theirs: list[Round], peer: str, budget: Budget | None) -> Figure:
    ours_us, theirs_us = (median(rounds, lambda one: one.server_us) for rounds in (mine, theirs))
    return cost(group, what, ours_us, theirs_us, peer, *([budget] if budget else []))


def _rate(group: str, what: str, mine: list[Round], theirs: list[Round], peer: str, budget: Budget | None) -> Figure:
    ours, others = (median(rounds, lambda one: one.rate) for rounds in (mine, theirs))
    return rate(group, what, ours, others, peer, *([budget] if budget else []))


def _make_topic(peer: Peer) -> None:
    fields: dict[str, object] = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        "attributes": "+message.type=NORMAL",
    }
    call(peer.broker, _UPDATE_TOPIC, fields)


def _load(main: str, peer: Peer, *arguments: str) -> Program:
    classpath = java_program(ROOT / "bench" / "java-grpc", CLIENT_VERSION)
    java = need("java", "install Java 17 to run the official client")
    return Program([java, *HEAP, "-cp", classpath, f"load.{main}", peer.proxy, *arguments], peer)
