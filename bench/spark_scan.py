"""Spark's scan of a store directory, compared with a source that repeats one batch, and with the same rows in
uncompressed Parquet; rounds alternate.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

from tools.peers.packages import ROOT

from bench.context import Context
from bench.figure import Budget, Figure, at_least, cost, rate
from bench.program import Program, Round, median, python_load, scratch_directory
from bench.scan import FEW

GROUP = "Spark scan of a store in place, local[2], into Spark's noop sink"
PREPARED = "one prepared batch"
"""Name of the peer that sends the same batch again and again: the rate at which Spark takes rows from Python."""
PARQUET = "Parquet"
ALL = "*"
STATISTICS = "tags,queueId,storeTimestamp"
"""The columns that are needed to count messages over time."""
MESSAGES = {1024: 1024 << 10, 100: 2048 << 10}
"""Number of messages for each body size: 1.3 GB of log with bodies of 1 KiB, 0.7 GB with 100 bytes."""
QUICK_PART = 4
SETTINGS = ("spark.driver.memory=3g", "spark.driver.extraJavaOptions=-XX:+UseG1GC")
"""Java's own defaults, as on a cluster: ``local_session`` is for short work and switches off Java's C2 compiler."""
SIDES = ("store", "parquet", "prepared")
SESSIONS = 3
"""Number of Spark sessions for each case. How well Java's C2 compiler succeeds with the same code differs by several
percent from session to session, and depends on what the session ran before.
"""
WARM_UP = 6
"""Number of warm-up rounds of each session, because the compiler still works during the first scans."""
ROUNDS = 5
"""Rounds of each side and session that count; a scan takes about a second and varies by a tenth."""
FILL_TIMEOUT_S = 300.0
CASES: tuple[tuple[int, str, str, tuple[Budget, ...]], ...] = (
    (1024, "all columns", ALL, (at_least(0.9),)),
    (1024, "6 columns", FEW, (at_least(0.9),)),
    (100, "all columns", ALL, (at_least(0.9),)),
    (100, "6 columns", FEW, (at_least(0.9),)),
    (100, "3 columns without the body", STATISTICS, ()),
)


def measure(context: Context) -> Iterator[Figure]:
    """Measures both body sizes, with all columns and with few; the rows of both sides are compared first."""
    for body_bytes, messages in MESSAGES.items():
        count = messages // QUICK_PART if context.quick else messages
        size = "1 KiB" if body_bytes == 1024 else f"{body_bytes} B"
        with scratch_directory() as directory:
            context.show(f"spark: writing {count:,} messages of {size}")
            fill(directory, count, body_bytes)
            with python_load("load_spark", directory, str(count), *SETTINGS) as program:
                context.show(f"spark: writing {count:,} messages of {size} to Parquet, comparing the rows")
                program.round("write")
                program.round("check")
                os.sync()
            for _, names, columns, budgets in (case for case in CASES if case[0] == body_bytes):
                what = f"{size} bodies, {names}"
                sessions = []
                for number in range(1 if context.quick else SESSIONS):
                    context.show(f"spark: {what}, session {number + 1}")
                    with python_load("load_spark", directory, str(count), *SETTINGS) as program:
                        sessions.append(_rounds(context, program, columns))
                yield from _figures(what, body_bytes, _middle(sessions), budgets)


def _middle(sessions: list[dict[str, list[Round]]]) -> dict[str, list[Round]]:
    """The session whose ratio of the rates of ``store`` and ``prepared`` is the median."""

    def ratio(session: dict[str, list[Round]]) -> float:
        store, prepared = (median(session[side], lambda one: one.rate) for side in ("store", "prepared"))
        return store / prepared

    return sorted(sessions, key=ratio)[len(sessions) // 2]


def _rounds(context: Context, program: Program, columns: str) -> dict[str, list[Round]]:
    """Runs the rounds of all sides alternately; returns the rounds after the warm-up."""
    results: dict[str, list[Round]] = {side: [] for side in SIDES}
    wanted = context.rounds if context.quick or context.rounds_wanted else ROUNDS
    for _ in range(WARM_UP + wanted):
        for side in SIDES:
            results[side].append(program.round(f"scan {side} {columns}"))
    return {side: rounds[WARM_UP:] for side, rounds in results.items()}


def _figures(
    what: str, body_bytes: int, rounds: dict[str, list[Round]], budgets: tuple[Budget, ...]
) -> Iterator[Figure]:
    store, parquet, prepared = (median(rounds[side], lambda one: one.rate / 1e6) for side in SIDES)
    own_cpu, _, prepared_cpu = (median(rounds[side], _cpu_us) for side in SIDES)
    bodies = f" ({store * body_bytes:,.0f} MB/s of bodies)" if "without" not in what else ""
    yield rate(GROUP, what + bodies, store, prepared, PREPARED, *budgets, unit="M rows/s")
    yield cost(GROUP, f"{what}: CPU per row", own_cpu, prepared_cpu, PREPARED)
    yield rate(GROUP, f"{what}, compared with Parquet", store, parquet, PARQUET, unit="M rows/s")


def _cpu_us(one: Round) -> float:
    return one.extra["cpu_seconds"] / one.messages * 1e6


def fill(directory: str, count: int, body_bytes: int, *more: str) -> None:
    """Writes a store in a separate process, so that the memory used is free afterwards; ``more`` are further arguments
    of ``spark_store``.
    """
    command = [sys.executable, "-m", "bench.spark_store", directory, str(count), str(body_bytes), *more]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=FILL_TIMEOUT_S)
