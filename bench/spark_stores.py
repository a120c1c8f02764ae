"""Spark reads several large stores at once; the program watches the anonymous memory of its Python workers.

    python -m bench.spark_stores --stores 4 --messages 20000000
    python -m bench.spark_stores --store DIR

The stores are directories with hard links to the same files, so the disk holds the files once. Two executors with one
CPU each run the tasks (``local-cluster[2,1,2048]``). The exit code is 1 if a worker had more than 300 MB.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path

from bench.large_store import write_log
from bench.program import scratch_directory
from rucola.spark.session import local_session
from rucola.store.doctor.rebuild import rebuild

MASTER = "local-cluster[2,1,2048]"
LIMIT_BYTES = 300_000_000
TOPICS = 200
BODY_BYTES = 100
INTERVAL_S = 0.2


class WorkerMemory(threading.Thread):
    """Watches the Python workers of Spark among the descendants of this process.

    Attributes:
        most: largest anonymous memory of each worker in bytes, by process id.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most: dict[int, int] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        """Measures all workers again and again until ``end`` is called."""
        while not self._ended.wait(INTERVAL_S):
            for worker in _workers(os.getpid()):
                self.most[worker] = max(self.most.get(worker, 0), _anonymous(worker))

    def end(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self.join()


def _workers(root: int) -> list[int]:
    """Returns the process ids of Python workers: the forks of Spark's worker daemons below ``root``."""
    parents: dict[int, int] = {}
    daemons: set[int] = set()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            number = int(directory.name)
            parents[number] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            if b"pyspark.daemon" in (directory / "cmdline").read_bytes():
                daemons.add(number)
        except OSError:  # the process has ended
            continue
    return [one for one in daemons if parents.get(one) in daemons and _is_below(one, root, parents)]


def _is_below(process: int, root: int, parents: dict[int, int]) -> bool:
    while process and process != root:
        process = parents.get(process, 0)
    return process == root


def _anonymous(process: int) -> int:
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
    except OSError:  # the process has ended
        pass
    return 0


def _linked(source: Path, target: Path) -> None:
    """Makes a directory whose files are those of ``source``."""
    for file in source.rglob("*"):
        other = target / file.relative_to(source)
        if file.is_dir():
            other.mkdir(parents=True, exist_ok=True)
        else:
            other.parent.mkdir(parents=True, exist_ok=True)
            other.hardlink_to(file)


def measure(source: Path, directory: Path, stores: int) -> int:
    """Reads the stores once; returns the largest anonymous memory of a worker in bytes."""
    paths = [directory / f"store-{number}" for number in range(stores)]
    for path in paths:
        _linked(source, path)
    options = {
        "storePath": ",".join(map(str, paths)),
        "brokerName": ",".join(path.name for path in paths),
        "subscribePattern": ".*",
    }
    spark = local_session("stores", master=MASTER)
    memory = WorkerMemory()
    memory.start()
    begin = time.monotonic()
    try:
        rows = spark.read.format("rocketmq").options(**options).load()
        found = rows.groupBy("brokerName").agg({"body": "max", "keys": "max", "*": "count"}).collect()
    finally:
        memory.end()
        spark.stop()
    seconds = time.monotonic() - begin
    counts = [row["count(1)"] for row in found]
    assert len(set(counts)) == 1 and len(counts) == stores, counts
    print(f"{stores} stores, {sum(counts):,} messages in {seconds:.0f} s")
    most = max(memory.most.values())
    print(
        f"{len(memory.most)} workers, at most {most / 1e6:.0f} MB of anonymous memory (limit {LIMIT_BYTES / 1e6:.0f})"
    )
    return most


def main() -> int:
    """Makes the store unless there is one, and measures."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_stores", description=__doc__)
    parser.add_argument("--stores", type=int, default=4)
    parser.add_argument("--messages", type=int, default=20_000_000, help="messages in each store; 20,000,000 are 5 GiB")
    parser.add_argument(
        "--store", type=Path, help="a store to use instead of a new one, on the same file system as .bench"
    )
    options = parser.parse_args()
    with scratch_directory() as scratch:
        source = options.store
        if source is None:
            source = Path(scratch, "source")
            write_log(source, options.messages, TOPICS, BODY_BYTES)
            rebuild(str(source))
        return int(measure(source, Path(scratch), options.stores) > LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
