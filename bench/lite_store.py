"""``python -m bench.lite_store [--names N] [--together M] [--official]``: what idle lite topics cost a store.

A store gets N lite topics with one message each; with M, each message is in M of them, and the fill is shorter. The
store is stopped and opened again, scanned for expired topics, then killed and opened again. Each step runs in a process
of its own. A line shows a figure and its budget. ``--official`` gives our store and RocketMQ's, with queues in files,
10,000 lite topics, and compares them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from bench.program import scratch_directory
from bench.samples import HOST
from rucola.common.message import StoreMessage
from rucola.formats.light_queue import lite_topic
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.lite.lite_topics import LiteTopics
from rucola.store.message_store import MessageStore

PARENTS = 8
_DISPATCH_EVERY = 256
_AGAIN = 20_000
_SCAN_ROWS = 65_536
_OFFICIAL_NAMES = 10_000
"""RocketMQ makes a directory and a file for each; it recommends RocksDB for more."""
_BODY = b"x" * 100


def name_of(number: int) -> bytes:
    """The name of a lite topic: a parent and a UUID."""
    return b"agents%d$%08x-1b9d-4bad-9bdd-%012x" % (number % PARENTS, number * 2654435761 % (1 << 32), number)


def opened(directory: str) -> MessageStore:
    """Opens a store that keeps light queues."""
    config = MessageStoreConfig(
        store_path_root_dir=directory, enable_lmq=True, enable_multi_dispatch=True, message_index_enable=False
    )
    return MessageStore(config, Files(), SystemClock())


def topics_of(store: MessageStore) -> LiteTopics:
    """The lite topics of a store."""
    assert store.lite is not None
    return store.lite


def private_bytes() -> int:
    """Memory of this process that is not a map of a file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def put(store: MessageStore, numbers: list[int], together: int = 1) -> float:
    """Sends a message to each of these topics, or to each ``together`` of them; returns the processor seconds of
    dispatch.
    """
    spent = 0.0
    for count in range(0, len(numbers), together):
        names = b",".join(lite_topic(name_of(number)) for number in numbers[count : count + together])
        properties = b"INNER_MULTI_DISPATCH\x01%b\x02" % names
        store.put_message(StoreMessage(b"agents", 0, _BODY, properties, 1, HOST))
        if count // together % _DISPATCH_EVERY == _DISPATCH_EVERY - 1 or count + together >= len(numbers):
            begin = time.process_time()
            store.dispatch()
            store.take_arrivals()
            spent += time.process_time() - begin
    return spent


def fill(directory: str, names: int, together: int) -> dict[str, float]:
    """Makes the topics, and stops the store."""
    store = opened(directory)
    store.load()
    store.start()
    before, begin = private_bytes(), time.perf_counter()
    dispatched_s = put(store, list(range(names)), together)
    filled_s = time.perf_counter() - begin
    topics = topics_of(store)
    found = {
        "fill_s": filled_s,
        "dispatch_us": dispatched_s / names * 1e6,
        "rows_bytes": topics.memory_bytes() / names,
        "memory_bytes": (private_bytes() - before) / names,
    }
    begin = time.perf_counter()
    store.shutdown()
    found["stop_s"] = time.perf_counter() - begin
    found["names_bytes"] = Path(f"{topics.path}/names").stat().st_size / names
    used = sum(path.stat().st_blocks * 512 for path in Path(topics.path).rglob("*") if path.is_file())
    found["disk_bytes"] = used / names
    return found


def use(directory: str, names: int, _together: int) -> dict[str, float]:
    """Opens the stopped store, scans it, sends messages, and is killed."""
    before = private_bytes()
    begin = time.perf_counter()
    store = opened(directory)
    store.load()
    found = {"open_clean_s": time.perf_counter() - begin, "open_memory_bytes": (private_bytes() - before) / names}
    store.start()
    topics = topics_of(store)
    ttl = {b"agents%d" % number: 60 for number in range(0, PARENTS, 2)}
    turn_s, first, expired = 0.0, 0, 0
    begin = time.process_time()
    while True:
        start = time.process_time()
        part = topics.expired(ttl, 900_000, store.now_ms() + 7_200_000, first, _SCAN_ROWS)
        turn_s = max(turn_s, time.process_time() - start)
        expired += len(part.names)
        if part.following is None:
            break
        first = part.following
    found |= {"scan_s": time.process_time() - begin, "scan_turn_ms": turn_s * 1e3, "expired": expired}
    begin = time.process_time()
    put(store, random.Random(1).choices(range(names), k=_AGAIN))
    found["message_us"] = (time.process_time() - begin) / _AGAIN * 1e6
    read = 0
    begin = time.process_time()
    for number in random.Random(2).choices(range(names), k=_AGAIN):
        read += store.get_message(lite_topic(name_of(number)), 0, 0, 1, 1 << 20).message_count
    found["read_us"] = (time.process_time() - begin) / _AGAIN * 1e6
    assert read == _AGAIN
    begin = time.process_time()
    doomed = [name_of(number) for number in range(1, min(names, _AGAIN), 2)]
    store.delete_lite(doomed)
    found["delete_us"] = (time.process_time() - begin) / len(doomed) * 1e6
    print(json.dumps(found), flush=True)
    os._exit(9)


def reopen(directory: str, names: int, _together: int) -> dict[str, float]:
    """Opens the killed store."""
    store = opened(directory)
    begin = time.perf_counter()
    store.load()
    found = {"open_killed_s": time.perf_counter() - begin}
    assert len(topics_of(store).names) == names
    store.start()
    store.shutdown()
    return found


STEPS = {"fill": fill, "use": use, "reopen": reopen}
BUDGETS = {
    "memory_bytes": 200.0,
    "open_memory_bytes": 200.0,
    "disk_bytes": 100.0,
    "open_clean_s": 10.0,
    "open_killed_s": 30.0,
    "scan_s": 1.0,
    "scan_turn_ms": 5.0,
}


def run_step(step: str, directory: str, names: int, together: int = 1) -> dict[str, float]:
    """Runs a step in a process of its own; returns its figures."""
    command = [sys.executable, "-m", "bench.lite_store", "--step", step, "--directory", directory]
    command += ["--names", str(names), "--together", str(together)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare() -> None:
    """Prints the figures of both stores."""
    from bench.lite_official import official

    with scratch_directory() as scratch:
        ours: dict[str, float] = {}
        for step in STEPS:
            ours |= run_step(step, f"{scratch}/ours", _OFFICIAL_NAMES)
        theirs = official(Path(scratch), [name_of(number) for number in range(_OFFICIAL_NAMES)], _BODY)
    print(f"{'':<20} {'ours':>12} {'official':>12}")
    for key, value in theirs.items():
        print(f"{key:<20} {ours[key]:12.3f} {value:12.3f}")


def main() -> int:
    """Runs all steps; returns 1 if a budget is not met."""
    parser = argparse.ArgumentParser(description="What idle lite topics cost a store.")
    parser.add_argument("--names", type=int, default=1_000_000, help="number of lite topics")
    parser.add_argument("--together", type=int, default=1, help="lite topics of each message of the fill")
    parser.add_argument("--directory", help="where the store is written; a scratch directory by default")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--official", action="store_true", help="compare 10,000 lite topics with RocketMQ's store")
    options = parser.parse_args()
    if options.official:
        compare()
        return 0
    if options.step:
        print(json.dumps(STEPS[options.step](options.directory, options.names, options.together)))
        return 0
    with scratch_directory() as scratch:
        directory = options.directory or f"{scratch}/store"
        met = True
        for step in STEPS:
            for key, value in run_step(step, directory, options.names, options.together).items():
                budget = BUDGETS.get(key)
                met = met and (budget is None or value <= budget)
                print(f"{key:<20} {value:12.3f}" + (f"   <= {budget:g}" if budget is not None else ""))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
