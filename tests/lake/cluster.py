"""The lake's jobs on a standalone cluster with two workers, on an S3 server; part of ``make lake``.

    python -m tests.lake.cluster [--server moto]

Archive, compact, ``topic_table`` and restore, in Delta and Iceberg. Workers take the keys from their environment.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession
from tests.lake.s3_server import S3Server, servers
from tests.unit.arrow.stores import open_store, put
from tools.peers.servers import free_port, wait_for_port

from rucola.spark.archive import archive, archive_raw, compact, restore, topic_table

SPARK_HOME = Path(pyspark.__file__).parent
TIMEOUT_S = 120
MESSAGES, MORE = 4000, 500


@contextmanager
def process(directory: Path, name: str, *words: str) -> Iterator[None]:
    """Runs a process of Spark until the block ends."""
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{words[0]}", *words[1:]]
    with (directory / f"{name}.log").open("wb") as log:
        running = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
    try:
        yield
    finally:
        running.terminate()
        running.wait(TIMEOUT_S)


@contextmanager
def cluster(directory: Path) -> Iterator[SparkSession]:
    """A session on a master with two workers."""
    port = free_port()
    where = ["--host", "127.0.0.1", "--webui-port", "0"]
    with ExitStack() as stack:
        stack.enter_context(process(directory, "master", "master.Master", *where, "--port", str(port)))
        if not wait_for_port(port, TIMEOUT_S):
            raise SystemExit((directory / "master.log").read_text())
        for number in (1, 2):
            work = ["-c", "1", "-m", "1200m", "-d", str(directory / f"worker-{number}"), f"spark://127.0.0.1:{port}"]
            stack.enter_context(process(directory, f"worker-{number}", "worker.Worker", *where, *work))
        builder = SparkSession.builder.master(f"spark://127.0.0.1:{port}").appName("lake")
        for name, value in {
            "spark.executor.memory": "900m",
            "spark.executor.cores": "1",
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.session.timeZone": "UTC",
        }.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()


def jobs(spark: SparkSession, directory: Path, bucket: str, place: dict[str, Any]) -> list[str]:
    """Runs all jobs in one format; returns texts about wrong results."""
    wrong, root = [], directory / place["format"]
    store = open_store(root / "store", segment_bytes=1 << 20)
    put(store, 0, MESSAGES)
    table, raw = (f"s3://{bucket}/{place['format']}/{name}" for name in ("table", "log"))
    for count in (MESSAGES, MORE):
        found = archive(table, spark=spark, store=root / "store", messages_per_commit=1500, **place)
        wrong += [] if found == count else [f"archived {found}, not {count}"]
        put(store, MESSAGES, MORE)
    made = compact(table, spark=spark, **place)
    wrong += [] if made.made == 4 else [f"compacted into {made.made} files"]
    rows = topic_table(spark, "flights", table, store=root / "store", **place)
    both = sorted(tuple(row) for row in rows.select("queueId", "queueOffset").collect())
    every = spark.read.format("rocketmq").options(storePath=str(root / "store"), topic="flights").load()
    wanted = sorted(tuple(row) for row in every.select("queueId", "queueOffset").collect())
    wrong += [] if both == wanted else [f"topic_table has {len(both)} rows, the store {len(wanted)}"]
    log = place | ({"identifier": "rucola.log"} if place["format"] == "iceberg" else {})
    archive_raw(raw, root / "store", spark=spark, **log)
    restore(raw, root / "new", spark=spark, rebuild=False, **log)
    for path in (root / "new" / "commitlog").iterdir():
        whole = (root / "store" / "commitlog" / path.name).read_bytes()
        wrong += [] if whole.startswith(path.read_bytes().rstrip(b"\0")) else [f"{path.name} differs"]
    store.shutdown()
    return wrong


def main() -> int:
    """Runs the jobs; the exit status is 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", choices=servers(), default=servers()[-1])
    options, failed = parser.parse_args(), 0
    with tempfile.TemporaryDirectory() as name, S3Server(Path(name) / "s3", options.server) as server:
        directory = Path(name)
        keys = {
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret,
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_REGION": server.region,
        }
        catalog = {
            "TYPE": "sql",
            "URI": f"sqlite:///{directory}/prod.db",
            "S3__ENDPOINT": server.endpoint,
            "S3__ACCESS_KEY_ID": server.access_key,
            "S3__SECRET_ACCESS_KEY": server.secret,
            "S3__REGION": server.region,
        }
        os.environ.update(keys | {f"PYICEBERG_CATALOG__PROD__{name}": value for name, value in catalog.items()})
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        with cluster(directory) as spark:
            for place in ({"format": "delta"}, {"format": "iceberg", "catalog": "prod"}):
                wrong = jobs(spark, directory, server.bucket(), place)
                failed += len(wrong)
                print(
                    f"{place['format']} on {options.server}, two workers: {'; '.join(wrong) or 'correct'}", flush=True
                )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
