"""``rucola sql`` over a store directory, compared in alternating rounds with DuckDB over the same rows in Parquet."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from bench.context import Context
from bench.figure import Budget, Figure, at_most, share
from bench.program import scratch_directory
from bench.spark_scan import fill
from bench.spark_store import FIRST
from rucola.arrow import scan
from rucola.sql import connect
from rucola.sql.session import Session

GROUP = "SQL over a store in place, 300 B bodies, DuckDB on all cores"
PEER = "DuckDB on Parquet"
MESSAGES = 4_000_000
QUICK_PART = 8
BODY_BYTES = 300
LOOKUPS = 5
_WIDE = (
    "sum(octet_length(body)), max(keys), max(properties), max(msgId), max(bornHost), max(storeHost), sum(bodyCrc), "
    "sum(queueOffset), max(storeTimestamp), max(bornTimestamp), sum(physicalOffset), sum(storeSize)"
)
QUERIES: tuple[tuple[str, str, tuple[Budget, ...]], ...] = (
    ("group by, 13 columns", f"select tags, count(*), {_WIDE} from {{}} group by 1", (at_most(1.3),)),
    ("group by, 1 column", "select tags, count(*) from {} group by 1", ()),
    ("one queue of four", "select count(*), sum(octet_length(body)) from {} where queueId = 1", ()),
)


def measure(context: Context) -> Iterator[Figure]:
    """Measures queries over all messages, whose results are compared, and lookups of a key."""
    count = MESSAGES // QUICK_PART if context.quick else MESSAGES
    with scratch_directory() as directory:
        context.show(f"sql: writing {count:,} messages, and the same to Parquet")
        fill(directory, count, BODY_BYTES, "keys")
        store, parquet = Path(directory, "store"), Path(directory, "rows.parquet")
        _write(store, parquet)
        with connect(store) as session, duckdb.connect() as plain:
            plain.execute("set timezone = 'UTC'")
            for what, query, budgets in QUERIES:
                context.show(f"sql: {what}")
                yield compared(context, session, plain, parquet, what, query, budgets)
            numbers = range(FIRST, FIRST + count, count // LOOKUPS)
            times = [_seconds(partial(_lookup, session, number)) for number in numbers]
            what = f"lookup of a key in {count / 1e6:.1f} M messages"
            yield Figure(GROUP, what, "s", statistics.median(times), budgets=(Budget("ours", "max", 0.5),))


def compared(
    context: Context,
    session: Session,
    plain: duckdb.DuckDBPyConnection,
    parquet: Path,
    what: str,
    query: str,
    budgets: tuple[Budget, ...],
    group: str = GROUP,
) -> Figure:
    """Runs a query on both sides; returns the figure that compares the medians of the rounds after the warm-up.

    Args:
        context: has the number of rounds.
        session: session over the store.
        plain: connection to DuckDB.
        parquet: file with the same rows, or a pattern of several.
        what: name of the figure.
        query: a query with ``{}`` for the table.
        budgets: limits of the ratio.
        group: heading above the figure.
    """

    def ours() -> list[str]:
        return _sorted(session.run(query.format("messages")).read_all())

    def theirs() -> list[str]:
        return _sorted(plain.sql(query.format(f"'{parquet}'")).to_arrow_table())

    assert ours() == theirs(), f"{what}: the results differ"
    times = [(_seconds(ours), _seconds(theirs)) for _ in range(context.rounds)]
    mine, peer = (statistics.median(side) for side in zip(*times, strict=True))
    return share(group, what, mine, peer, PEER, *budgets, unit="s")


def _lookup(session: Session, number: int) -> None:
    """Looks up the one message with the key."""
    found = session.run(f"select * from keys where key = 'key{number}'").read_all()
    assert found.num_rows == 1, f"{found.num_rows} messages have key{number}"


def _sorted(table: Any) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _write(store: Path, parquet: Path) -> None:
    """Writes all messages to Parquet, in the order of a scan."""
    reader = scan(store)
    with pq.ParquetWriter(parquet, reader.schema, compression="none", use_dictionary=False) as writer:
        for batch in reader:
            writer.write_batch(batch)
