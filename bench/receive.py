"""Consuming over TCP from our and the official broker in alternating rounds: our pull client, both push consumers."""

from __future__ import annotations

from collections.abc import Iterator

from tools.peers.servers import Servers

from bench.context import Context
from bench.figure import Budget, Figure, at_least, cost, rate
from bench.program import Program, Round, alternate, java_load, median, others_stopped, python_load

CLIENT_GROUP = "pull over TCP, our client, 1 KiB, 32 messages a pull"
JAVA_GROUP = "consume over TCP, official Java push consumer 5.3.3, 1 KiB"
PUSH_GROUP = "consume over TCP, our push consumer, 1 KiB"
PUSH_RATE = 100_000
TOPIC = "bench_receive"
STORED = 400_000
"""Number of stored messages. Consuming all takes about two seconds, so the start-up hardly affects the result."""
PILOT = 20_000


def measure(context: Context) -> Iterator[Figure]:
    """Measures one pull at a time and eight concurrent pulls, then the official consumer over all messages."""
    ours, java = context.both()
    for servers in (ours, java):
        context.show(f"pull: {STORED:,} messages into {servers.name}")
        fill(servers, STORED // 4 if context.quick else STORED)
    with (
        python_load("load_client", "pull", ours.namesrv, TOPIC, servers=ours) as on_ours,
        python_load("load_client", "pull", java.namesrv, TOPIC, servers=java) as on_java,
    ):
        for pulls in (1, 8):
            what = f"{pulls} pull{'s' if pulls > 1 else ''} in flight"
            context.show(f"pull, our client: {what}")
            line = f"{{}} {pulls}".format
            mine, theirs = alternate((on_ours, on_java), line, context.seconds, context.rounds, PILOT)
            rates = median(mine, lambda one: one.rate), median(theirs, lambda one: one.rate)
            cpus = median(mine, lambda one: one.server_us), median(theirs, lambda one: one.server_us)
            yield rate(CLIENT_GROUP, what, *rates, "Java broker")
            yield cost(CLIENT_GROUP, f"{what}: broker CPU per message", *cpus, "Java broker")
    yield from _consume(context, ours, java)


def _consume(context: Context, ours: Servers, java: Servers) -> Iterator[Figure]:
    context.show("consume, Java client")
    with (
        java_load("ConsumeLoad", ours.namesrv, TOPIC, servers=ours) as on_ours,
        java_load("ConsumeLoad", java.namesrv, TOPIC, servers=java) as on_java,
    ):
        mine, theirs = _groups(context, "java", on_ours, on_java)
    rates = median(mine, lambda one: one.rate), median(theirs, lambda one: one.rate)
    cpus = median(mine, lambda one: one.server_us), median(theirs, lambda one: one.server_us)
    yield rate(JAVA_GROUP, "rate", *rates, "Java broker", at_least(1.5))
    yield cost(JAVA_GROUP, "broker CPU per message", *cpus, "Java broker", at_least(3))


def measure_push(context: Context) -> Iterator[Figure]:
    """Measures our push consumer with an empty listener, then the latency until the listener is called, at a fixed
    rate.
    """
    ours, java = context.both()
    for servers in (ours, java):
        context.show(f"push: {STORED:,} messages into {servers.name}")
        fill(servers, STORED // 4 if context.quick else STORED)
    context.show("consume, our push consumer")
    with (
        python_load("load_push", "consume", ours.namesrv, TOPIC, servers=ours) as on_ours,
        python_load("load_push", "consume", java.namesrv, TOPIC, servers=java) as on_java,
    ):
        mine, theirs = _groups(context, "push", on_ours, on_java)
    rates = median(mine, lambda one: one.rate), median(theirs, lambda one: one.rate)
    yield rate(PUSH_GROUP, "rate", *rates, "Java broker", Budget("ours", "min", PUSH_RATE))
    cpus = median(mine, lambda one: one.server_us), median(theirs, lambda one: one.server_us)
    yield cost(PUSH_GROUP, "broker CPU per message", *cpus, "Java broker")
    cpus = median(mine, lambda one: one.load_us), median(theirs, lambda one: one.load_us)
    yield cost(PUSH_GROUP, "client CPU per message", *cpus, "Java broker")


def _groups(context: Context, name: str, on_ours: Program, on_java: Program) -> tuple[list[Round], list[Round]]:
    """Runs rounds of a consumer that starts in a new group each time; the first two warm it up and do not count."""
    stored = STORED // 4 if context.quick else STORED
    mine: list[Round] = []
    theirs: list[Round] = []
    for number in range(context.rounds + 2):
        for program, rounds in ((on_ours, mine), (on_java, theirs)):
            with others_stopped((on_ours, on_java), program):
                rounds.append(program.round(f"bench_{name}_{number} {stored}"))
    return mine[2:], theirs[2:]


def fill(servers: Servers, messages: int) -> None:
    """Sends messages to the topic."""
    with python_load("load_client", "send", servers.namesrv, TOPIC, "1024") as program:
        program.round(f"64 {messages}")
