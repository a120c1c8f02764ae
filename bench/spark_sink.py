"""Spark's sink with two concurrent tasks, compared with what users write without a sink: our client in
``foreachPartition``.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.context import Context
from bench.figure import Budget, Figure, cost, rate
from bench.program import Round, median, python_load

GROUP = "Spark writes rows of 1 KiB to a topic, local[2], broker on the same machine"
PEER = "foreachPartition"
ROWS, QUICK_ROWS = 400_000, 100_000
BODY_BYTES = 1024
SETTINGS = ("spark.driver.extraJavaOptions=-XX:+UseG1GC",)
"""Java's own defaults, as on a cluster."""
SIDES = ("sink", "position", "foreach")
RATE_MIN = 60_000


def measure(context: Context) -> Iterator[Figure]:
    """Measures rows per second, and CPU time per row excluding the broker's, for rows with and without a position."""
    servers = context.servers("rucola")
    count = QUICK_ROWS if context.quick else ROWS
    results: dict[str, list[Round]] = {side: [] for side in SIDES}
    with python_load(
        "load_spark_sink", servers.namesrv, str(count), str(BODY_BYTES), *SETTINGS, servers=servers
    ) as program:
        for number in range(1 + context.rounds):
            for side in SIDES:
                context.show(f"spark sink: {side}, round {number}")
                found = program.round(side)
                if number:
                    results[side].append(found)
    budget = Budget("ours", "min", RATE_MIN)
    peer = median(results["foreach"], lambda one: one.rate)
    peer_cpu = median(results["foreach"], _cpu_us)
    for side, what in (
        ("sink", "body alone"),
        ("position", "body and source position (queue and offset); ids are made from the position"),
    ):
        yield rate(GROUP, what, median(results[side], lambda one: one.rate), peer, PEER, budget, unit="rows/s")
        yield cost(GROUP, f"{what}: CPU per row", median(results[side], _cpu_us), peer_cpu, PEER)
    yield cost(
        GROUP,
        "CPU of the broker per row",
        median(results["sink"], lambda one: one.server_us),
        median(results["foreach"], lambda one: one.server_us),
        PEER,
    )


def _cpu_us(one: Round) -> float:
    return one.extra["cpu_seconds"] / one.messages * 1e6
