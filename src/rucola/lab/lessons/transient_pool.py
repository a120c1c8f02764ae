"""Times appends to the real engine while its flush thread is busy. The appends go through the map, through the
transient pool, or by ``write`` calls.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.lab.engine import Run, message, open_store
from rucola.lab.lesson import Claim, Lesson, Numbers, Quantity, Size
from rucola.lab.workbench import Workbench

MAP, POOL, CALLS = "map", "transient pool", "write calls"
WAYS: dict[str, dict[str, Any]] = {
    MAP: {},
    POOL: {"transient_store_pool_enable": True, "transient_store_pool_size": 3},
    CALLS: {"write_without_mmap": True},
}
MEDIAN, MOST, LONGEST = "half take less than", "99.9 % take less than", "longest"


def run(bench: Workbench) -> None:
    """Measures one sender of messages of 1 KiB under ASYNC_FLUSH, with syncs as often as possible."""
    for _ in bench.repetitions():
        for name, options in WAYS.items():
            with bench.directory() as directory:
                times, unsafe, left = append(directory, bench.choose(200, 30_000, 200_000), options)
            times.sort()
            bench.note("append", name, MEDIAN, times[len(times) // 2] * 1e6)
            bench.note("append", name, MOST, times[len(times) * 999 // 1000] * 1e6)
            bench.note("append", name, LONGEST, times[-1] * 1e6)
            bench.note("memory", name, "most at a time", unsafe / 1024)
            bench.note("memory", name, "1 s after the last append", left / 1024)


def append(directory: Path, messages: int, options: dict[str, Any]) -> tuple[list[float], int, int]:
    """Appends messages one by one.

    Returns:
        The seconds of each append, the greatest number of bytes that only the process's memory held, and the number of
        such bytes at the end.
    """
    one = Run.of([message(0, 1024)])
    interval = {"flush_interval_commit_log_ms": 1, "flush_commit_log_least_pages": 0}
    with open_store(directory, **{**interval, **options}) as store:
        times, unsafe = [], 0
        for number in range(messages):
            begin = time.perf_counter()
            one.append(store)
            times.append(time.perf_counter() - begin)
            if number % 64 == 0:
                unsafe = max(unsafe, in_memory(store, one))
        wait_until = time.perf_counter() + 1
        while in_memory(store, one) and time.perf_counter() < wait_until:
            time.sleep(0.01)
        return times, unsafe, in_memory(store, one)


def in_memory(store: Any, last: Run) -> int:
    """Returns the number of bytes that are appended but not yet in the file: readers do not see them, and a kill loses
    them.
    """
    row = (last.count - 1) * ROW_WIDTH
    end = last.table[row + FrameColumn.PHYSICAL_OFFSET] + last.table[row + FrameColumn.RECORD_SIZE]
    return int(max(end - store.confirm_offset, 0))


def _space(size: Size) -> int:
    return {Size.SMALL: 64, Size.NORMAL: 128, Size.LARGE: 448}[size] << 20


def say_longest(n: Numbers) -> str:
    """Says whether the pool helps the longest append as well."""
    pool, mapped = n["append"][POOL][LONGEST], n["append"][MAP][LONGEST]
    if pool < 0.5 * mapped:
        return "The pool also shortens the longest append to less than half."
    return (
        "The longest append to the pool still takes at least half as long as the longest through the map, so "
        "writeback is not what delays it."
    )


def say_price(n: Numbers) -> str:
    """Says whether the median append takes longer by ``write`` calls than through the map."""
    calls, mapped = n["append"][CALLS][MEDIAN], n["append"][MAP][MEDIAN]
    if calls <= mapped:
        return "The median append takes no longer by a call than through the map."
    return f"The median append is slower: {calls} µs by calls, {mapped} µs through the map."


LESSON = Lesson(
    title="The transient pool: appending to memory outside the page cache, and its price",
    intro=(
        "An append through the map writes to memory pages. The flush thread may be writing the same pages to the disk, "
        "and then the append has to wait. RocketMQ's **transient store pool** (`transientStorePoolEnable`) holds "
        "buffers in the memory of the process. An append copies the message into such a buffer, a **commit** thread "
        "writes the buffer to the file a little later, and then the flush thread syncs the file. Here one sender "
        "appends messages of 1 KiB while the store syncs as often as it can; each append is timed. The process is not "
        "killed. Instead, the program checks from time to time how many acknowledged bytes are in no file yet; a kill "
        "at that time would lose these bytes."
    ),
    design=(
        "Rucola can write the log through the map, through the pool, or by `write` calls. The map is the default: "
        "with it, a message that was acknowledged under ASYNC_FLUSH survives the end of the process. "
        "`transientStorePoolEnable` selects the pool, and `writeWithoutMmap` selects the calls."
    ),
    quantities=(
        Quantity("append", "One append while the disk is busy", "µs", "share of the appends"),
        Quantity("memory", "Appended, but not in the file yet", "KiB", "when", linear=True),
    ),
    claims=(
        Claim(
            "RocketMQ's operations guide, which recommends the transient pool for asynchronous flush",
            "while the store writes to the disk, the slowest appends take less time with the pool than through the "
            "map (our test: the 99.9th percentile is lower)",
            lambda n: n["append"][POOL][MOST] < n["append"][MAP][MOST],
            f"99.9 % of the appends take less than {{append[{POOL}][{MOST}]}} µs with the pool and "
            f"{{append[{MAP}][{MOST}]}} µs through the map; the longest took {{append[{POOL}][{LONGEST}]}} and "
            f"{{append[{MAP}][{LONGEST}]}} µs",
            lambda n: f"An append to the pool never waits for a page under writeback. {say_longest(n)}",
            "Here appends through the map are no slower: the map's pages are created before messages are written to "
            "them, and not every operating system makes an append wait for a page under writeback.",
        ),
        Claim(
            "What one might infer from RocketMQ's operations guide",
            "the median append also takes less time with the pool than through the map",
            lambda n: n["append"][POOL][MEDIAN] < n["append"][MAP][MEDIAN],
            f"{{append[{POOL}][{MEDIAN}]}} µs with the pool, {{append[{MAP}][{MEDIAN}]}} µs through the map, "
            f"{{append[{CALLS}][{MEDIAN}]}} µs by calls",
            "The pool's memory is ready before it is needed, while the map causes a page fault now and then.",
            "The pool adds work: the commit thread is woken, and while it runs it takes the interpreter lock from the "
            "sender.",
        ),
        Claim(
            "RocketMQ's option transientStorePoolEnable",
            "with the pool, some acknowledged messages are in no file yet, so a kill of the process would lose them; "
            "without the pool there are no such messages",
            lambda n: n["memory"][POOL]["most at a time"] > 0 == n["memory"][MAP]["most at a time"],
            f"with the pool, up to {{greatest memory[{POOL}][most at a time]}} KiB were only in the memory of the "
            f"process (in the median repetition {{memory[{POOL}][most at a time]}} KiB); with the map, "
            f"{{greatest memory[{MAP}][most at a time]}} KiB",
            "The system keeps the bytes that were written through a map or by a call, even if the process is killed. "
            "The commit thread writes the pool's messages to the file a little later, and may fall behind a fast "
            "sender.",
            "Whenever the program checked, the commit thread had written everything.",
        ),
        Claim(
            "What one might expect",
            "plain `write` calls shorten the slowest appends too, and put no message at risk (our test: the 99.9th "
            "percentile is lower than through the map)",
            lambda n: n["append"][CALLS][MOST] < n["append"][MAP][MOST] and n["memory"][CALLS]["most at a time"] == 0,
            f"99.9 % of the appends take less than {{append[{CALLS}][{MOST}]}} µs by calls and "
            f"{{append[{MAP}][{MOST}]}} µs through the map; the longest took {{append[{CALLS}][{LONGEST}]}} and "
            f"{{append[{MAP}][{LONGEST}]}} µs; {{greatest memory[{CALLS}][most at a time]}} KiB were at risk with "
            f"calls",
            say_price,
            "A `write` call also waits for a busy disk, and for no less time than an append through the map.",
        ),
    ),
    space_bytes=_space,
    run=run,
)
