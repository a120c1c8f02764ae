"""Writes records to a new file by ``write`` calls, through a fresh map, and through a map with warmed pages."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

from rucola.lab import page_cache
from rucola.lab.engine import Run, body_of, message, open_store
from rucola.lab.lesson import Claim, Lesson, Numbers, Quantity, Size
from rucola.lab.text import listed, ratio, size_text
from rucola.lab.workbench import Workbench

RECORD_BYTES = (128, 1024, 4096, 16_384, 65_536)
GATHERED = 64
WRITE, GATHER, MAP, WARM = (
    "write, a call for each record",
    "write, a call for 64 records",
    "map, fresh pages",
    "map, warmed pages",
)
THROUGH_MAP, BY_CALLS = "through the map", "by calls (writeWithoutMmap)"


def run(bench: Workbench) -> None:
    """Measures each way on a file of its own, whose blocks are allocated."""
    file_bytes = bench.choose(1 << 19, 16 << 20, 64 << 20)
    for _ in bench.repetitions():
        for record_bytes in RECORD_BYTES:
            record, count = body_of(record_bytes), file_bytes // record_bytes
            for name, way in (
                (WRITE, write_each),
                (GATHER, write_gathered),
                (MAP, store_to_fresh_map),
                (WARM, store_to_warm_map),
            ):
                for _ in range(2):  # the first run only lets the system find free memory; only the second is noted
                    with bench.directory() as directory:
                        seconds, faults = way(allocated(directory / "log", file_bytes), record, count)
                bench.note("write", name, record_bytes, seconds / count * 1e6)
                bench.note("faults", name, record_bytes, faults / (file_bytes >> 10) * 1024)
        for messages in (1, 64):
            for name, by_calls in ((THROUGH_MAP, False), (BY_CALLS, True)):
                with bench.directory() as directory:
                    cost = by_engine(directory, messages, bench.choose(640, 12_800, 51_200), by_calls)
                bench.note("engine", name, f"{messages} a run", cost)


def allocated(path: Path, size: int) -> int:
    """Makes a file of zeros whose blocks are allocated; returns its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, size)
    os.fsync(descriptor)
    return descriptor


def timed(work: Callable[[], object]) -> tuple[float, int]:
    """Returns CPU seconds of this thread and number of page faults in ``work``. Pauses that the system forces on a fast
    writer take no CPU time.
    """
    faults, begin = page_cache.page_faults(), time.thread_time()
    work()
    return time.thread_time() - begin, page_cache.page_faults() - faults


def write_each(file: int, record: bytes, count: int) -> tuple[float, int]:
    """Writes each record with a call of its own: the system copies the record into the page cache."""

    def work() -> None:
        for _ in range(count):
            os.write(file, record)

    found = timed(work)
    os.close(file)
    return found


def write_gathered(file: int, record: bytes, count: int) -> tuple[float, int]:
    """Writes many records with one call, as when one read of a connection brought many messages."""
    group = min(GATHERED, count)

    def work() -> None:
        for _ in range(count // group):
            os.writev(file, [record] * group)

    found = timed(work)
    os.close(file)
    return found


def store_to_fresh_map(file: int, record: bytes, count: int) -> tuple[float, int]:
    """Stores through a fresh map: the first store to each page causes a page fault, and the system makes the page."""
    return store_to_map(file, record, count, warm=False)


def store_to_warm_map(file: int, record: bytes, count: int) -> tuple[float, int]:
    """Stores records through a map; touches each page before the measurement, which then has no page faults."""
    return store_to_map(file, record, count, warm=True)


def store_to_map(file: int, record: bytes, count: int, warm: bool) -> tuple[float, int]:
    """Stores records through a map: the program itself, not the system, copies each record into the page cache."""
    size = len(record)
    with mmap.mmap(file, size * count) as mapped:
        os.close(file)
        if warm:
            for position in range(0, size * count, page_cache.PAGE):
                mapped[position] = 0

        def work() -> None:
            for position in range(0, size * count, size):
                mapped[position : position + size] = record

        return timed(work)


def by_engine(directory: Path, messages: int, total: int, by_calls: bool) -> float:
    """Returns the engine's CPU time for each message of 1 KiB in microseconds; a call appends ``messages`` messages."""
    one_run = Run.of([message(number, 1024) for number in range(messages)])
    with open_store(directory, write_without_mmap=by_calls) as store:
        one_run.append(store)
        begin = time.thread_time()
        for _ in range(total // messages):
            one_run.append(store)
        return (time.thread_time() - begin) / total * 1e6


def _space(size: Size) -> int:
    return {Size.SMALL: 96, Size.NORMAL: 192, Size.LARGE: 320}[size] << 20


def say_winners(n: Numbers) -> str:
    """Says which is faster at each size: a call for each record, or a map."""
    wins = [size_text(size) for size in RECORD_BYTES if n["write"][MAP][size] < n["write"][WRITE][size]]
    loses = [size_text(size) for size in RECORD_BYTES if size_text(size) not in wins]
    warm = [size_text(size) for size in RECORD_BYTES if n["write"][WARM][size] < n["write"][WRITE][size]]
    if not loses:
        parts = ["The fresh map wins at every size."]
    elif not wins:
        parts = ["A call for each record wins at every size."]
    else:
        parts = [
            f"The fresh map wins with records of {listed(wins)}, a call for each record wins with {listed(loses)}."
        ]
    parts.append(f"A map saves the calls, and costs {n['faults'][MAP][128]} page faults for each MiB of fresh pages.")
    if len(warm) == len(RECORD_BYTES):
        parts.append("With warm pages, the map beats a call for each record at every size.")
    elif warm:
        parts.append(f"With warm pages, the map beats a call for each record only with records of {listed(warm)}.")
    else:
        parts.append("Even with warm pages, the map is not faster than a call for each record, at any size.")
    return " ".join(parts)


def say_records_a_fault(n: Numbers) -> str:
    """Returns the number of records of 128 bytes that share one page fault."""
    return f"{ratio((1 << 20) / 128, n['faults'][MAP][128]):.0f}"


LESSON = Lesson(
    title="Stream or map: write calls, mapped memory, page faults, warm-up",
    intro=(
        "A record can get into the page cache in two ways. `write` is a call: the system copies the bytes. A **map** "
        "shows the file as memory: the program copies the bytes itself, without a call. But the first touch of each "
        "page of 4 KiB is a **page fault**, in which the system makes the page, and perhaps some of the pages after "
        "it. RocketMQ maps its files, and can **warm** them (`warmMapedFileEnable`): it touches each page of the next "
        "segment before the segment is needed. The time for warming is not counted here. Nothing is synced. The "
        "figures are CPU time of the writing thread: the system sometimes makes a fast writer pause until the disk "
        "catches up, and CPU time does not include such a pause. Each way runs once before it is measured, so that the "
        "figures do not include the time in which the system finds free memory."
    ),
    design=(
        "Segments are written through their map. For a message that comes alone, the map takes less time than a call, "
        "so the sender gets the response sooner. With `writeWithoutMmap`, one or two calls write all consecutive "
        "messages of a topic that arrive in one network read. Before messages are written to the next pages of the "
        "map, the store asks the operating system to create these pages. `docs/decisions/0005-map-or-calls.md` has the "
        "reasons for the choice."
    ),
    quantities=(
        Quantity("write", "A record into the page cache", "µs of CPU per record", "record size, bytes"),
        Quantity("faults", "Page faults", "faults per MiB", "record size, bytes", linear=True),
        Quantity(
            "engine",
            "Rucola's store, messages of 1 KiB",
            "µs of CPU per message",
            "messages appended together",
            linear=True,
        ),
    ),
    claims=(
        Claim(
            "RocketMQ's documentation (Message Storage)",
            "a map saves the overhead of calls that copy, which makes reading and writing files much faster (our "
            "test: a fresh map takes less time than a call for each record, at every size)",
            lambda n: all(n["write"][MAP][size] < n["write"][WRITE][size] for size in RECORD_BYTES),
            f"a record of 128 bytes takes {{write[{MAP}][128]}} µs through a fresh map and {{write[{WRITE}][128]}} µs "
            f"by `write`; a record of 64 KiB takes {{write[{MAP}][65536]}} µs through a fresh map and "
            f"{{write[{WRITE}][65536]}} µs by `write`",
            say_winners,
            say_winners,
        ),
        Claim(
            "RocketMQ's documentation (Message Storage), for small records",
            "writing a record of 128 bytes takes less time through a fresh map than by a `write` call",
            lambda n: n["write"][MAP][128] < n["write"][WRITE][128],
            f"{{write[{MAP}][128]}} µs against {{write[{WRITE}][128]}} µs",
            lambda n: (
                f"A page fault makes one page or more: on average, {say_records_a_fault(n)} such records share one "
                "page fault. With `write`, each record needs a call."
            ),
            lambda n: (
                f"A page fault makes one page or more: on average, {say_records_a_fault(n)} such records share one "
                "page fault. But this fault costs more than a `write` call for each of these records."
            ),
        ),
        Claim(
            "RocketMQ's option warmMapedFileEnable",
            "touching the pages of a segment beforehand takes the page faults out of the writes (our test: less than "
            "a tenth of the faults is left, and a record of 4 KiB takes less time)",
            lambda n: (
                all(n["faults"][WARM][s] < 0.1 * n["faults"][MAP][s] for s in RECORD_BYTES)
                and n["write"][WARM][4096] < n["write"][MAP][4096]
            ),
            f"{{faults[{MAP}][4096]}} faults for each MiB (256 pages) of fresh pages, {{faults[{WARM}][4096]}} for "
            f"warmed pages; a record of 4 KiB takes {{write[{MAP}][4096]}} and {{write[{WARM}][4096]}} µs",
            "The page faults still happen, but in the thread that warms the segment, before the segment is used.",
            lambda n: (
                "The faults are gone, but they cost too little here for the difference to show."
                if n["faults"][WARM][4096] < 0.1 * n["faults"][MAP][4096]
                else "Pages that had been touched cause a second fault: the system has write-protected them."
            ),
        ),
        Claim(
            "This project, when it chose between map and calls",
            "the map takes less CPU for a message that comes alone; a call takes less for 64 that come together",
            lambda n: (
                n["engine"][THROUGH_MAP]["1 a run"] < n["engine"][BY_CALLS]["1 a run"]
                and n["engine"][BY_CALLS]["64 a run"] < n["engine"][THROUGH_MAP]["64 a run"]
            ),
            f"a message alone takes {{engine[{THROUGH_MAP}][1 a run]}} µs through the map and "
            f"{{engine[{BY_CALLS}][1 a run]}} µs by a call; each of 64 messages together takes "
            f"{{engine[{THROUGH_MAP}][64 a run]}} µs and {{engine[{BY_CALLS}][64 a run]}} µs",
            "A call costs more than the faults of one message, and less than those of 64.",
            lambda n: (
                "On this machine the map takes less CPU in both cases."
                if n["engine"][THROUGH_MAP]["64 a run"] <= n["engine"][BY_CALLS]["64 a run"]
                else "On this machine calls take less CPU in both cases."
                if n["engine"][THROUGH_MAP]["1 a run"] >= n["engine"][BY_CALLS]["1 a run"]
                else "The medians agree with the claim, but the repetitions differ too much."
            ),
        ),
    ),
    space_bytes=_space,
    run=run,
)
