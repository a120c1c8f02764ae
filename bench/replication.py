"""Two copies of a log: what a slave costs its master, and how fast senders are that wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tools.peers.servers import RucolaServers

from bench.context import Context
from bench.figure import Figure, at_least, at_most, rate, share
from bench.pairs import JavaPair, RucolaPair
from bench.program import Program, Round, alternate, java_load, median

COST_GROUP = "master with one slave beside a broker without, official Java client 5.3.3, 64 threads, async flush"
WAIT_GROUP = "SYNC_MASTER, one slave, inSyncReplicas=2, official Java client 5.3.3, 64 threads, 1 KiB"
PAIR = "Java pair"
LINE = "64 {} 0"
PILOT = 5_000


def measure_cost(context: Context) -> Iterator[Figure]:
    """Measures our master's CPU per message with one slave, and without."""
    context.show("master: with and without a slave")
    with RucolaServers() as alone, RucolaPair("async", "ASYNC_MASTER") as pair:
        topic = "bench_slave", "1024"
        with (
            java_load("SendLoad", alone.namesrv, *topic, servers=alone) as without,
            java_load("SendLoad", pair.namesrv, *topic, servers=pair) as with_one,
        ):
            _warm_up(context, without, with_one)
            before = pair.slave_cpu_seconds()
            mine, plain = _turns(context, with_one, without)
            slave_s = pair.slave_cpu_seconds() - before
    what = "1 KiB: CPU of the master per message"
    yield share(COST_GROUP, what, *_of_both(mine, plain, _cpu_us), "without a slave", at_most(1.15), unit="µs")
    what = "1 KiB: messages, client, master and slave on the same cores"
    yield rate(COST_GROUP, what, *_of_both(mine, plain, _rate), "without a slave")
    sent = sum(one.messages for one in mine) + 2 * PILOT
    yield Figure(COST_GROUP, "1 KiB: CPU of the slave per message", "µs", slave_s / sent * 1e6)


def measure_waiting(context: Context) -> Iterator[Figure]:
    """Measures sends that wait for a slave, with both kinds of flush."""
    for flush in ("async", "sync"):
        yield from _waiting(context, flush)


def _waiting(context: Context, flush: str) -> Iterator[Figure]:
    """Measures sends that wait for a slave: our master and replica beside the official pair."""
    context.show(f"SYNC_MASTER, {flush} flush: starting both pairs")
    with RucolaPair(flush, "SYNC_MASTER") as ours, JavaPair(flush, "SYNC_MASTER") as java:
        topic = "bench_pair", "1024"
        with (
            java_load("SendLoad", ours.namesrv, *topic, servers=ours) as on_ours,
            java_load("SendLoad", java.namesrv, *topic, servers=java) as on_java,
        ):
            _warm_up(context, on_ours, on_java)
            context.show(f"SYNC_MASTER, {flush} flush")
            mine, theirs = _turns(context, on_ours, on_java)
    what = f"{flush} flush on all four"
    yield rate(WAIT_GROUP, what, *_of_both(mine, theirs, _rate), PAIR, at_least(1.5))
    yield share(WAIT_GROUP, f"{what}: p50", *_of_both(mine, theirs, lambda one: one.extra["p50_us"] / 1000), PAIR)
    p99 = _of_both(mine, theirs, lambda one: one.extra["p99_us"] / 1000)
    yield share(WAIT_GROUP, f"{what}: p99", *p99, PAIR, at_most(0.5))
    cpus = _of_both(mine, theirs, _cpu_us)
    yield share(WAIT_GROUP, f"{what}: CPU of the master per message", *cpus, PAIR, unit="µs")


def _of_both(one: list[Round], other: list[Round], value: Callable[[Round], float]) -> tuple[float, float]:
    return median(one, value), median(other, value)


def _rate(one: Round) -> float:
    return one.rate


def _cpu_us(one: Round) -> float:
    return one.server_us


def _warm_up(context: Context, *programs: Program) -> None:
    for program in programs:
        others = [other for other in programs if other is not program]
        with others[0].stopped():
            program.round(f"64 {context.warm_up} 0")


def _turns(context: Context, one: Program, other: Program) -> list[list[Round]]:
    return alternate((one, other), LINE.format, context.seconds, context.rounds, PILOT)
