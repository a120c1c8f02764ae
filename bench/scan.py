"""Scan of the log into Arrow record batches, compared with a plain copy of the same bytes in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bench.context import Context
from bench.figure import Figure, at_least, rate
from bench.samples import TOPIC, records
from rucola.arrow.columns import BatchBuilder, arrow_schema
from rucola.arrow.scanner import CHECK_PHYSICAL_OFFSET, RowChooser, Scanner
from rucola.arrow.schema import chosen_columns
from rucola.filter.tag import parse_tag_expression
from rucola.spark.options import parse_options

GROUP = "scan of the log into Arrow, one thread, log in memory"
LOG_BYTES = 96 << 20
FEW = "body,tags,keys,queueId,queueOffset,storeTimestamp"


def measure(context: Context) -> Iterator[Figure]:
    """Measures scans of all columns, and of the six that a pipeline usually needs, with two body sizes."""
    for body_bytes, count in ((1024, LOG_BYTES // 1400), (100, LOG_BYTES // 480)):
        context.show(f"scan: making {count:,} records of {body_bytes} B")
        log, end = records(count, body_bytes)
        reused, fresh = (_best(context.seconds, copy) for copy in (_copier(log, end), _fresh_copier(log, end)))
        for columns in (FEW, ""):
            names = f"{FEW.count(',') + 1} columns" if columns else "all columns"
            context.show(f"scan: {body_bytes} B bodies, {names}")
            seconds = _best(context.seconds, _scan_of(log, end, count, columns))
            budgets = (at_least(0.5),) if body_bytes == 1024 and columns else ()
            what = f"{_size(body_bytes)} bodies, {names} ({count / seconds / 1e6:.2f} M records/s)"
            ours = end / 1e9 / seconds
            yield rate(GROUP, what, ours, end / 1e9 / reused, "copy to memory touched before", *budgets, unit="GB/s")
            yield rate(GROUP, what, ours, end / 1e9 / fresh, "copy to new memory", unit="GB/s")


def _scan_of(log: bytearray, end: int, count: int, columns: str) -> Callable[[], None]:
    """Returns a function that scans all records, as a Spark task scans its part of a segment."""
    options = parse_options({"storePath": "d", "topic": TOPIC.decode(), **({"columns": columns} if columns else {})})
    chosen = chosen_columns(options)
    schema = arrow_schema(chosen)
    builder = BatchBuilder(options, [column.name for column in chosen], schema, "broker-a")

    def scan() -> None:
        scanner = Scanner(builder, RowChooser(parse_tag_expression("*")))
        rows = sum(batch.num_rows for batch in scanner.batches(log, 0, end, 0, "log", CHECK_PHYSICAL_OFFSET))
        assert rows == count, f"{rows} of {count} records"

    return scan


def _copier(log: bytearray, end: int) -> Callable[[], None]:
    """Returns a function that copies into memory that was touched before: the fastest possible copy."""
    target, view = memoryview(bytearray(end)), memoryview(log)[:end]

    def copy() -> None:
        target[:] = view

    return copy


def _fresh_copier(log: bytearray, end: int) -> Callable[[], object]:
    """Returns a function that copies into new memory from the operating system, as a plain ``bytes()`` does."""
    view = memoryview(log)[:end]
    return lambda: bytes(view)


def _best(seconds: float, work: Callable[[], object]) -> float:
    """Runs ``work`` repeatedly for ``seconds``, at least twice; returns the duration of the fastest run in seconds."""
    times: list[float] = []
    while len(times) < 2 or sum(times) < seconds:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _size(body_bytes: int) -> str:
    return f"{body_bytes // 1024} KiB" if body_bytes >= 1024 else f"{body_bytes} B"
