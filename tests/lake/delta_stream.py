"""A stream of Spark's own Delta reader over a table of ours: ``python -m tests.lake.delta_stream``, part of
``make lake``.

Messages are sent, archived, compacted, expired; the stream must give each row once, whenever it looks. The
reader is a process with the PySpark for which Delta is published. Needs Maven.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from tools.peers.packages import DELTA_PYSPARK, delta_classpath, python_packages

COUNT = 40
EVENTS = ["read", "compact", "compact and read", "expire"]
"""What follows on some archives in a round."""
Row = tuple[str, int, int]
"""Topic, queue id, queue offset."""


def read(table: str, checkpoint: str) -> None:
    """The reader: at each line of standard input, prints the places of the messages that the stream gives."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", ",".join(os.environ["DELTA_CLASSPATH"].split(":")))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    # Expired days are removed rows; a stream that follows appends says that it ignores them.
    rows = (
        spark.readStream.format("delta")
        .option("ignoreDeletes", "true")
        .load(table)
        .select("topic", "queueId", "queueOffset")
    )
    for _ in sys.stdin:
        found: list[list[Any]] = []

        def take(batch: Any, _number: int, found: list[list[Any]] = found) -> None:
            found += [list(row) for row in batch.collect()]

        writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
        print(f"rows {json.dumps(found)}", flush=True)


class Reader:
    """The process of the reader."""

    def __init__(self, table: Path, checkpoint: Path) -> None:
        packages = python_packages("delta-reader", DELTA_PYSPARK, alone=False)
        environ = {**os.environ, "PYTHONPATH": f"{packages}:{Path.cwd()}", "DELTA_CLASSPATH": delta_classpath()}
        environ.pop("SPARK_HOME", None)
        command = [sys.executable, "-m", "tests.lake.delta_stream", "--read", str(table), str(checkpoint)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)

    def rows(self) -> list[Row]:
        """The rows that the stream gives now."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith(b"rows "):
                return [(topic, queue, offset) for topic, queue, offset in json.loads(line[5:])]
        raise SystemExit(f"the reader ended with {self._process.wait()}")

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def play(directory: Path, rounds: int, seed: int) -> int:
    """Archives and compacts in random order while the stream reads; returns the number of rows."""
    from tests.unit.arrow.stores import open_store, put

    from rucola.lake import archive, compact
    from rucola.lake.maintenance import expire
    from rucola.lake.table_formats import open_table

    chance, seen, sent = random.Random(seed), Counter[Row](), 0
    store, table = open_store(directory / "store"), directory / "table"
    events = (EVENTS * rounds)[:rounds]
    chance.shuffle(events)
    put(store, 0, COUNT)
    archive(str(table), store=str(directory / "store"))
    reader = Reader(table, directory / "checkpoint")
    seen.update(reader.rows())
    sent += COUNT
    for event in events:
        for _ in range(chance.randint(1, 3)):
            put(store, sent, COUNT)
            sent += COUNT
            archive(str(table), store=str(directory / "store"))
        if event.startswith("compact"):
            compact(str(table))
        if event != "compact":
            seen.update(reader.rows())
        if event == "expire":
            expire(open_table(str(table)), date.today() + timedelta(days=2))
    seen.update(reader.rows())
    reader.close()
    store.shutdown()
    twice = [row for row, count in seen.items() if count > 1]
    assert len(seen) == sent and not twice, f"seed {seed}: {sent} sent, {len(seen)} read, {len(twice)} twice; {events}"
    return sent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=date.today().toordinal())
    parser.add_argument("--read", nargs=2, metavar=("TABLE", "CHECKPOINT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read(*options.read)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        rows = play(Path(directory), options.rounds, options.seed)
    print(f"delta stream: {rows} rows in {options.rounds} rounds, each once", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
