"""Writes messages to one log, a file per queue and random places; then reads a file in order and at random."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

from rucola.lab import page_cache
from rucola.lab.engine import body_of
from rucola.lab.lesson import Claim, Lesson, Numbers, Quantity, Size
from rucola.lab.workbench import Workbench

RECORD_BYTES = 1024
QUEUES = 100
GROUPS = (1, 10, 100, 1000)
LOG, FILES, PLACES = "one log", "a file per queue", "random places of one file"
COLD, WARM, MEMORY = "cold: from the disk", "warm: from the page cache", "from memory of the process"
IN_ORDER, RANDOM_4, RANDOM_128 = "in order 128 KiB", "random 4 KiB", "random 128 KiB"


def run(bench: Workbench) -> None:
    """Measures the writes, then the reads."""
    syncs, space = bench.choose(2, 20, 100), bench.choose(1 << 20, 64 << 20, 128 << 20)
    queues = bench.choose(4, QUEUES, QUEUES)
    for number in bench.repetitions():
        random = Random(number)
        with bench.directory() as directory:
            log, places = Files(directory / "log", 1, space), Files(directory / "places", 1, space)
            per_queue = Files(directory / "queue", queues, space)
            for group in GROUPS:
                bench.note("durable", LOG, group, log.write(group, syncs))
                bench.note("durable", FILES, group, per_queue.write(group, syncs))
                bench.note("durable", PLACES, group, places.write(group, syncs, random))
            for files in (log, places, per_queue):
                files.close()
        read_back(bench, random)


class Files:
    """One file, or one file per queue, with all blocks allocated; messages go to the queues in turn."""

    def __init__(self, path: Path, count: int, space: int) -> None:
        self._files = [os.open(f"{path}{number}", os.O_RDWR | os.O_CREAT) for number in range(count)]
        self._space = space // count
        self._written = 0
        for file in self._files:
            os.posix_fallocate(file, 0, self._space)
            os.fsync(file)

    def write(self, group: int, syncs: int, random: Random | None = None) -> float:
        """Writes ``syncs`` groups and makes each durable before the next; returns microseconds per message.

        Args:
            random: chooses places for the messages, as when a database changes pages in place; None appends them.
        """
        record, slots = body_of(RECORD_BYTES), self._space // RECORD_BYTES
        begin = time.perf_counter()
        for _ in range(syncs):
            touched = set()
            for _ in range(group):
                queue = self._written % len(self._files)
                place = self._written // len(self._files) if random is None else random.randrange(slots)
                os.pwrite(self._files[queue], record, place % slots * RECORD_BYTES)
                touched.add(queue)
                self._written += 1
            for queue in touched:
                os.fdatasync(self._files[queue])
        return (time.perf_counter() - begin) / (syncs * group) * 1e6

    def close(self) -> None:
        """Closes the files."""
        for file in self._files:
            os.close(file)


def read_back(bench: Workbench, random: Random) -> None:
    """Measures reads of a file, in order and at random, from the disk and from the page cache; for comparison, it also
    measures how fast the same bytes are copied in memory.
    """
    with bench.directory() as directory:
        path = directory / "log"
        content = random.randbytes(1 << 20) * bench.choose(1, 128, 512)
        path.write_bytes(content)
        page_cache.sync([path])
        for name, size in ((IN_ORDER, 131_072), (RANDOM_4, 4096), (RANDOM_128, 131_072)):
            places = list(range(0, len(content), size))
            if name != IN_ORDER:
                random.shuffle(places)
            places = places[: bench.choose(8, 1000, 4000)]
            for state in (COLD, WARM):
                page_cache.drop([path]) if state == COLD else path.read_bytes()
                bench.note("read", state, name, read(path, size, places, in_order=name == IN_ORDER))
            bench.note("read", MEMORY, name, copy(content, size, places))


def read(path: Path, size: int, places: list[int], in_order: bool) -> float:
    """Returns the MiB read per second; each read makes a bytes object of its own."""
    file = os.open(path, os.O_RDONLY)
    if not in_order:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    begin = time.perf_counter()
    for place in places:
        os.pread(file, size, place)
    seconds = time.perf_counter() - begin
    os.close(file)
    return len(places) * size / seconds / (1 << 20)


def copy(content: bytes, size: int, places: list[int]) -> float:
    """Returns the MiB copied per second within the memory of the process, without a system call."""
    begin = time.perf_counter()
    for place in places:
        content[place : place + size]
    return len(places) * size / (time.perf_counter() - begin) / (1 << 20)


def _space(size: Size) -> int:
    return {Size.SMALL: 8, Size.NORMAL: 200, Size.LARGE: 520}[size] << 20


def say_single(n: Numbers) -> str:
    """Compares how long a single message takes in the three layouts; in each layout it needs one sync."""
    log, files, places = (n["durable"][name][1] for name in (LOG, FILES, PLACES))
    figures = f"{log} µs in one log, {files} µs in a file per queue and {places} µs at a random place"
    if max(log, files, places) < 1.25 * min(log, files, places):
        return f"A single message needs one sync in each layout, and takes about as long in each: {figures}."
    text = f"A single message needs one sync in each layout, but the times differ: {figures}."
    if log > min(files, places):
        return text
    return (
        f"{text} At the end of the log, four messages share a block of the disk. In the other layouts, most messages "
        "are the first in their block, and the file system may also have to record that the block now contains data."
    )


LESSON = Lesson(
    title="Sequential and random: one log, a file per queue, random places",
    intro=(
        "The program makes messages of 1 KiB for 100 queues durable in three layouts. RocketMQ appends all messages to "
        "one log. Kafka appends the messages of each queue (partition) to a file of its own. A database that changes "
        "pages in place writes its data at random places of one file. A **group** is a number of messages that become "
        "durable together. The messages of a group share one sync if they are in one file; with a file per queue, each "
        "file that the group touched needs a sync. Then the program reads a file in order and at random, **cold** and "
        "**warm**. For comparison, the program copies the same bytes within its memory."
    ),
    design="A broker has one log, and each `fdatasync` covers all messages written since the previous `fdatasync`.",
    quantities=(
        Quantity("durable", "Make messages of 1 KiB durable", "µs per message", "messages in a group"),
        Quantity("read", "Read a file", "MiB/s", "order and size of the reads"),
    ),
    claims=(
        Claim(
            "RocketMQ's documentation (Message Storage)",
            "one log for all queues lets the disk be written in sequence, however many queues there are (our test: if "
            "100 messages become durable together, one log takes less than a third of the time that a file per queue "
            "takes)",
            lambda n: n["durable"][LOG][100] * 3 < n["durable"][FILES][100],
            f"with 100 messages in a group, {{durable[{LOG}][100]}} µs per message in one log, "
            f"{{durable[{FILES}][100]}} µs in a file for each of 100 queues",
            lambda n: f"One log needs one sync for the group; 100 files need a sync each. {say_single(n)}",
            lambda n: (
                "One log needs one sync for the group; 100 files need a sync each, but these syncs cost little here. "
                f"{say_single(n)}"
            ),
        ),
        Claim(
            "A textbook rule of disks",
            "writing at random places is several times as slow as writing in sequence (our test: more than three "
            "times as slow if 100 messages become durable together)",
            lambda n: n["durable"][PLACES][100] > 3 * n["durable"][LOG][100],
            f"with 100 messages in a group, {{durable[{PLACES}][100]}} µs per message at random places, "
            f"{{durable[{LOG}][100]}} µs in one log",
            "At a random place each record takes a block of the disk; at the end of a log four records share a block.",
            "This disk has no arm to move, and one sync writes all messages of a group.",
        ),
        Claim(
            "Kafka's documentation (Design, Persistence)",
            "reading a disk in sequence is many times as fast as reading it at random (our test: more than ten times "
            "as fast, with pieces of 128 KiB in order and of 4 KiB at random)",
            lambda n: n["read"][COLD]["in order 128 KiB"] > 10 * n["read"][COLD]["random 4 KiB"],
            f"cold, {{read[{COLD}][{IN_ORDER}]}} MiB/s in order, {{read[{COLD}][{RANDOM_4}]}} MiB/s in random pieces "
            f"of 4 KiB, {{read[{COLD}][{RANDOM_128}]}} MiB/s in random pieces of 128 KiB",
            "If a program reads in order, the system reads ahead. At random, each read waits for the disk, so larger "
            "pieces need fewer waits.",
            "On this disk, reading in sequence is less than ten times as fast.",
        ),
        Claim(
            "RocketMQ's documentation (Message Storage)",
            "reading in sequence through the page cache is nearly as fast as copying memory (our test: more than "
            "half as fast)",
            lambda n: n["read"][WARM][IN_ORDER] > 0.5 * n["read"][MEMORY][IN_ORDER],
            f"in order {{read[{WARM}][{IN_ORDER}]}} MiB/s from the warm page cache, {{read[{MEMORY}][{IN_ORDER}]}} "
            "MiB/s from memory",
            "Reading and copying both move the bytes once; a read of 128 KiB adds one call.",
            "The call, and the walk over the pages of the file, take more time than the copy itself.",
        ),
        Claim(
            "What one might expect",
            "the system reads ahead, so reading a cold file in order is nearly as fast as reading a warm file in order "
            "(our test: more than half as fast)",
            lambda n: n["read"][COLD][IN_ORDER] > 0.5 * n["read"][WARM][IN_ORDER],
            f"in order {{read[{COLD}][{IN_ORDER}]}} MiB/s cold, {{read[{WARM}][{IN_ORDER}]}} MiB/s warm",
            "The disk delivers the next pages while the reader uses the previous pages.",
            "Reading ahead helps, but the bytes still arrive at the speed of the disk.",
        ),
    ),
    space_bytes=_space,
    run=run,
)
