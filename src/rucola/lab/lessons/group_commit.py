"""The cost of a disk sync that several senders share, and of a database's redo log, which rests on the same idea."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event

from rucola.lab.engine import Run, body_of, message, open_store
from rucola.lab.lesson import Claim, Lesson, Numbers, Quantity, Size
from rucola.lab.readings import Amount
from rucola.lab.text import listed, ratio
from rucola.lab.workbench import Workbench
from rucola.store.config import FlushDiskType

GROUPS = (1, 4, 16, 64, 256)
PAGES = (1, 4, 16)
PAGE_BYTES = 4096
DATABASE_BYTES = 16 << 20
PLAIN, ENGINE = "bare calls: write, fdatasync", "Rucola's store, SYNC_FLUSH"
IN_PLACE, REDO = "pages changed in place, then synced", "changes appended to a redo log, then synced"
REDO_ALL = "redo log and later writes of the pages"


def run(bench: Workbench) -> None:
    """Measures groups of messages, then transactions that change pages."""
    syncs = bench.choose(2, 100, 500)
    transactions = bench.choose(2, 100, 500)
    for number in bench.repetitions():
        for group in GROUPS:
            for name, way in ((PLAIN, by_plain_log), (ENGINE, by_engine)):
                with bench.directory() as directory:
                    seconds = way(directory, group, syncs) / syncs
                bench.note("message", name, group, seconds / group * 1e6)
                bench.note("wait", name, group, seconds * 1e6)
        for pages in PAGES:
            with bench.directory() as directory:
                bench.note("transaction", IN_PLACE, pages, in_place(directory, transactions, pages, Random(number)))
            with bench.directory() as directory:
                answered, everything = by_redo_log(directory, transactions, pages, Random(number))
            bench.note("transaction", REDO, pages, answered)
            bench.note("transaction", REDO_ALL, pages, everything)


def by_plain_log(directory: Path, group: int, syncs: int) -> float:
    """Repeats ``syncs`` times: writes ``group`` messages of 1 KiB, then syncs once for all of them. Returns seconds."""
    records = body_of(1200) * group
    file = new_file(directory / "log", 1200 * group * (syncs + 1))
    os.write(file, records)
    os.fdatasync(file)
    begin = time.perf_counter()
    for _ in range(syncs):
        os.write(file, records)
        os.fdatasync(file)
    seconds = time.perf_counter() - begin
    os.close(file)
    return seconds


def by_engine(directory: Path, group: int, syncs: int) -> float:
    """Repeats ``syncs`` times: ``group`` senders each send 1 KiB and wait for the disk. Returns seconds."""
    flushed = Event()
    senders = Run.of([message(number, 1024) for number in range(group)])
    with open_store(directory, flushed.set, flush_disk_type=FlushDiskType.SYNC_FLUSH) as store:

        def send_all() -> None:
            senders.append(store)
            while store.flushed_offset < store.max_offset:
                flushed.wait()
                flushed.clear()

        send_all()
        return timed(send_all, syncs)


def timed(work: Callable[[], None], times: int) -> float:
    """Returns the seconds that ``times`` calls of ``work`` take."""
    begin = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - begin


def in_place(directory: Path, transactions: int, pages: int, random: Random) -> float:
    """Returns microseconds per transaction. A crash during a transaction may leave only some of its pages changed."""
    database = new_file(directory / "database", DATABASE_BYTES)
    page = body_of(PAGE_BYTES)

    def transaction() -> None:
        for place in places(pages, random):
            os.pwrite(database, page, place)
        os.fdatasync(database)

    microseconds = timed(transaction, transactions) / transactions * 1e6
    os.close(database)
    return microseconds


def by_redo_log(directory: Path, transactions: int, pages: int, random: Random) -> tuple[float, float]:
    """Returns two durations in microseconds per transaction: until the transaction is durable, and the same duration
    plus the transaction's share of the checkpoint that writes the pages.

    A change takes 100 bytes in the log. After a crash, recovery repeats the changes of each transaction whose record
    in the log is complete.
    """
    log, database = new_file(directory / "redo", 4 << 20), new_file(directory / "database", DATABASE_BYTES)
    change, page = body_of(100), body_of(PAGE_BYTES)
    dirty: set[int] = set()

    def transaction() -> None:
        changed = places(pages, random)
        os.write(log, change * len(changed))
        os.fdatasync(log)
        dirty.update(changed)  # the changed pages are in memory

    begin = time.perf_counter()
    answered = timed(transaction, transactions)
    for place in sorted(dirty):
        os.pwrite(database, page, place)
    os.fdatasync(database)
    everything = time.perf_counter() - begin
    os.close(log)
    os.close(database)
    return answered / transactions * 1e6, everything / transactions * 1e6


def places(count: int, random: Random) -> list[int]:
    """Returns the positions of the pages that a transaction changes."""
    return [random.randrange(DATABASE_BYTES // PAGE_BYTES) * PAGE_BYTES for _ in range(count)]


def new_file(path: Path, size: int) -> int:
    """Makes a file of zeros with all blocks allocated; returns its descriptor."""
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, size)
    os.fsync(file)
    return file


def _space(size: Size) -> int:
    return {Size.SMALL: 64, Size.NORMAL: 128, Size.LARGE: 448}[size] << 20


def say_gap(n: Numbers) -> str:
    """Says how much longer a lone sender, and one of 256 senders, waits with the engine than with bare calls."""
    alone, together = (n["wait"][ENGINE][group] - n["wait"][PLAIN][group] for group in (1, 256))
    over = [str(g) for g in (16, 64, 256) if n["message"][ENGINE][g] >= 2 * n["message"][PLAIN][g]]
    limit = f"With {listed(over)} senders, the engine takes at least twice as long. " if over else ""
    if together <= 0:
        return f"{limit}One of 256 senders waits no longer with the engine than with bare calls."
    longer = f"{Amount(alone)} µs longer" if alone > 0 else "no longer"
    text = (
        f"{limit}A lone sender waits {longer} with the engine than with bare calls; one of 256 senders waits "
        f"{Amount(together)} µs longer"
    )
    if together < 2 * alone:
        return (
            f"{text}. So most of the difference is paid once for a group: for example, the switch to the sync thread."
        )
    return (
        f"{text}. So most of the difference is a cost per message, about {Amount((together - alone) / 255)} µs: "
        "each record is built, checked and stored in fresh pages of a map."
    )


LESSON = Lesson(
    title="Group commit: what a disk sync costs, who shares it, and the redo log",
    intro=(
        "A message is first written and then synced; once the sync has returned, the message is safe from a power cut. "
        "One sync covers everything that was written before it began, so senders that wait at the same time can share "
        "a sync: **group commit**. A database has the same problem with the pages that a transaction changes. The "
        "database's solution is a **redo log**: all changes go to the end of the log with one sync, and the pages are "
        "written later. RocketMQ's CommitLog plays the part of the redo log: consume queues and index can be rebuilt "
        "from the CommitLog."
    ),
    design=(
        "With `SYNC_FLUSH` one thread syncs the log, and each `fdatasync` confirms all messages that were written "
        "before this call began. No send waits for a sync of the consume queues or the index: after a crash, the next "
        "start rebuilds both from the log."
    ),
    quantities=(
        Quantity("message", "Durable messages of 1 KiB", "µs per message", "messages that share a sync"),
        Quantity("wait", "How long each sender waits", "µs", "messages that share a sync"),
        Quantity("transaction", "Durable transactions", "µs per transaction", "pages changed", linear=True),
    ),
    claims=(
        Claim(
            "RocketMQ's documentation (Message Disk Flush)",
            "waiting for the disk after each message has a big impact on performance (our test: a message with a sync "
            "of its own takes more than ten times as long as a message that shares its sync with 255 others)",
            lambda n: n["message"][ENGINE][1] > 10 * n["message"][ENGINE][256],
            f"{{message[{ENGINE}][1]}} µs per message with a sync for each, {{message[{ENGINE}][256]}} µs with a sync "
            "for 256 messages",
            "A message with a sync of its own takes the time of the whole sync.",
            "On this disk, a sync takes less than ten times as long as the other work for a message.",
        ),
        Claim(
            "Database textbooks, on group commit",
            "a sync for 64 messages takes hardly longer than a sync for a single message (our test: less than twice "
            "as long)",
            lambda n: n["wait"][PLAIN][64] < 2 * n["wait"][PLAIN][1],
            f"with bare calls, a sender waits {{wait[{PLAIN}][1]}} µs alone, {{wait[{PLAIN}][16]}} µs with 15 others, "
            f"{{wait[{PLAIN}][64]}} µs with 63 others",
            "The time to write the bytes is small compared with the round trip to the disk.",
            lambda n: (
                "Here the number of bytes matters as well as the round trip to the disk. Still, a sync for 64 "
                f"messages takes {ratio(n['wait'][PLAIN][64], n['wait'][PLAIN][1])} times as long as a sync for a "
                "single message, not 64 times."
            ),
        ),
        Claim(
            "This project",
            "with 16 senders or more, the engine's group commit costs at most twice as much as bare `write` and "
            "`fdatasync` calls",
            lambda n: all(n["message"][ENGINE][g] < 2 * n["message"][PLAIN][g] for g in (16, 64, 256)),
            "in µs per message, with the engine and with bare calls: "
            + ", ".join(
                f"{{message[{ENGINE}][{g}]}} and {{message[{PLAIN}][{g}]}} with {g} senders" for g in (16, 64, 256)
            ),
            lambda n: f"What the engine adds is small compared with the sync. {say_gap(n)}",
            say_gap,
        ),
        Claim(
            "MySQL's manual, on InnoDB's redo log",
            "a transaction that changes 16 pages is durable sooner when its changes go to a log than when the pages "
            "themselves are written",
            lambda n: n["transaction"][REDO][16] < n["transaction"][IN_PLACE][16],
            f"{{transaction[{REDO}][16]}} µs with the log, {{transaction[{IN_PLACE}][16]}} µs in place; "
            f"{{transaction[{REDO_ALL}][16]}} µs with the log if the later writes of the pages are counted too",
            "The log takes one short write at its end, and the pages take 16 writes at 16 places.",
            "Here a sync of 16 places takes no longer than a sync of the log. The log is still needed: without it, a "
            "crash during a transaction may leave only some of its pages changed.",
        ),
    ),
    space_bytes=_space,
    run=run,
)
