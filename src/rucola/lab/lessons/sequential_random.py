"""The same messages at the end of one log, in a file per queue, at random places; then read in and out of order."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

from rucola.lab import page_cache
from rucola.lab.engine import body_of
from rucola.lab.lesson import Claim, Lesson, Quantity, Size
from rucola.lab.workbench import Workbench

RECORD_BYTES = 1024
QUEUES = 100
GROUPS = (1, 10, 100, 1000)
LOG, FILES, PLACES = "one log", "a file per queue", "random places of one file"
COLD, WARM = "cold: from the disk", "warm: from the page cache"


def run(bench: Workbench) -> None:
    """Writing first, reading then."""
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
    """One file or a file per queue, their blocks allocated. All queues get messages in turn."""

    def __init__(self, path: Path, count: int, space: int) -> None:
        self._files = [os.open(f"{path}{number}", os.O_RDWR | os.O_CREAT) for number in range(count)]
        self._space = space // count
        self._written = 0
        for file in self._files:
            os.posix_fallocate(file, 0, self._space)
            os.fsync(file)

    def write(self, group: int, syncs: int, random: Random | None = None) -> float:
        """So many groups of messages, each made durable before the next; microseconds per message.

        Args:
            random: they go to random places, as when a database changes its pages where they lie; None = to the end.
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
        """Gives them up."""
        for file in self._files:
            os.close(file)


def read_back(bench: Workbench, random: Random) -> None:
    """A file in order and at random, from the disk and from the page cache."""
    with bench.directory() as directory:
        path = directory / "log"
        path.write_bytes(random.randbytes(1 << 20) * bench.choose(1, 128, 512))
        page_cache.sync([path])
        for name, size in (("in order 128 KiB", 131_072), ("random 4 KiB", 4096), ("random 128 KiB", 131_072)):
            for state in (COLD, WARM):
                page_cache.drop([path]) if state == COLD else path.read_bytes()
                in_order = name.startswith("in order")
                speed = read(path, size, bench.choose(8, 1000, 4000), None if in_order else random)
                bench.note("read", state, name, speed)


def read(path: Path, size: int, reads: int, random: Random | None) -> float:
    """MiB read in a second; each part is read once."""
    parts = list(range(path.stat().st_size // size))
    if random is not None:
        random.shuffle(parts)
    file = os.open(path, os.O_RDONLY)
    if random is not None:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    begin = time.perf_counter()
    for part in parts[:reads]:
        os.pread(file, size, part * size)
    seconds = time.perf_counter() - begin
    os.close(file)
    return min(reads, len(parts)) * size / seconds / (1 << 20)


def _space(size: Size) -> int:
    return {Size.SMALL: 8, Size.NORMAL: 200, Size.LARGE: 520}[size] << 20


LESSON = Lesson(
    title="Sequential and random: one log, a file per queue, random places",
    intro=(
        "Messages of 1 KiB for 100 queues are made durable in three layouts: at the end of one log, as RocketMQ does; "
        "at the end of a file per queue, as partitions do; at random places of one file, as a database does that "
        "changes pages where they lie. A **group** is what one sync makes durable; a layout with a file per "
        "queue needs a sync for each file the group touched. Then a file is read in order and at random, **cold** and "
        "**warm**."
    ),
    design="There is one log per broker, and one `fdatasync` for whatever arrived since the last.",
    quantities=(
        Quantity("durable", "Make messages of 1 KiB durable", "µs per message", "messages in a group"),
        Quantity("read", "Read a file", "MiB/s", "order and size of the reads"),
    ),
    claims=(
        Claim(
            "RocketMQ's documentation (Message Storage)",
            "one log for all queues lets the disk be written in sequence, however many queues there are",
            lambda n: n["durable"][LOG][100] * 3 < n["durable"][FILES][100],
            f"with 100 messages in a group {{durable[{LOG}][100]}} µs a message in one log, {{durable[{FILES}][100]}} "
            "µs in a file for each of 100 queues",
            "It is the number of syncs that counts: one against one per file.",
            "The syncs of many files cost little more here than that of one.",
        ),
        Claim(
            "A textbook rule of disks",
            "writing at random places is several times as slow as writing in sequence",
            lambda n: n["durable"][PLACES][100] > 3 * n["durable"][LOG][100],
            f"with 100 messages in a group {{durable[{PLACES}][100]}} µs a message at random places, "
            f"{{durable[{LOG}][100]}} µs in one log",
            "A record at a random place costs a block of its own, one at the end of a log shares it.",
            "This disk has no arm to move, and one sync writes all places.",
        ),
        Claim(
            "Kafka's documentation (Design, Persistence)",
            "reading a disk in sequence is many times as fast as reading it at random",
            lambda n: n["read"][COLD]["in order 128 KiB"] > 10 * n["read"][COLD]["random 4 KiB"],
            f"cold {{read[{COLD}][in order 128 KiB]:,.0f}} MiB/s in order, {{read[{COLD}][random 4 KiB]:,.0f}} MiB/s "
            f"in random pieces of 4 KiB, {{read[{COLD}][random 128 KiB]:,.0f}} MiB/s in random pieces of 128 KiB",
            "Reads in order are guessed ahead; at random each waits for the disk.",
            "The difference is below ten times on this disk.",
        ),
        Claim(
            "RocketMQ's documentation (Message Storage)",
            "reading in sequence through the page cache is nearly as fast as reading memory",
            lambda n: n["read"][COLD]["in order 128 KiB"] > 0.5 * n["read"][WARM]["in order 128 KiB"],
            f"in order {{read[{COLD}][in order 128 KiB]:,.0f}} MiB/s cold, "
            f"{{read[{WARM}][in order 128 KiB]:,.0f}} MiB/s warm",
            "Reading ahead hides the disk.",
            "Reading ahead helps, but what is not in memory yet comes at the speed of the disk.",
        ),
    ),
    space_bytes=_space,
    run=run,
)
