"""Writes the same messages to one log with queue units, and to a log per partition, with more and more queues."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from struct import Struct
from threading import Event

from rucola.lab import page_cache
from rucola.lab.engine import Run, body_of, message, open_store
from rucola.lab.kafka_model import PartitionWriter
from rucola.lab.lesson import Claim, Lesson, Numbers, Quantity, Size, X
from rucola.lab.text import listed, ratio
from rucola.lab.workbench import Workbench
from rucola.runtime.machine import raise_file_limit

BODY_BYTES = 1024
HEAD, UNIT = Struct(">iiiiiqqiq8sq8siqi"), Struct(">qiq")
KAFKA, PLAIN, ENGINE = "log per partition (Kafka model)", "one log, queue units (plain Python)", "Rucola's store"
CLEAN = "one log, after queue files were written back"
Burst = Callable[[], tuple[float, float]]
"""Sends a burst; returns the seconds until all of it is in the page cache, and until all of it is on the disk."""


def run(bench: Workbench) -> None:
    """Makes the files once. Each repetition sends one more burst to each layout, but two to ``PLAIN``."""
    messages = bench.choose(24, 10_000, 40_000)
    many = min(bench.choose(12, 10_000, 10_000), raise_file_limit() - 4000)
    with ExitStack() as stack:
        bursts: dict[tuple[str, int], tuple[Burst, Path]] = {}
        for queues in (1, many // 100 or 4, many // 10 or 8, many):
            for name, open_layout in ((KAFKA, partitions), (PLAIN, one_log), (ENGINE, engine)):
                if name == ENGINE and queues == many:
                    continue  # making so many queues in the engine would take longer than the rest of the lesson
                directory = stack.enter_context(bench.directory())
                burst = stack.enter_context(open_layout(directory, queues, messages))
                bursts[name, queues] = burst, directory
                burst()  # makes the files; later bursts only append to them
        for _ in bench.repetitions():
            for (name, queues), (burst, directory) in bursts.items():
                if name == PLAIN:
                    page_cache.sync(page_cache.files_below(directory))
                    _, _, kibibytes = counted(burst)
                    bench.note("pages", CLEAN, queues, kibibytes / messages)
                written, durable, kibibytes = counted(burst)
                bench.note("pages", name, queues, kibibytes / messages)
                bench.note("write", name, queues, written / messages * 1e6)
                bench.note("durable", name, queues, durable / messages * 1e6)


def counted(burst: Burst) -> tuple[float, float, float]:
    """Sends a burst; returns the two durations of ``Burst``, and the KiB of clean pages that the burst made dirty."""
    dirtied = page_cache.disk_bytes_dirtied()
    written, durable = burst()
    return written, durable, (page_cache.disk_bytes_dirtied() - dirtied) / 1024


def growth(quantity: str, name: str, n: Numbers) -> float:
    """Returns the ratio of the figure with the most queues to the figure with one queue."""
    return n[quantity][name]["last"] / n[quantity][name]["first"]


@contextmanager
def partitions(directory: Path, queues: int, messages: int) -> Iterator[Burst]:
    """Writes one log per partition, each in its own directory. Each log that got a record needs its own sync."""
    writers = [PartitionWriter(directory / str(number)) for number in range(queues)]
    value = body_of(BODY_BYTES)

    def burst() -> tuple[float, float]:
        begin = time.perf_counter()
        for number in range(messages):
            writers[number % queues].append(b"key%d" % number, value, number)
        written = time.perf_counter()
        for writer in writers:
            writer.sync()
        return written - begin, time.perf_counter() - begin

    yield burst
    for writer in writers:
        writer.close()


@contextmanager
def one_log(directory: Path, queues: int, messages: int) -> Iterator[Burst]:
    """Writes like RocketMQ: all messages to one log, then a unit of each to its queue's file. Syncs only the log."""
    log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT)
    value, end = body_of(BODY_BYTES), 0

    def burst() -> tuple[float, float]:
        nonlocal end
        begin = time.perf_counter()
        units: list[list[bytes]] = [[] for _ in range(queues)]
        for number in range(messages):
            key = b"key%d" % number
            places = (zlib.crc32(value) & 0x7FFFFFFF, number % queues, 0, number // queues, end, 0, number)
            size = HEAD.size + len(value) + len(key)
            head = HEAD.pack(size, 0, *places, bytes(8), number, bytes(8), 0, 0, len(value))
            os.write(log, head + value + key)
            units[number % queues].append(UNIT.pack(end, size, 0))
            end += size
        for queue, parts in enumerate(units):
            if parts:
                file = os.open(directory / str(queue), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.write(file, b"".join(parts))
                os.close(file)
        written = time.perf_counter()
        os.fdatasync(log)
        return written - begin, time.perf_counter() - begin

    yield burst
    os.close(log)


@contextmanager
def engine(directory: Path, queues: int, messages: int) -> Iterator[Burst]:
    """Writes with the real engine, 64 messages at a time."""
    runs = []
    for start in range(0, messages, 64):
        numbers = range(start, min(start + 64, messages))
        runs.append(Run.of([message(number, BODY_BYTES, number % queues) for number in numbers]))
    flushed = Event()
    with open_store(directory, flushed.set, flush_interval_commit_log_ms=600_000) as store:

        def burst() -> tuple[float, float]:
            begin = time.perf_counter()
            for one in runs:
                one.append(store)
                store.dispatch()
            written = time.perf_counter()
            store.flush_soon()
            while store.flushed_offset < store.max_offset:
                flushed.wait()
                flushed.clear()
            return written - begin, time.perf_counter() - begin

        yield burst


def _space(size: Size) -> int:
    return {Size.SMALL: 160, Size.NORMAL: 900, Size.LARGE: 2600}[size] << 20


def say_queues(n: Numbers, quantity: str, holds: Callable[[float, float], bool]) -> str:
    """Returns the queue counts at which ``holds(figure with partitions, figure with one log)`` is true, as text such as
    ``100 and 1,000 queues``; "" if there are none.
    """
    rows: list[X] = [row for row, one in n[quantity][PLAIN].items() if holds(n[quantity][KAFKA][row], one)]
    return "" if not rows else "1 queue" if rows == [1] else f"{listed([f'{row:,}' for row in rows])} queues"


def say_when(n: Numbers) -> str:
    """Compares the times of a log per partition with those of one log, and lists the queue counts at which a log per
    partition takes more than three times as long.
    """
    first, last = (ratio(n["durable"][KAFKA][row], n["durable"][PLAIN][row]) for row in ("first", "last"))
    many = say_queues(n, "durable", lambda kafka, plain: kafka > 3 * plain)
    return (
        f"With one queue, a log per partition takes {first} times as long as one log; with the most queues, {last} "
        f"times as long. A log per partition takes more than three times as long in these cases: {many or 'none'}."
    )


def say_page_cache(n: Numbers) -> str:
    """Says at which queue counts one log takes longer to reach the page cache than a log per partition."""
    slower = say_queues(n, "write", lambda kafka, plain: plain >= kafka)
    return (
        f"With {slower}, one log is slower. The program opens and closes the file of each queue to write its units, "
        "and with many queues it does so for only a few units. The logs of all partitions stay open."
        if slower
        else "The medians agree with the claim, but the repetitions differ too much."
    )


def say_pages(n: Numbers) -> str:
    """Says what one log gains because its queue files are synced only rarely."""
    clean, dirty = n["pages"][CLEAN]["last"], n["pages"][PLAIN]["last"]
    text = (
        "With one log, a burst that begins after all queue files were written back makes "
        f"{clean} KiB of pages dirty per message"
    )
    if clean < 1.5 * dirty:
        return f"{text}, hardly more than with queue files that are still dirty."
    return (
        f"{text}: each queue gets so few messages that nearly every unit of 20 bytes makes a different page dirty. A "
        "unit in a page that is already dirty costs nothing more. RocketMQ syncs queue files only now and then, so a "
        "page can collect up to 204 units before it is written to the disk."
    )


LESSON = Lesson(
    title="Kafka's layout compared with RocketMQ's: writing to 1, 100, 1,000 and 10,000 queues",
    intro=(
        "Kafka gives each partition a directory with a log of its own, and sparse indexes next to the log. RocketMQ "
        "writes all messages of all queues to one log, and for each message a unit of 20 bytes to the small file of "
        "its queue. The program sends bursts of messages of 1 KiB, spread evenly over the queues. For each burst it "
        "measures how long it takes until all messages are in the page cache, and how long until all messages are on "
        "the disk. To reach the disk, RocketMQ's layout syncs one log; Kafka's layout syncs the log of each partition "
        "that got a message. Kafka itself does not sync by default: it relies on replication, and leaves writeback to "
        "the operating system. Both layouts are written in plain Python here, so that they can be compared. A further "
        "column shows Rucola's store, whose inner loops are compiled, with up to 1,000 queues. The program counts a "
        "page as changed when the page becomes dirty. With one log, it counts twice: first in a burst after all queue "
        "files were written back, then in a burst with queue files that are still dirty from the previous burst, as is "
        "usual in a broker."
    ),
    design=(
        "Each queue has files of units. A send never syncs these files; after a crash, the next start rebuilds them "
        "from the log. So a send costs one sync, however many queues there are; here the engine was measured with up "
        "to 1,000 queues. The price of the single log is slower reading: see the next lesson."
    ),
    quantities=(
        Quantity("write", "Into the page cache", "µs per message", "queues"),
        Quantity("durable", "Until synced to the disk", "µs per message", "queues"),
        Quantity("pages", "Pages made dirty", "KiB per message", "queues", linear=True),
    ),
    claims=(
        Claim(
            "Texts that compare RocketMQ with Kafka by number of topics",
            "a log per partition becomes several times as slow with many partitions, if messages must be on the disk "
            "(our test: it is more than three times as slow with the most queues as with one queue)",
            lambda n: growth("durable", KAFKA, n) > 3,
            f"with the most queues {{durable[{KAFKA}][last]}} µs per message, with one queue "
            f"{{durable[{KAFKA}][first]}} µs",
            lambda n: f"Each partition that got a message needs a sync of its own. {say_when(n)}",
            lambda n: f"The syncs of many files cost little on this disk. {say_when(n)}",
        ),
        Claim(
            "Texts that compare RocketMQ with Kafka by number of topics",
            "the number of queues hardly matters to one log (our test: with the most queues, a message takes less "
            "than three times as long as with one queue)",
            lambda n: growth("durable", PLAIN, n) < 3,
            f"with the most queues {{durable[{PLAIN}][last]}} µs per message, with one queue "
            f"{{durable[{PLAIN}][first]}} µs; Rucola's store {{durable[{ENGINE}][last]}} µs with the most queues that "
            f"were tried, {{durable[{ENGINE}][first]}} µs with one queue",
            "One file is synced, whatever the number of queues.",
            "There is still only one sync, but the units of each queue are written to a file of their own.",
        ),
        Claim(
            "Kafka's documentation (Design, Persistence)",
            "writing to the page cache is cheap, so many partitions cost little if the sync is left to the system "
            "(our test: with the most queues, a message takes less than three times as long as with one queue)",
            lambda n: growth("write", KAFKA, n) < 3,
            f"into the page cache {{write[{KAFKA}][last]}} µs per message with the most queues, "
            f"{{write[{KAFKA}][first]}} µs with one queue",
            "A `write` call costs about the same whatever file it goes to.",
            "Even without a sync, many files cost more: a partition that gets only a message or two needs pages of its "
            "own for them.",
        ),
        Claim(
            "What one might expect",
            "one log is also faster if messages only go to the page cache, whatever the number of queues",
            lambda n: all(one < n["write"][KAFKA][row] for row, one in n["write"][PLAIN].items()),
            f"with one queue, a message reaches the page cache in {{write[{PLAIN}][first]}} µs with one log and in "
            f"{{write[{KAFKA}][first]}} µs with a log per partition; with the most queues, in {{write[{PLAIN}][last]}} "
            f"and {{write[{KAFKA}][last]}} µs",
            "Units are less work than sparse indexes, and the units of a queue are written together.",
            say_page_cache,
        ),
        Claim(
            "RocketMQ's documentation (Message Storage)",
            "one log with many queues changes fewer pages than a log per partition, provided that the small queue "
            "files are not written back immediately",
            lambda n: n["pages"][PLAIN]["last"] < n["pages"][KAFKA]["last"],
            f"with the most queues {{pages[{PLAIN}][last]}} KiB per message with one log, {{pages[{KAFKA}][last]}} "
            "KiB with a log per partition",
            say_pages,
            say_pages,
        ),
    ),
    space_bytes=_space,
    run=run,
    parts=("kafka_model",),
)
