"""Sends over TCP, against the official servers in turns: our client pipelined, the official Java client blocking."""

from __future__ import annotations

from collections.abc import Iterator

from bench.context import Context
from bench.figure import Budget, Figure, at_least, at_most, cost, rate, share
from bench.program import Program, Round, alternate, java_load, median, others_stopped, python_load

CLIENT_GROUP = "send over TCP, our client pipelined, async flush"
FRAMES_GROUP = "send over TCP, frames prepared before the round: the broker's own limit, async flush"
JAVA_GROUP = "send over TCP, official Java client 5.3.3, blocking, async flush"
SYNC_GROUP = "send over TCP, official Java client 5.3.3, blocking, sync flush"
CPU_US_MAX = 8.0
PILOT = 2_000
FIXED_RATE = 2_000


def measure_client(context: Context) -> Iterator[Figure]:
    """Our client at 1, 16 and 64 in flight with 1 KiB, at 64 with 128 B."""
    ours, java = context.both()
    cases = [(1024, 1), (1024, 16), (1024, 64), (128, 64)]
    for body_bytes in (1024, 128):
        arguments = (f"bench_client_{body_bytes}", str(body_bytes))
        with (
            python_load("load_client", "send", ours.namesrv, *arguments, servers=ours) as on_ours,
            python_load("load_client", "send", java.namesrv, *arguments, servers=java) as on_java,
        ):
            on_java.round(f"64 {context.warm_up}")
            for in_flight in (in_flight for size, in_flight in cases if size == body_bytes):
                what = f"{_size(body_bytes)}, {in_flight} in flight"
                context.show(f"send, our client: {what}")
                mine, theirs = _turns(context, on_ours, on_java, f"{in_flight} {{}}")
                pipelined = in_flight == 64
                yield rate(CLIENT_GROUP, what, *_rates(mine, theirs), "Java broker", *_budgets(pipelined, at_least(3)))
                bound = Budget("ours", "max", CPU_US_MAX)
                yield cost(
                    CLIENT_GROUP,
                    f"{what}: broker CPU per message",
                    *_cpus(mine, theirs),
                    "Java broker",
                    *_budgets(pipelined and body_bytes == 1024, bound),
                )


def measure_frames(context: Context) -> Iterator[Figure]:
    """Prepared frames, 64 in flight with 1 KiB and 256 with 128 B: no client in the way."""
    ours, java = context.both()
    for body_bytes, in_flight in ((1024, 64), (128, 256)):
        arguments = (f"bench_frames_{body_bytes}", str(body_bytes))
        with (
            python_load("load_frames", ours.namesrv, ours.broker, *arguments, servers=ours) as on_ours,
            python_load("load_frames", java.namesrv, java.broker, *arguments, servers=java) as on_java,
        ):
            on_java.round(f"64 {context.warm_up}")
            what = f"{_size(body_bytes)}, {in_flight} in flight"
            context.show(f"send, prepared frames: {what}")
            mine, theirs = _turns(context, on_ours, on_java, f"{in_flight} {{}}")
        yield rate(FRAMES_GROUP, what, *_rates(mine, theirs), "Java broker")
        yield cost(FRAMES_GROUP, f"{what}: broker CPU per message", *_cpus(mine, theirs), "Java broker")


def measure_java(context: Context) -> Iterator[Figure]:
    """The official client at 64, 16 and 1 threads, and its latency at a fixed rate."""
    ours, java = context.both()
    budgets = {64: at_least(2.5), 1: at_least(1.5)}
    with (
        java_load("SendLoad", ours.namesrv, "bench_java", "1024", servers=ours) as on_ours,
        java_load("SendLoad", java.namesrv, "bench_java", "1024", servers=java) as on_java,
    ):
        context.show("send, Java client: warming up")
        for program in (on_ours, on_java):
            program.round(f"64 {context.warm_up} 0")
        for threads in (64, 16, 1):
            what = f"1 KiB, {threads} thread{'s' if threads > 1 else ''}"
            context.show(f"send, Java client: {what}")
            mine, theirs = _turns(context, on_ours, on_java, f"{threads} {{}} 0")
            budget = (budgets[threads],) if threads in budgets else ()
            yield rate(JAVA_GROUP, what, *_rates(mine, theirs), "Java broker", *budget)
            cpu_budget = _budgets(threads == 64, at_least(4))
            yield cost(JAVA_GROUP, f"{what}: broker CPU per message", *_cpus(mine, theirs), "Java broker", *cpu_budget)
            if threads == 64:
                loads = median(mine, lambda one: one.load_us), median(theirs, lambda one: one.load_us)
                yield cost(JAVA_GROUP, f"{what}: client CPU per message", *loads, "Java broker")
        yield from _latency(context, on_ours, on_java)


def measure_sync(context: Context) -> Iterator[Figure]:
    """The official client at 64 threads when each send waits for the disk."""
    ours, java = context.both("sync")
    with (
        java_load("SendLoad", ours.namesrv, "bench_sync", "1024", servers=ours) as on_ours,
        java_load("SendLoad", java.namesrv, "bench_sync", "1024", servers=java) as on_java,
    ):
        context.show("send, Java client, sync flush: warming up")
        for program in (on_ours, on_java):
            program.round(f"64 {context.warm_up} 0")
        context.show("send, Java client, sync flush: 1 KiB, 64 threads")
        mine, theirs = _turns(context, on_ours, on_java, "64 {} 0")
    yield rate(SYNC_GROUP, "1 KiB, 64 threads", *_rates(mine, theirs), "Java broker", at_least(1.5))
    yield cost(SYNC_GROUP, "1 KiB, 64 threads: broker CPU per message", *_cpus(mine, theirs), "Java broker")


def _latency(context: Context, on_ours: Program, on_java: Program) -> Iterator[Figure]:
    context.show(f"send, Java client: latency at {FIXED_RATE:,}/s")
    line = f"16 {int(FIXED_RATE * context.seconds)} {FIXED_RATE}"
    mine: list[Round] = []
    theirs: list[Round] = []
    for _ in range(context.rounds):
        for program, rounds in ((on_ours, mine), (on_java, theirs)):
            with others_stopped((on_ours, on_java), program):
                rounds.append(program.round(line))
    for name, budgets in (("p50", ()), ("p99", (at_most(0.5),))):
        ours_ms, java_ms = (median(side, lambda one: one.extra[f"{name}_us"] / 1000) for side in (mine, theirs))  # noqa: B023
        yield share(JAVA_GROUP, f"1 KiB at {FIXED_RATE:,}/s: {name}", ours_ms, java_ms, "Java broker", *budgets)


def _turns(context: Context, on_ours: Program, on_java: Program, line: str) -> list[list[Round]]:
    return alternate((on_ours, on_java), line.format, context.seconds, context.rounds, PILOT)


def _rates(mine: list[Round], theirs: list[Round]) -> tuple[float, float]:
    return median(mine, lambda one: one.rate), median(theirs, lambda one: one.rate)


def _cpus(mine: list[Round], theirs: list[Round]) -> tuple[float, float]:
    return median(mine, lambda one: one.server_us), median(theirs, lambda one: one.server_us)


def _budgets(applies: bool, budget: Budget) -> tuple[Budget, ...]:
    return (budget,) if applies else ()


def _size(body_bytes: int) -> str:
    return f"{body_bytes // 1024} KiB" if body_bytes >= 1024 else f"{body_bytes} B"
