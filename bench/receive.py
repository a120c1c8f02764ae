"""Reading messages over TCP, against the official servers in turns: our pull client, the official push consumer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from tools.peers.servers import Servers

from bench.context import Context
from bench.figure import Figure, at_least, cost, rate
from bench.program import Round, alternate, java_load, median, others_stopped, python_load

CLIENT_GROUP = "pull over TCP, our client, 1 KiB, 32 messages a pull"
JAVA_GROUP = "consume over TCP, official Java push consumer 5.3.3, 1 KiB"
TOPIC = "bench_receive"
STORED = 400_000
"""The consumer of a round takes about two seconds for them; its start, in a group of its own, counts little then."""
PILOT = 20_000


def measure(context: Context) -> Iterator[Figure]:
    """Pulls with one and with eight on their way, then the official consumer over all messages."""
    ours, java = context.both()
    for servers in (ours, java):
        context.show(f"pull: {STORED:,} messages into {servers.name}")
        _fill(servers, STORED // 4 if context.quick else STORED)
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
    stored = STORED // 4 if context.quick else STORED
    groups = count()
    with (
        java_load("ConsumeLoad", ours.namesrv, TOPIC, servers=ours) as on_ours,
        java_load("ConsumeLoad", java.namesrv, TOPIC, servers=java) as on_java,
    ):
        mine: list[Round] = []
        theirs: list[Round] = []
        for number in range(context.rounds + 2):
            for program, rounds in ((on_ours, mine), (on_java, theirs)):
                with others_stopped((on_ours, on_java), program):
                    done = program.round(f"bench_group_{next(groups)} {stored}")
                if number > 1:  # the first two warm the client up
                    rounds.append(done)
    rates = median(mine, lambda one: one.rate), median(theirs, lambda one: one.rate)
    cpus = median(mine, lambda one: one.server_us), median(theirs, lambda one: one.server_us)
    yield rate(JAVA_GROUP, "rate", *rates, "Java broker", at_least(1.5))
    yield cost(JAVA_GROUP, "broker CPU per message", *cpus, "Java broker", at_least(3))


def _fill(servers: Servers, messages: int) -> None:
    with python_load("load_client", "send", servers.namesrv, TOPIC, "1024") as program:
        program.round(f"64 {messages}")
