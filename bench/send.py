"""Sending over TCP, in alternating rounds to our and the official servers: our client pipelined, Java's blocking."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager

from bench.context import Context
from bench.cpu_limit import cpu_group
from bench.figure import Budget, Figure, at_least, at_most, cost, rate, share
from bench.program import Program, Round, alternate, java_load, median, others_stopped, own_bytes, python_load

CLIENT_GROUP = "send over TCP, our client pipelined, async flush"
FRAMES_GROUP = "send over TCP, frames encoded beforehand, so that only the broker limits the rate, async flush"
JAVA_GROUP = "send over TCP, official Java client 5.3.3, blocking, async flush"
SMALL_GROUP = "send over TCP, official Java client 5.3.3, blocking, 128 B, async flush"
LIMITED_GROUP = "send over TCP, each broker limited to half a core, async flush"
BATCH_GROUP = "send over TCP in batches of 32, async flush"
END_GROUP = "from the producer to a waiting consumer, async flush"
SYNC_GROUP = "send over TCP, official Java client 5.3.3, blocking, sync flush"
CPU_US_MAX = 8.0
PILOT = 2_000
FIXED_RATE = 2_000
WIDTHS = (1, 16, 64, 128)
JAVA_BUDGETS = {64: at_least(2.5), 1: at_least(1.5)}
LIMIT_CORES = 0.5
LIMITED_PILOT = 10_000
"""Number of messages in pilot rounds: a broker's rate has no meaning until it has used up the quota of a period."""
BATCH, BATCH_WIDTH = 32, 16


def measure_client(context: Context) -> Iterator[Figure]:
    """Measures our client with 1 to 128 messages in flight, with 1 KiB and 128 B."""
    ours, java = context.both()
    for body_bytes in (1024, 128):
        arguments = (f"bench_client_{body_bytes}", str(body_bytes))
        with (
            python_load("load_client", "send", ours.namesrv, *arguments, servers=ours) as on_ours,
            python_load("load_client", "send", java.namesrv, *arguments, servers=java) as on_java,
        ):
            on_java.round(f"64 {context.warm_up}")
            for in_flight in WIDTHS:
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
    """Measures prepared frames, without the cost of a client: 64 in flight with 1 KiB, and 256 with 128 B."""
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
    """Measures the official client with 1 to 128 threads and 1 KiB: rate, latency at a fixed rate, and the brokers'
    memory meanwhile.
    """
    ours, java = context.both()
    with _java_clients(context, "bench_java", 1024) as (on_ours, on_java):
        yield from _widths(context, on_ours, on_java, JAVA_GROUP, 1024)
        yield from _latency(context, on_ours, on_java)
    own = own_bytes(ours.pids) / 1e6, own_bytes(java.pids) / 1e6
    what = "memory of the servers after the measurement, without file-backed pages"
    yield share(JAVA_GROUP, what, *own, "Java broker", unit="MB")


def measure_java_small(context: Context) -> Iterator[Figure]:
    """Measures the official client with 1 to 128 threads and 128 B."""
    with _java_clients(context, "bench_java_small", 128) as (on_ours, on_java):
        yield from _widths(context, on_ours, on_java, SMALL_GROUP, 128)


def measure_limited(context: Context) -> Iterator[Figure]:
    """Measures each broker and its name server on half a core, once both are warm: first the official client, then
    ours.
    """
    with cpu_group("rucola", LIMIT_CORES) as our_limit, cpu_group("java", LIMIT_CORES) as java_limit:
        ours, java = context.both()
        with _java_clients(context, "bench_limited", 1024) as (on_ours, on_java):
            # A quota would also slow down Java's compiler, so the brokers are warmed up without one.
            _turns(context, on_ours, on_java, "64 {} 0")
            our_limit.take(ours.pids)
            java_limit.take(java.pids)
            for threads in (64, 16, 1):
                what = f"official client, 1 KiB, {_threads(threads)}"
                yield from _limited(context, what, on_ours, on_java, f"{threads} {{}} 0", JAVA_BUDGETS.get(threads))
        for body_bytes in (1024, 128):
            arguments = (f"bench_limited_{body_bytes}", str(body_bytes))
            with (
                python_load("load_client", "send", ours.namesrv, *arguments, servers=ours) as on_ours,
                python_load("load_client", "send", java.namesrv, *arguments, servers=java) as on_java,
            ):
                what = f"our client, {_size(body_bytes)}, 64 in flight"
                yield from _limited(context, what, on_ours, on_java, "64 {}", at_least(3))


def measure_batch(context: Context) -> Iterator[Figure]:
    """Measures batches of 32 messages: first the official client, then ours."""
    for body_bytes in (1024, 128):
        topic = f"bench_batch_{body_bytes}"
        what = f"{_size(body_bytes)}, {BATCH_WIDTH}"
        with _java_clients(context, topic, body_bytes) as (on_ours, on_java):
            context.show(f"batches, Java client: {what} threads")
            mine, theirs = _turns(context, on_ours, on_java, f"{BATCH_WIDTH} {{}} 0 {BATCH}")
        yield from _batch_figures(f"official client, {what} threads", mine, theirs)
        ours, java = context.both()
        with (
            python_load("load_client", "send", ours.namesrv, topic, str(body_bytes), servers=ours) as on_ours,
            python_load("load_client", "send", java.namesrv, topic, str(body_bytes), servers=java) as on_java,
        ):
            context.show(f"batches, our client: {what} in flight")
            mine, theirs = _turns(context, on_ours, on_java, f"{BATCH_WIDTH} {{}} {BATCH}")
        yield from _batch_figures(f"our client, {what} in flight", mine, theirs)


def measure_end_to_end(context: Context) -> Iterator[Figure]:
    """Measures the latency from producer to waiting consumer at a fixed rate: first the official clients, then ours."""
    ours, java = context.both()
    arguments = ("bench_end_to_end", "1024")
    with (
        java_load("EndToEndLoad", ours.namesrv, *arguments, servers=ours) as on_ours,
        java_load("EndToEndLoad", java.namesrv, *arguments, servers=java) as on_java,
    ):
        yield from _end_to_end(context, "official push consumer", on_ours, on_java)
    arguments = ("bench_end_to_end_ours", "1024")
    with (
        python_load("load_client", "echo", ours.namesrv, *arguments, servers=ours) as on_ours,
        python_load("load_client", "echo", java.namesrv, *arguments, servers=java) as on_java,
    ):
        yield from _end_to_end(context, "our pull consumer", on_ours, on_java)
    arguments = ("bench_end_to_end_push", "1024")
    with (
        python_load("load_push", "echo", ours.namesrv, *arguments, servers=ours) as on_ours,
        python_load("load_push", "echo", java.namesrv, *arguments, servers=java) as on_java,
    ):
        yield from _end_to_end(context, "our push consumer", on_ours, on_java, {"p99": Budget("ours", "max", 3)})


def measure_sync(context: Context) -> Iterator[Figure]:
    """Measures the official client with 64 threads when each send waits for the disk."""
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


@contextmanager
def _java_clients(context: Context, topic: str, body_bytes: int) -> Iterator[tuple[Program, Program]]:
    """Starts an official producer for each side and warms it up."""
    ours, java = context.both()
    with (
        java_load("SendLoad", ours.namesrv, topic, str(body_bytes), servers=ours) as on_ours,
        java_load("SendLoad", java.namesrv, topic, str(body_bytes), servers=java) as on_java,
    ):
        context.show(f"send, Java client, {_size(body_bytes)}: warming up")
        for program in (on_ours, on_java):
            with others_stopped((on_ours, on_java), program):
                program.round(f"64 {context.warm_up} 0")
        yield on_ours, on_java


def _widths(context: Context, on_ours: Program, on_java: Program, group: str, body_bytes: int) -> Iterator[Figure]:
    budgets = JAVA_BUDGETS if body_bytes == 1024 else {}
    for threads in (64, 128, 16, 1):
        what = f"{_size(body_bytes)}, {_threads(threads)}"
        context.show(f"send, Java client: {what}")
        mine, theirs = _turns(context, on_ours, on_java, f"{threads} {{}} 0")
        budget = (budgets[threads],) if threads in budgets else ()
        yield rate(group, what, *_rates(mine, theirs), "Java broker", *budget)
        cpu_budget = _budgets(threads == 64 and body_bytes == 1024, at_least(4))
        yield cost(group, f"{what}: broker CPU per message", *_cpus(mine, theirs), "Java broker", *cpu_budget)
        if threads == 64:
            loads = median(mine, lambda one: one.load_us), median(theirs, lambda one: one.load_us)
            yield cost(group, f"{what}: client CPU per message", *loads, "Java broker")


def _limited(
    context: Context, what: str, on_ours: Program, on_java: Program, line: str, budget: Budget | None
) -> Iterator[Figure]:
    context.show(f"send, brokers limited to {LIMIT_CORES:g} cores: {what}")
    mine, theirs = _turns(context, on_ours, on_java, line, LIMITED_PILOT)
    yield rate(LIMITED_GROUP, what, *_rates(mine, theirs), "Java broker", *((budget,) if budget else ()))
    yield cost(LIMITED_GROUP, f"{what}: broker CPU per message", *_cpus(mine, theirs), "Java broker")
    cores = median(mine, lambda one: one.server_cores), median(theirs, lambda one: one.server_cores)
    yield share(LIMITED_GROUP, f"{what}: cores the broker took", *cores, "Java broker", unit="cores")


def _batch_figures(what: str, mine: list[Round], theirs: list[Round]) -> Iterator[Figure]:
    yield rate(BATCH_GROUP, what, *_rates(mine, theirs), "Java broker")
    yield cost(BATCH_GROUP, f"{what}: broker CPU per message", *_cpus(mine, theirs), "Java broker")


def _latency(context: Context, on_ours: Program, on_java: Program) -> Iterator[Figure]:
    context.show(f"send, Java client: latency at {FIXED_RATE:,}/s")
    sides = _fixed_rate(context, on_ours, on_java, f"16 {int(FIXED_RATE * context.seconds)} {FIXED_RATE}")
    yield from _quantiles(JAVA_GROUP, f"1 KiB at {FIXED_RATE:,}/s", sides, {"p99": at_most(0.5)})


def _end_to_end(
    context: Context, clients: str, on_ours: Program, on_java: Program, budgets: dict[str, Budget] | None = None
) -> Iterator[Figure]:
    context.show(f"end to end, {clients} at {FIXED_RATE:,}/s")
    line = f"{int(FIXED_RATE * context.seconds * 2)} {FIXED_RATE}"
    for program in (on_ours, on_java):  # warms up the compilers of both sides
        with others_stopped((on_ours, on_java), program):
            program.round(line)
    sides = _fixed_rate(context, on_ours, on_java, line)
    yield from _quantiles(END_GROUP, f"{clients}, 1 KiB at {FIXED_RATE:,}/s", sides, budgets or {})
    what = f"{clients}: broker CPU per message"
    yield cost(END_GROUP, what, *_cpus(*sides), "Java broker")


def _fixed_rate(context: Context, on_ours: Program, on_java: Program, line: str) -> tuple[list[Round], list[Round]]:
    mine: list[Round] = []
    theirs: list[Round] = []
    for _ in range(context.rounds):
        for program, rounds in ((on_ours, mine), (on_java, theirs)):
            with others_stopped((on_ours, on_java), program):
                rounds.append(program.round(line))
    return mine, theirs


def _quantiles(
    group: str, what: str, sides: tuple[list[Round], list[Round]], budgets: dict[str, Budget]
) -> Iterator[Figure]:
    for name, key in (("p50", "p50_us"), ("p99", "p99_us"), ("p99.9", "p999_us")):
        ours_ms, java_ms = (statistics.median(one.extra[key] for one in side) / 1000 for side in sides)
        budget = (budgets[name],) if name in budgets else ()
        yield share(group, f"{what}: {name}", ours_ms, java_ms, "Java broker", *budget)


def _turns(context: Context, on_ours: Program, on_java: Program, line: str, pilot: int = PILOT) -> list[list[Round]]:
    return alternate((on_ours, on_java), line.format, context.seconds, context.rounds, pilot)


def _rates(mine: list[Round], theirs: list[Round]) -> tuple[float, float]:
    return median(mine, lambda one: one.rate), median(theirs, lambda one: one.rate)


def _cpus(mine: list[Round], theirs: list[Round]) -> tuple[float, float]:
    return median(mine, lambda one: one.server_us), median(theirs, lambda one: one.server_us)


def _budgets(applies: bool, budget: Budget) -> tuple[Budget, ...]:
    return (budget,) if applies else ()


def _threads(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def _size(body_bytes: int) -> str:
    return f"{body_bytes // 1024} KiB" if body_bytes >= 1024 else f"{body_bytes} B"
