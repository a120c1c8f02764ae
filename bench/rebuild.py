"""Rebuilds of queues and index of a large store, and lookups of a key in it.

    python -m bench.rebuild --messages 20000000 --body-bytes 128 --topics 200

Each of these rebuilds the same store in its own process: a start of our engine without queues and index, ``rucola
store rebuild``, the same with ``--spark`` (in one process, on ``local-cluster`` and on a standalone master with two
workers), and a start of the official store. All must make the same bytes. CPU times include all processes that
work for the rebuild.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from bench.large_store import key_of, write_log
from bench.load_spark import tree_cpu_seconds
from bench.program import java_command
from bench.spark_cluster import EXECUTOR, standalone
from rucola.runtime.files import Files
from rucola.store.doctor.census import find
from rucola.store.inspect.search import MessageQuery

_BLOCK = 4096
_PR_SET_CHILD_SUBREAPER = 36
LOOKUPS = 7
BODY_BYTES = 922
"""With this size, 20,000,000 messages make a log of 20 GiB."""
PARTS = ("consumequeue", "index")
SEQUENTIAL = """
import sys
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
store = MessageStore(MessageStoreConfig(store_path_root_dir=sys.argv[1]), Files(), SystemClock())
store.load()
store.shutdown()
"""


def main() -> int:
    """Runs all rebuilds; exit status 1 if they differ."""
    parser = argparse.ArgumentParser(prog="python -m bench.rebuild", description="Rebuilds a large store.")
    parser.add_argument("--messages", type=int, default=20_000_000)
    parser.add_argument("--body-bytes", type=int, default=BODY_BYTES)
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--lookups", action="store_true", help="rebuild only once, then look up keys")
    parser.add_argument("--directory", default=None, help="where to make the store")
    options = parser.parse_args()
    # Spark's processes outlive the command. They become children of this process, so their CPU time is counted.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with (
        tempfile.TemporaryDirectory(prefix="rucola-rebuild-", dir=options.directory) as directory,
        nullcontext("") if options.lookups else standalone(Path(directory)) as master,
    ):
        root = Path(directory) / "store"
        size = write_log(root, options.messages, options.topics, options.body_bytes)
        print(f"{options.messages:,} messages, {options.topics} topics, {size / 2**30:.1f} GiB", flush=True)
        ways = {
            "start of our engine": [sys.executable, "-c", SEQUENTIAL, str(root)],
            f"store rebuild, {options.jobs} processes": _rucola(root, "--jobs", str(options.jobs)),
            f"spark rebuild, local[{options.jobs}]": _rucola(root, "--spark", f"local[{options.jobs}]"),
            "spark rebuild, local-cluster": _rucola(root, "--spark", "local-cluster[2,1,2048]"),
            "spark rebuild, standalone": _rucola(root, "--spark", master, *EXECUTOR),
            # The official store comes last, because it adds files of its own.
            "start of RocketMQ": java_command("StoreLoad", str(root), "1024", "async", "index"),
        }
        digests = set()
        for name, command in list(ways.items())[1:2] if options.lookups else ways.items():
            for part in PARTS:
                shutil.rmtree(root / part, ignore_errors=True)
            digests.add(_timed(name, command, root))
        for number in (0, options.messages // 2, options.messages - 1):
            _timed(f"store grep --key {number}", _rucola(root, "--key", key_of(number), verb="grep"), None)
        _look_up(root, options.messages, options.topics)
    print("all made the same bytes" if len(digests) == 1 else "the bytes differ")
    return int(len(digests) != 1)


def _look_up(root: Path, messages: int, topics: int) -> None:
    """Times lookups of keys in a Python process that is already running, and in a warm Spark session."""
    from rucola.spark.session import local_session

    def in_process(key: str) -> int:
        return sum(len(rows.chosen) for _, rows in find([str(root)], MessageQuery(key=key)))

    spark = local_session("bench")
    reader = spark.read.format("rocketmq").option("storePath", str(root)).option("topic", "topic-000")

    def in_spark(key: str) -> int:
        return len(reader.option("keys", key).load().collect())

    for name, look in (("in process", in_process), ("in Spark, warm session", in_spark)):
        look(key_of(0))
        seconds = []
        for part in range(1, LOOKUPS + 1):
            # Only messages of the first topic are looked up.
            number = messages * part // (LOOKUPS + 1) // topics * topics
            begin = time.perf_counter()
            if look(key_of(number)) != 1:
                raise SystemExit(f"{name}: key {number} was not found exactly once")
            seconds.append(time.perf_counter() - begin)
        load = os.getloadavg()[0]
        print(f"a key {name}: median {statistics.median(seconds):.3f} s, most {max(seconds):.3f} s, load {load:.1f}")
    spark.stop()


def _rucola(root: Path, *options: str, verb: str = "rebuild") -> list[str]:
    return [sys.executable, "-m", "rucola", "store", verb, str(root), *options]


def _timed(name: str, command: list[str], root: Path | None) -> str:
    """Runs a command and prints its times; returns a digest of queues and index."""
    begin, before = time.perf_counter(), tree_cpu_seconds(os.getpid())
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    seconds, cpu = time.perf_counter() - begin, tree_cpu_seconds(os.getpid()) - before
    if done.returncode:
        raise SystemExit(f"{name}: exit {done.returncode}\n{done.stderr[-2000:]}")
    load = os.getloadavg()[0]
    print(f"{name:34} {seconds:8.2f} s, CPU {cpu:8.2f} s, load {load:.1f}", flush=True)
    return "" if root is None else _digest(root)


def _digest(root: Path) -> str:
    """Returns a digest of all queue files by path and of index files by order."""
    digest = hashlib.blake2b()
    for part in PARTS:
        for path in sorted(path for path in (root / part).rglob("*") if path.is_file()):
            if part != "index":
                digest.update(str(path.relative_to(root)).encode())
            segment = Files().map_file(str(path), writable=False)
            for first, last in segment.data_ranges(0):
                for at in range(first, last, _BLOCK):
                    block = bytes(segment.view[at : min(at + _BLOCK, last)])
                    if block.strip(b"\0"):
                        digest.update(b"%d" % at + block.rstrip(b"\0"))
            segment.close()
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
