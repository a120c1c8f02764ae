"""Spark over a directory of 20 GiB with 4,000 queues: cost of planning, size of a task, memory of a worker."""

from __future__ import annotations

from collections.abc import Iterator

from bench.context import Context
from bench.figure import Budget, Figure
from bench.memory import large_store
from bench.program import python_load

GROUP = "Spark over a large store directory, messages of 1 KiB, local[2]"
SETTINGS = ("spark.driver.memory=3g", "spark.driver.extraJavaOptions=-XX:+UseG1GC")
ALL_TOPICS, ONE_TOPIC = "bench_.*", "bench_0007"
PLAN_BUDGET_S, ONE_BUDGET_S = 5.0, 0.2
PICKLE_BUDGET_KIB = 64.0
WORKER_BUDGET_MB = 200.0


def measure(context: Context) -> Iterator[Figure]:
    """Measures planning of all topics and of one of them, then a scan of everything."""
    with large_store(context) as (directory, text):
        local = f"spark.local.dir={directory}/local"
        with python_load("load_spark_large", f"{directory}/store", ALL_TOPICS, local, *SETTINGS) as program:
            context.show("spark-large: planning")
            program.round(f"plan {ONE_TOPIC}")  # the first plan also imports modules
            one, every = program.round(f"plan {ONE_TOPIC}"), program.round(f"plan {ALL_TOPICS}")
            context.show(f"spark-large: scanning {text}")
            scan = program.round("scan *")
    yield _figure(f"{text}, planning one topic: CPU", "s", one.extra["cpu_seconds"], ONE_BUDGET_S)
    yield _figure(f"{text}, planning all: {every.messages:,} tasks", "s", every.seconds, PLAN_BUDGET_S)
    yield _figure("the largest task, pickled", "KiB", every.extra["pickle"] / 1024, PICKLE_BUDGET_KIB)
    yield _figure("scan of all columns: memory of a Python worker, most", "MB", scan.extra["memory"], WORKER_BUDGET_MB)
    yield _figure("scan of all columns: bytes of the log", "MB/s", scan.rate / 1e6)


def _figure(what: str, unit: str, ours: float, most: float | None = None) -> Figure:
    return Figure(GROUP, what, unit, ours, budgets=() if most is None else (Budget("ours", "max", most),))
