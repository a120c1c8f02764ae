"""Load program: Spark over a large store directory.

Arguments: store directory, pattern of the topics, settings of the session as ``name=value``. Each line on standard
input is one round:

    plan PATTERN    plans topics as Spark's driver does; reports ``seconds``, ``cpu_seconds``, the number of tasks as
                    ``messages``, and the bytes of the largest pickled task as ``pickle``
    scan COLUMNS    hands every value of the columns (``*`` for all) to a sink that drops it; reports as ``memory`` the
                    most memory in MB that one Python worker alone needed
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql.types import StructType

from bench.load_spark import process_tree
from rucola.spark.session import local_session
from rucola.spark.source import RocketMQDataSource

LOOK_INTERVAL_S = 0.02
TELL_INTERVAL_S = 10.0
"""Seconds between progress lines, because the process that reads the output gives up after a long time without one."""
WORKER = b"pyspark.daemon"
"""Text that the command lines of Python workers contain."""
ALL = "*"


def anonymous_mb(process: int) -> float:
    """Returns the resident memory in MB that belongs to no file: RssAnon plus RssShmem."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem")) * 1024 / 1e6


class WorkerMemory(threading.Thread):
    """Watches the Python workers of this session; ``most_mb`` is the most memory that one of them needed."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most_mb = 0.0
        self._over = threading.Event()

    def run(self) -> None:
        """Measures the workers again and again until ``stop`` is called."""
        told_s = time.monotonic()
        while not self._over.wait(LOOK_INTERVAL_S):
            for process in process_tree(os.getpid()):
                with suppress(OSError, KeyError):  # the process has just ended
                    if WORKER in Path(f"/proc/{process}/cmdline").read_bytes():
                        self.most_mb = max(self.most_mb, anonymous_mb(process))
            if time.monotonic() - told_s > TELL_INTERVAL_S:
                told_s = time.monotonic()
                print("scanning", flush=True)

    def stop(self) -> None:
        """Ends the thread after it has measured the workers once more."""
        self._over.set()
        self.join()


def plan(store: str, pattern: str) -> dict[str, float]:
    """Plans a batch as Spark's driver does."""
    cpu, start = time.process_time(), time.perf_counter()
    source = RocketMQDataSource({"storePath": store, "subscribePattern": pattern})
    schema = StructType.fromDDL(source.schema())
    assert isinstance(schema, StructType)
    tasks = source.reader(schema).partitions()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    largest = max(
        len(cloudpickle.dumps(task))  # type: ignore[no-untyped-call]
        for task in tasks
    )
    return {"messages": len(tasks), "seconds": seconds, "cpu_seconds": cpu, "pickle": largest}


def main(store: str, pattern: str, *settings: str) -> None:
    """Starts a session, runs rounds, and ends it."""
    session = local_session("bench", **dict(setting.split("=", 1) for setting in settings))
    try:
        print("{}", flush=True)
        for line in sys.stdin:
            what, argument = line.split()
            if what == "plan":
                print(json.dumps(plan(store, argument)), flush=True)
                continue
            rows = session.read.format("rocketmq").option("storePath", store).option("subscribePattern", pattern)
            memory, start = WorkerMemory(), time.perf_counter()
            memory.start()
            rows = rows if argument == ALL else rows.option("columns", argument)
            rows.load().write.format("noop").mode("overwrite").save()
            seconds = time.perf_counter() - start
            memory.stop()
            length = sum(path.stat().st_size for path in Path(store, "commitlog").iterdir())
            print(json.dumps({"messages": length, "seconds": seconds, "memory": memory.most_mb}), flush=True)
    finally:
        session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
