"""Load program: a Spark session that scans a store directory, and the same rows in uncompressed Parquet.

Arguments: directory, number of messages in its store, settings of the session as ``name=value``. Each line on standard
input starts one round:

    write [CODEC]          writes all columns of the store to Parquet, uncompressed unless CODEC is given
    archive                copies the topic into an archive
    query SIDE NAME        runs a query of ``QUERIES``; SIDE is ``store``, ``parquet`` or ``archive``
    check                  compares all rows of store and Parquet by count and hash; fails when they differ
    scan SIDE COLUMNS      hands every value of the columns (``*`` for all) to a sink that drops them; SIDE is
                           ``store``, ``parquet`` or ``prepared`` (the source of ``bench.spark_prepared``)

Each output line also has ``cpu_seconds``: CPU time of the session and of its Python processes. The line of a query also
has ``result``, a checksum of its rows.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from tools.peers.servers import CLOCK_TICKS_PER_S

from bench import spark_prepared
from bench.samples import TOPIC
from rucola.spark.archive import archive, topic_table
from rucola.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ALL = "*"
QUERIES = {
    "group": (
        "tags,body,storeTimestamp",
        "SELECT tags, count(*), sum(length(body)), max(storeTimestamp) FROM t GROUP BY 1",
    ),
    "filter": (
        "queueId,tags,storeTimestamp,body,keys",
        "SELECT count(*), sum(length(body)), max(keys), max(storeTimestamp) FROM t WHERE queueId = 1 AND tags = 'TagB'",
    ),
}
"""For each query, by name: the columns that it reads from a store, and its SQL text."""


class Load:
    """A Spark session that reads the rows from the store and from Parquet."""

    def __init__(self, directory: str, messages: int, settings: dict[str, str]) -> None:
        self._messages = messages
        self._store = str(Path(directory) / "store")
        self._parquet = str(Path(directory) / "parquet")
        self._archive = str(Path(directory) / "archive")
        local = {"spark.local.dir": f"{directory}/local", "spark.sql.warehouse.dir": f"{directory}/warehouse"}
        self._session = local_session("bench", **{**local, **settings})
        self._session.dataSource.register(spark_prepared.PreparedSource)

    def run(self, line: str) -> dict[str, float]:
        """Runs one round."""
        what, *arguments = line.split()
        cpu, start = tree_cpu_seconds(os.getpid()), time.perf_counter()
        result = 0
        if what == "write":
            codec = arguments[0] if arguments else "none"
            self._rows("store", ALL).write.option("compression", codec).parquet(self._parquet)
        elif what == "archive":
            archive(self._archive, TOPIC.decode(), spark=self._session, store=self._store)
        elif what == "query":
            result = self._query(*arguments)
        elif what == "check":
            self._check()
        else:
            self._rows(*arguments).write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - start
        cpu = tree_cpu_seconds(os.getpid()) - cpu
        return {"messages": self._messages, "seconds": seconds, "cpu_seconds": cpu, "result": result}

    def close(self) -> None:
        """Ends the session."""
        self._session.stop()

    def _rows(self, side: str, columns: str) -> DataFrame:
        """Returns the rows as a user reads them: with ``select`` from Parquet, with option ``columns`` from a store."""
        if side == "parquet":
            rows = self._session.read.parquet(self._parquet)
            return rows if columns == ALL else rows.select(columns.split(","))
        if side == "archive":
            return topic_table(self._session, TOPIC.decode(), self._archive, store=self._store)
        options = {"storePath": self._store, "topic": TOPIC.decode()}
        if columns != ALL:
            options["columns"] = columns
        if side == "prepared":
            options[spark_prepared.ROWS] = str(self._messages)
        return (
            self._session.read.format(spark_prepared.FORMAT if side == "prepared" else "rocketmq")
            .options(**options)
            .load()
        )

    def _query(self, side: str, name: str) -> int:
        columns, text = QUERIES[name]
        self._rows(side, columns).createOrReplaceTempView("t")
        rows = sorted(map(str, self._session.sql(text).collect()))
        return zlib.crc32("\n".join(rows).encode())

    def _check(self) -> None:
        """Checks that store and Parquet have all rows and that the rows are equal."""
        numbers = range(self._messages)
        facts = [
            self._rows(side, ALL)
            .selectExpr("count(*)", "sum(cast(substr(keys, 5) as bigint))", "bit_xor(xxhash64(*))")
            .first()
            for side in ("store", "parquet")
        ]
        if facts[0] != facts[1] or facts[0] is None or tuple(facts[0])[:2] != (self._messages, sum(numbers)):
            raise SystemExit(f"rows differ: {facts[0]} in the store, {facts[1]} in Parquet")


def tree_cpu_seconds(root: int) -> float:
    """Returns the CPU time in seconds of a process and all its descendants, including processes that have ended."""
    return sum(process_tree(root).values())


def process_tree(root: int) -> dict[int, float]:
    """Returns the CPU time in seconds by process: ``process`` and each descendant, each with its children that have
    ended.
    """
    used: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:  # The process has just ended.
            continue
        pid = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        used[pid] = sum(map(int, fields[11:15])) / CLOCK_TICKS_PER_S
    found, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        found[pid] = used.get(pid, 0.0)
        waiting += children.get(pid, [])
    return found


def main(directory: str, messages: str, *settings: str) -> None:
    """Starts a session, runs rounds, and ends it."""
    load = Load(directory, int(messages), dict(setting.split("=", 1) for setting in settings))
    try:
        print("{}", flush=True)
        for line in sys.stdin:
            print(json.dumps(load.run(line)), flush=True)
    finally:
        load.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
