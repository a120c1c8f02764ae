"""Spark queries over a topic's archive, compared with plain Parquet of the same rows and with the store directory.

``rucola sql`` over the store is compared with DuckDB on that Parquet. Rounds of all sides alternate.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb

from bench import sql
from bench.context import Context
from bench.figure import Figure, at_least, at_most, rate
from bench.program import ROUND_TIMEOUT_S, Program, Round, median, python_load, scratch_directory
from bench.spark_scan import SETTINGS, fill
from rucola.sql import connect

GROUP = "Archive of a topic, 1 KiB bodies, Spark local[2], DuckDB on all cores"
PEER = "plain Parquet"
BODY_BYTES = 1024
RECORD_BYTES = 1280
"""Approximate size of a record of 1 KiB with its properties and its entries in queue and index."""
CODEC = "zstd"
"""The codec of an archive's files."""
SIDES = ("archive", "store", "parquet")
WARM_UP = 2
QUERIES = {"group": "group by tags with body sizes", "filter": "one queue and one tag"}
MICROSECONDS = "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS"


def measure(context: Context) -> Iterator[Figure]:
    """Measures both queries on each side and compares their results; then compares ``rucola sql`` with DuckDB."""
    count = int(context.gib * (1 << 30)) // RECORD_BYTES // 1024 * 1024
    size = f"{context.gib:g} GiB"
    with scratch_directory() as directory:
        context.show(f"archive: writing {count:,} messages, {size}")
        fill(directory, count, BODY_BYTES)
        with python_load("load_spark", directory, str(count), MICROSECONDS, *SETTINGS) as program:
            context.show("archive: copying them to Parquet and into an archive")
            for line in (f"write {CODEC}", "archive"):
                program.round(line, _timeout_s(context))
            for name, what in QUERIES.items():
                context.show(f"archive: {what}")
                rounds = _rounds(context, program, name)
                archived, store, parquet = (median(rounds[side], lambda one: one.rate / 1e6) for side in SIDES)
                label = f"{size}: {what}"
                yield rate(GROUP, f"{label}, archive", archived, parquet, PEER, at_least(0.9), unit="M rows/s")
                yield rate(GROUP, f"{label}, store in place", store, parquet, PEER, unit="M rows/s")
        store_path, parquet_files = Path(directory, "store"), Path(directory, "parquet", "*.parquet")
        with connect(store_path) as session, duckdb.connect() as plain:
            plain.execute("set timezone = 'UTC'")
            for what, query, budgets in sql.QUERIES[:2]:
                context.show(f"archive: rucola sql, {what}")
                label = f"{size}: rucola sql, {what}"
                limits = (at_most(1.3),) if budgets else ()
                yield sql.compared(context, session, plain, parquet_files, label, query, limits, GROUP)


def _timeout_s(context: Context) -> float:
    return ROUND_TIMEOUT_S * max(1.0, context.gib)


def _rounds(context: Context, program: Program, name: str) -> dict[str, list[Round]]:
    """Runs the rounds of all sides alternately; returns the rounds after the warm-up."""
    results: dict[str, list[Round]] = {side: [] for side in SIDES}
    for _ in range(WARM_UP + context.rounds):
        for side in SIDES:
            results[side].append(program.round(f"query {side} {name}", _timeout_s(context)))
    found = {one.extra["result"] for rounds in results.values() for one in rounds}
    assert len(found) == 1, f"{name}: the results differ"
    return {side: rounds[WARM_UP:] for side, rounds in results.items()}
