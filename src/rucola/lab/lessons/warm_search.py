"""A sparse index that grows while readers look into its end: which of its pages does a search touch?"""

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
"""Entries by which the index grows: 32 KiB of it, 16 MiB of log."""


def run(bench: Workbench) -> None:
    """Indexes of logs of four sizes; the log itself is not needed."""
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
    """An entry for each 4,096 bytes of log, four records apart."""
    path.write_bytes(index_bytes(entries))


@cache
def index_bytes(entries: int) -> bytes:
    """Made once for all repetitions."""
    return b"".join(OFFSET_ENTRY.pack(4 * number, 0) for number in range(entries))


def look_up(path: Path, warm: bool, step: int) -> tuple[int, float]:
    """A reader that keeps up: the newest record is looked up again and again while the index grows.

    Returns:
        Pages of the index that the searches brought into memory, and microseconds of one search among them all.
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
    title="The warm part of a binary search in a growing index",
    intro=(
        "Kafka looks offsets up by a binary search in an index file, mostly for readers who are near its end. A "
        "plain binary search begins in the middle of the whole index: as the index grows, the search looks at pages "
        "that nobody has touched for a long time. Each of them may have to come from the disk while a request waits. "
        f"Kafka therefore searches the last {WARM_BYTES:,} bytes first, the **warm section**. The program lets an "
        f"index grow by {GROWN_PAGES} pages. After every few entries it looks the newest record up, and it counts the "
        "pages that were brought into memory. Index and search are a model of Kafka's, written from its "
        "documentation and comments."
    ),
    design=(
        "RocketMQ's queues need no search by offset: unit *n* is at byte 20 × *n*. Only a search by time is a binary "
        "search, over units and the records they lead to; it is rare."
    ),
    quantities=(
        Quantity("pages", "Pages of the index touched", "pages of 4 KiB", "size of the log, MiB", linear=True),
        Quantity("time", "One look-up, cold pages included", "µs", "size of the log, MiB"),
    ),
    claims=(
        Claim(
            "Kafka's source, comment in AbstractIndex",
            "a plain binary search also touches pages that are not near the end of the index, a search of the warm "
            "section first does not",
            lambda n: n["pages"][PLAIN][5120] > n["pages"][WARM][5120] <= GROWN_PAGES + 3,
            f"while the index of a log of 5 GiB grew by {GROWN_PAGES} pages, {{pages[{PLAIN}][5120]}} of its pages "
            f"were touched by the plain search, {{pages[{WARM}][5120]}} with the warm section",
            "The warm section is three pages at most, and moves with the end.",
            "Pages are counted in memory, and something else than the search brought some there: the system read "
            "ahead.",
        ),
        Claim(
            "Kafka's source, comment in AbstractIndex",
            "the more log there is, the more pages the plain search touches, while the warm section has a limit (the "
            f"{GROWN_PAGES} pages by which the index grew, and three more)",
            lambda n: n["pages"][PLAIN][5120] > n["pages"][PLAIN][16] and n["pages"][WARM][5120] <= GROWN_PAGES + 3,
            f"from 16 MiB to 5 GiB of log {{pages[{PLAIN}][16]}} pages became {{pages[{PLAIN}][5120]}} with the plain "
            f"search; with the warm section {{pages[{WARM}][16]}} became {{pages[{WARM}][128]}} at 128 MiB and "
            f"{{pages[{WARM}][5120]}} at 5 GiB",
            "Each time the index doubles, the plain search takes one more step, to a page far from the end. The "
            f"index of 16 MiB of log is only {GROWN_PAGES} pages long.",
            "Something else touched pages of the index: the system read ahead, or another process reads it.",
        ),
        Claim(
            "An expectation one may have",
            "the warm section makes the look-up faster as well (less than 0.8 of the time, at 5 GiB of log)",
            lambda n: n["time"][WARM][5120] < 0.8 * n["time"][PLAIN][5120],
            f"{{time[{WARM}][5120]}} µs with it, {{time[{PLAIN}][5120]}} µs without, at 5 GiB of log",
            "There are fewer steps, and fewer pages to wait for.",
            "Both are dominated by what one step costs in this program; what the warm section saves is the wait for a "
            "cold page now and then.",
        ),
    ),
    space_bytes=lambda size: 16 << 20,
    run=run,
    parts=("kafka_model",),
)
