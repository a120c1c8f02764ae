"""Counts how many pages of a growing sparse index are touched by searches for entries near its end."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

from rucola.lab import page_cache
from rucola.lab.kafka_model import INDEX_INTERVAL_BYTES, OFFSET_ENTRY, WARM_BYTES, SparseIndex
from rucola.lab.lesson import Claim, Lesson, Quantity
from rucola.lab.workbench import Workbench

LOG_MEBIBYTES = (16, 128, 1024, 5120)
PLAIN, WARM = "plain binary search", "warm section first"
GROWTH = 4096
"""Number of entries by which the index grows: 32 KiB of index, 16 MiB of log."""


def run(bench: Workbench) -> None:
    """Measures the indexes of logs of four sizes; the logs themselves are not needed."""
    step = bench.choose(256, 16, 4)
    for _ in bench.repetitions():
        for log_mebibytes in LOG_MEBIBYTES:
            with bench.directory() as directory:
                path = directory / "0.index"
                write_index(path, log_mebibytes * (1 << 20) // INDEX_INTERVAL_BYTES)
                page_cache.sync([path])
                for name in (PLAIN, WARM):
                    pages, microseconds = look_up(path, name == WARM, step)
                    bench.note("pages", name, log_mebibytes, pages)
                    bench.note("time", name, log_mebibytes, microseconds)


def write_index(path: Path, entries: int) -> None:
    """Writes an index with an entry for each 4,096 bytes of log; entries are four records apart."""
    path.write_bytes(index_bytes(entries))


@cache
def index_bytes(entries: int) -> bytes:
    """Returns the bytes of an index; made once for all repetitions."""
    return b"".join(OFFSET_ENTRY.pack(4 * number, 0) for number in range(entries))


def look_up(path: Path, warm: bool, step: int) -> tuple[int, float]:
    """Looks up the newest record again and again while the index grows, like a reader that keeps up with the log.

    Returns:
        Number of pages of the index that the searches brought into memory, and mean time of a search in microseconds.
    """
    page_cache.drop([path])
    index = SparseIndex(path, OFFSET_ENTRY)
    last = index.entries
    searches = 0
    begin = time.perf_counter()
    for entries in range(last - GROWTH, last, step):
        index.entries = entries
        index.entry_before(4 * entries - 1, warm)
        searches += 1
    microseconds = (time.perf_counter() - begin) / searches * 1e6
    index.close()
    return page_cache.resident_pages([path]), microseconds


GROWN_PAGES = GROWTH * OFFSET_ENTRY.size // page_cache.PAGE

LESSON = Lesson(
    title="The warm section of a growing index",
    intro=(
        "Kafka looks up offsets by a binary search in an index file, mostly for readers near the end of the log. A "
        "**plain** binary search begins in the middle of the whole index. As the index grows, the search reaches pages "
        "that nobody has touched for a long time. Each of these pages may have to come from the disk while a request "
        f"waits. Kafka therefore searches the last {WARM_BYTES:,} bytes first, the **warm section**. The program lets "
        f"an index grow by {GROWN_PAGES} pages. Every few entries, it looks up the newest record. At the end, it "
        "counts the pages that were loaded into memory. Index and search are a model of Kafka's, written from its "
        "documentation and the comments in its source."
    ),
    design=(
        "RocketMQ's queues need no search by offset: unit *n* is at byte 20 × *n*. Only a search by time, which is "
        "rare, is a binary search over units and the records to which they point."
    ),
    quantities=(
        Quantity("pages", "Pages of the index touched", "pages of 4 KiB", "size of the log, MiB", linear=True),
        Quantity("time", "One look-up, cold pages included", "µs", "size of the log, MiB"),
    ),
    claims=(
        Claim(
            "Kafka's source, comment in AbstractIndex",
            "a plain binary search also touches pages far from the end of the index; a search that begins with the "
            "warm section does not",
            lambda n: n["pages"][PLAIN][5120] > n["pages"][WARM][5120] <= GROWN_PAGES + 3,
            f"while the index of a log of 5 GiB grew by {GROWN_PAGES} pages, the plain search touched "
            f"{{pages[{PLAIN}][5120]}} pages, and the search with a warm section touched {{pages[{WARM}][5120]}}",
            "The warm section spans at most three pages, and moves with the end of the index.",
            "The count includes pages that the system read ahead.",
        ),
        Claim(
            "Kafka's source, comment in AbstractIndex",
            "the longer the log, the more pages of its index a plain binary search touches; a search that begins with "
            f"the warm section touches a limited number of pages (our test: at most {GROWN_PAGES + 3} pages while the "
            f"index grows by {GROWN_PAGES} pages)",
            lambda n: n["pages"][PLAIN][5120] > n["pages"][PLAIN][16] and n["pages"][WARM][5120] <= GROWN_PAGES + 3,
            f"the plain search touched {{pages[{PLAIN}][16]}} pages with 16 MiB of log and {{pages[{PLAIN}][5120]}} "
            f"with 5 GiB; the search with a warm section touched {{pages[{WARM}][16]}} with 16 MiB, "
            f"{{pages[{WARM}][128]}} with 128 MiB and {{pages[{WARM}][5120]}} with 5 GiB",
            "Each time the index doubles, the plain search takes one more step, to a page far from the end. The "
            f"index of 16 MiB of log is only {GROWN_PAGES} pages long.",
            "Something else brought in pages of the index: the system read ahead, or another process read the index.",
        ),
        Claim(
            "What one might expect",
            "the warm section also makes the look-up faster (our test: with 5 GiB of log, less than 0.8 times the "
            "time of a plain search)",
            lambda n: n["time"][WARM][5120] < 0.8 * n["time"][PLAIN][5120],
            f"with 5 GiB of log, a look-up takes {{time[{WARM}][5120]}} µs with the warm section and "
            f"{{time[{PLAIN}][5120]}} µs without it",
            "The search has fewer steps, and waits for fewer pages.",
            "Both searches spend most of the time in the program's own code; the warm section only saves an occasional "
            "wait for a cold page.",
        ),
    ),
    space_bytes=lambda size: 16 << 20,
    run=run,
    parts=("kafka_model",),
)
