"""The same messages into one log with queue units, and into a log per partition, for ever more queues."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from struct import Struct
from threading import Event

from rucola.lab import page_cache
from rucola.lab.engine import Run, body_of, message, open_store
from rucola.lab.kafka_model import PartitionWriter
from rucola.lab.lesson import Claim, Lesson, Numbers, Quantity, Size
from rucola.lab.workbench import Workbench
from rucola.runtime.machine import raise_file_limit

BODY_BYTES = 1024
UNIT = Struct(">qiq")
KAFKA, PLAIN, ENGINE = "log per partition (Kafka model)", "one log, queue units (plain Python)", "Rucola's store"
Burst = Callable[[], tuple[float, float]]
"""Sends a burst; seconds until all is in the page cache, and until all is on the disk."""


def run(bench: Workbench) -> None:
    """Files are made once; each repetition sends one more burst, spread over all queues in turn."""
    messages = bench.choose(24, 10_000, 40_000)
    many = min(bench.choose(12, 10_000, 10_000), raise_file_limit() - 4000)
    with ExitStack() as stack:
        bursts: dict[tuple[str, int], Burst] = {}
        for queues in (1, many // 100 or 4, many // 10 or 8, many):
            for name, open_layout in ((KAFKA, partitions), (PLAIN, one_log), (ENGINE, engine)):
                if name == ENGINE and queues == many:
                    continue  # to make so many queues would take longer than all the rest
                directory = stack.enter_context(bench.directory())
                burst = bursts[name, queues] = stack.enter_context(open_layout(directory, queues, messages))
                burst()  # makes the files, which later ones only go on with
        for _ in bench.repetitions():
            for (name, queues), burst in bursts.items():
                dirtied = page_cache.disk_bytes_dirtied()
                written, durable = burst()
                bench.note("write", name, queues, written / messages * 1e6)
                bench.note("durable", name, queues, durable / messages * 1e6)
                bench.note("pages", name, queues, (page_cache.disk_bytes_dirtied() - dirtied) / messages / 1024)


@contextmanager
def partitions(directory: Path, queues: int, messages: int) -> Iterator[Burst]:
    """A directory per partition. Each partition that got something needs a sync of its own."""
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
    """As RocketMQ: all messages to one log, their units to a file per queue a little later. Only the log is synced."""
    log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT)
    record, end = body_of(BODY_BYTES + 100), 0

    def burst() -> tuple[float, float]:
        nonlocal end
        begin = time.perf_counter()
        units: list[list[bytes]] = [[] for _ in range(queues)]
        for number in range(messages):
            os.write(log, record)
            units[number % queues].append(UNIT.pack(end, len(record), 0))
            end += len(record)
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
    """The real engine, reads of 64 messages."""
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


def _growth(quantity: str, name: str, n: Numbers) -> float:
    """With most queues against with one."""
    return n[quantity][name]["last"] / n[quantity][name]["first"]


LESSON = Lesson(
    title="Kafka's layout beside RocketMQ's: writing to 1, 100, 1,000 and 10,000 queues",
    intro=(
        "Kafka gives each partition a directory with a log of its own, and sparse indexes beside it. RocketMQ writes "
        "all messages of all queues to one log, and a unit of 20 bytes to a small file per queue. The program sends "
        "bursts of messages of 1 KiB, spread evenly over the queues, and takes two times: until all is in the page "
        "cache, and until all is on the disk. For the second, one layout syncs one log, the other the log of each "
        "partition that got something. Kafka by itself does not sync: its documentation trusts replication, and leaves "
        "writing back to the operating system. Both layouts are written in plain Python here, so that they can be "
        "compared; the real engine, compiled in its inner loops, stands beside them, with up to 1,000 queues."
    ),
    design=(
        "Topics and queues are cheap to write to: a queue is a file of units that is never synced for a send, and made "
        "again from the log after a crash. What they cost is reading; see the next lesson."
    ),
    quantities=(
        Quantity("write", "Into the page cache", "µs per message", "queues"),
        Quantity("durable", "Onto the disk", "µs per message", "queues"),
        Quantity("pages", "Pages changed, which the disk gets", "KiB per message", "queues", linear=True),
    ),
    claims=(
        Claim(
            "Texts that compare RocketMQ with Kafka by number of topics",
            "a log per partition becomes several times as slow when partitions are many, if messages must be on the "
            "disk",
            lambda n: _growth("durable", KAFKA, n) > 3,
            f"with most queues {{durable[{KAFKA}][last]}} µs a message, with one {{durable[{KAFKA}][first]}} µs",
            "Each partition needs a sync of its own, for hardly more than one message.",
            "The syncs of many files cost little on this disk.",
        ),
        Claim(
            "Texts that compare RocketMQ with Kafka by number of topics",
            "one log hardly notices how many queues there are (less than 3 times)",
            lambda n: _growth("durable", PLAIN, n) < 3,
            f"with most queues {{durable[{PLAIN}][last]}} µs a message, with one {{durable[{PLAIN}][first]}} µs; "
            f"Rucola's store {{durable[{ENGINE}][last]}} and {{durable[{ENGINE}][first]}} µs",
            "One file is synced, whatever the number of queues.",
            "The log is still one; what grows is the work for a unit in a file of its own per queue.",
        ),
        Claim(
            "Kafka's documentation (Design, Persistence)",
            "writing to the page cache is cheap, so that with the sync left to the system partitions cost little (less "
            "than 3 times)",
            lambda n: _growth("write", KAFKA, n) < 3,
            f"into the page cache {{write[{KAFKA}][last]}} µs a message with most queues, {{write[{KAFKA}][first]}} µs "
            "with one",
            "A call to write costs about the same whatever file it goes to.",
            "Even without a sync, a file for a message or two costs pages and an index entry of its own.",
        ),
        Claim(
            "RocketMQ's documentation (Message Storage)",
            "queue files are small, so that one log with many queues changes fewer pages than a log per partition",
            lambda n: n["pages"][PLAIN]["last"] < n["pages"][KAFKA]["last"],
            f"with most queues {{pages[{PLAIN}][last]}} KiB a message with one log, {{pages[{KAFKA}][last]}} KiB with "
            "a log per partition",
            "A unit is 20 bytes, a page of units serves 204 messages.",
            "With so few messages per queue each unit takes a page of its own, as each message does in a partition.",
        ),
    ),
    space_bytes=_space,
    run=run,
    parts=("kafka_model",),
)
