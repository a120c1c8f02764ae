"""Reads the same messages cold in Kafka's and RocketMQ's layout: one queue, all queues, one message by time or key."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rucola.errors import StoreError
from rucola.formats.message import decode_message
from rucola.lab import page_cache
from rucola.lab.engine import TOPIC, Run, body_of, message, open_store, read_store
from rucola.lab.kafka_model import PartitionReader, PartitionWriter
from rucola.lab.lesson import Claim, Lesson, Quantity, Size
from rucola.lab.text import ratio
from rucola.lab.workbench import Workbench
from rucola.runtime.clock import SystemClock
from rucola.store.message_store import MessageStore

QUEUES = 100
BODY_BYTES = 1024
SEGMENT_BYTES = 512 << 10  # small, because opening a store loads its newest segment into the page cache
FIRST_MS = 1_700_000_000_000
KAFKA, ENGINE = "log per partition (Kafka model)", "one log (Rucola's store)"
ONE, ALL, BY_TIME, BY_KEY = "one queue", "all queues", "by time", "by key"


class Wanted(NamedTuple):
    """The message that the searches by time and by key look for."""

    queue: int
    offset: int
    time_ms: int
    key: bytes


class Ticking(SystemClock):
    """A clock that the program sets. It advances by 1 ms after each round, in which every queue gets a message."""

    now_ms = FIRST_MS

    def wall_ms(self) -> int:
        """The store time of the messages that are being written."""
        return self.now_ms


def run(bench: Workbench) -> None:
    """Writes the messages once; then reads them in each way, after dropping the files from the page cache."""
    messages = bench.choose(200, 100_000, 400_000)
    alone, every, offset = range(7, 8), range(QUEUES), messages // QUEUES * 3 // 4
    wanted = Wanted(7, offset, FIRST_MS + offset, b"key%d" % (offset * QUEUES + 7))
    ways: list[tuple[str, Callable[[Path], int], Callable[[MessageStore], int]]] = [
        (ONE, lambda kafka: read_partitions(kafka, alone), lambda store: read_queues(store, alone)),
        (ALL, lambda kafka: read_partitions(kafka, every), lambda store: read_queues(store, every)),
        (BY_TIME, lambda kafka: partition_by_time(kafka, wanted), lambda store: queue_by_time(store, wanted)),
        (BY_KEY, lambda kafka: partition_by_key(kafka, wanted), lambda store: store_by_key(store, wanted)),
    ]
    with bench.directory() as kafka, bench.directory() as engine:
        write(kafka, engine, messages)
        page_cache.sync([*page_cache.files_below(kafka), *page_cache.files_below(engine)])
        for _ in bench.repetitions():
            for row, in_kafka, in_engine in ways:
                page_cache.drop(page_cache.files_below(kafka))
                measure(bench, KAFKA, row, kafka, partial(in_kafka, kafka))
                page_cache.drop(page_cache.files_below(engine))
                with read_store(engine, mapped_file_size_commit_log=SEGMENT_BYTES) as store:
                    measure(bench, ENGINE, row, engine, partial(in_engine, store))


def write(kafka: Path, engine: Path, messages: int) -> None:
    """Writes the messages to the queues in turn, in both layouts."""
    partitions = [PartitionWriter(kafka / str(number)) for number in range(QUEUES)]
    clock, value = Ticking(), body_of(BODY_BYTES)
    with open_store(engine, clock=clock, message_index_enable=True, mapped_file_size_commit_log=SEGMENT_BYTES) as store:
        for start in range(0, messages, QUEUES):
            clock.now_ms = FIRST_MS + start // QUEUES
            for queue in range(QUEUES):
                partitions[queue].append(b"key%d" % (start + queue), value, clock.now_ms)
            Run.of([message(start + queue, BODY_BYTES, queue) for queue in range(QUEUES)]).append(store)
            store.dispatch()
    for partition in partitions:
        partition.close()


def measure(bench: Workbench, series: str, row: str, directory: Path, work: Callable[[], int]) -> None:
    """Notes the time of ``work``, the KiB read from the disk, and the KiB of pages that are in memory afterwards."""
    files = page_cache.files_below(directory)
    pages, disk = page_cache.resident_pages(files), page_cache.disk_bytes_read()
    begin = time.perf_counter()
    work()
    bench.note("time", series, row, (time.perf_counter() - begin) * 1000)
    bench.note("disk", series, row, (page_cache.disk_bytes_read() - disk) / 1024)
    bench.note("memory", series, row, (page_cache.resident_pages(files) - pages) * page_cache.PAGE / 1024)


def read_partitions(kafka: Path, queues: range) -> int:
    """Reads each partition's log from its beginning to its end; returns the number of bytes in all values."""
    total = 0
    for queue in queues:
        with closing(PartitionReader(kafka / str(queue))) as partition:
            total += sum(len(record.value) for record in partition.records())
    return total


def read_queues(store: MessageStore, queues: range) -> int:
    """Reads like a consumer that pulls: units, then their records; returns the total size of the records."""
    total = 0
    for queue in queues:
        queue_offset, end = 0, store.max_queue_offset(TOPIC, queue)
        while queue_offset < end:
            result = store.get_message(TOPIC, queue, queue_offset, 32, 1 << 20)
            total += len(b"".join(result.views))
            queue_offset = result.next_offset
    return total


def partition_by_time(kafka: Path, wanted: Wanted) -> int:
    """Finds a message through the time index, the offset index and a piece of the log."""
    with closing(PartitionReader(kafka / str(wanted.queue))) as partition:
        return same(partition.at_time(wanted.time_ms).offset, wanted.offset)


def queue_by_time(store: MessageStore, wanted: Wanted) -> int:
    """Finds a message by a binary search over units; the time of each is read from the record to which it points."""
    return same(store.offset_by_time(TOPIC, wanted.queue, wanted.time_ms), wanted.offset)


def partition_by_key(kafka: Path, wanted: Wanted) -> int:
    """Finds a message by reading a known partition's log up to the wanted key, because keys have no index."""
    with closing(PartitionReader(kafka / str(wanted.queue))) as partition:
        return same(partition.with_key(wanted.key).offset, wanted.offset)


def store_by_key(store: MessageStore, wanted: Wanted) -> int:
    """Finds a message through the hash table of the IndexFile, whatever queue it is in."""
    [view] = store.query_by_key(TOPIC, wanted.key).views
    return same(decode_message(view).queue_offset, wanted.offset)


def same(found: int, wanted: int) -> int:
    """Checks that the search found the wanted message."""
    if found != wanted:
        raise StoreError(f"found message {found}, wanted {wanted}")
    return found


LESSON = Lesson(
    title="Kafka's layout compared with RocketMQ's: reading, and finding by time and by key",
    intro=(
        f"{QUEUES} queues got messages of 1 KiB in turn. So in the one log of RocketMQ's layout, successive messages "
        "of a queue lie about 110 KiB apart. In Kafka's layout, the messages of a partition lie side by side. "
        "Everything is read **cold**: before each reading, the program drops all files from the page cache. It counts "
        "the bytes that came from the disk, and the memory that holds pages of the files afterwards. The memory can be "
        "more than these bytes: pages that were allocated but never written, such as the unused rest of a queue file, "
        "need no read from the disk. Kafka's layout is a model in plain Python; RocketMQ's layout is the real engine. "
        "So their bytes can be compared, but not their times."
    ),
    design=(
        "A consumer that keeps up reads from the page cache what producers have just written. A consumer that is far "
        "behind reads scattered records from the disk. Its pulls wait in threads of their own, so that no other "
        "consumer waits."
    ),
    quantities=(
        Quantity("disk", "Read from the disk", "KiB", "what is read"),
        Quantity("memory", "Page cache that the files occupy afterwards", "KiB", "what is read"),
        Quantity("time", "Time (a model in Python, a compiled engine)", "ms", "what is read"),
    ),
    claims=(
        Claim(
            "Kafka's documentation (Design, Persistence)",
            "a partition's messages lie together, so a reader of one partition reads little else from the disk (our "
            "test: less than half as much as a reader of one queue reads from one log)",
            lambda n: n["disk"][KAFKA][ONE] < 0.5 * n["disk"][ENGINE][ONE],
            f"reading one of the {QUEUES} queues takes {{disk[{KAFKA}][{ONE}]}} KiB from the disk with a log per "
            f"partition, and {{disk[{ENGINE}][{ONE}]}} KiB with one log",
            "In one log, a record of the queue shares pages with records of other queues, and the system may read "
            "more pages around the record.",
            "Here the scattered records share few pages with other records.",
        ),
        Claim(
            "RocketMQ's documentation (Message Storage)",
            "reading messages through a queue causes random reads of the CommitLog, which weigh on performance (our "
            "test: reading one queue alone takes more than three times as long as a queue takes on average if all are "
            "read)",
            lambda n: n["time"][ENGINE][ONE] * QUEUES > 3 * n["time"][ENGINE][ALL],
            lambda n: (
                f"with one log, one queue alone takes {n['time'][ENGINE][ONE]} ms; all {QUEUES} queues, one after the "
                f"other, take {n['time'][ENGINE][ALL]} ms, which is {ratio(n['time'][ENGINE][ALL], QUEUES)} ms for each"
            ),
            "The reader of one queue alone waits for the disk at each record. If all queues are read, the later ones "
            "find pages that the earlier ones loaded.",
            "Reading one queue alone takes at most three times as long: scattered reads of this disk are quick enough.",
        ),
        Claim(
            "Kafka's documentation (Implementation, Log)",
            "with the time index and the offset index, a search by time reads only a few pages (our test: it reads "
            "less from the disk than RocketMQ's search does)",
            lambda n: n["disk"][KAFKA][BY_TIME] < n["disk"][ENGINE][BY_TIME],
            f"{{disk[{KAFKA}][{BY_TIME}]}} KiB with the indexes, {{disk[{ENGINE}][{BY_TIME}]}} KiB by a search over "
            "units and records",
            "In the time index, times lie side by side. Without this index, each step of the search reads a record, "
            "and the system also reads pages around the record.",
            "After the index search, a piece of the log is read. This piece alone is larger than all that RocketMQ's "
            "search reads.",
        ),
        Claim(
            "RocketMQ's documentation (Message Storage)",
            "the IndexFile finds a message by its key without reading the messages before it (our test: this look-up "
            "reads less than half as many bytes from the disk as reading a partition up to the key)",
            lambda n: n["disk"][ENGINE][BY_KEY] < 0.5 * n["disk"][KAFKA][BY_KEY],
            f"{{disk[{ENGINE}][{BY_KEY}]}} KiB through the index, {{disk[{KAFKA}][{BY_KEY}]}} KiB by reading a "
            "partition up to the key",
            "A look-up in the index reads a slot, an entry and a record; without the index, all messages before the "
            "wanted one are read. A reader without an index must also know the partition, or read all partitions.",
            lambda n: (
                f"The index look-up reads {ratio(n['disk'][ENGINE][BY_KEY], n['disk'][KAFKA][BY_KEY])} times as many "
                "bytes as the search in the partition: the system reads ahead around slot, entry and record. The "
                "partition is short here: a longer partition takes more reads from the disk, a longer index does not. "
                "A reader without an index must also know the partition, or read all partitions."
            ),
        ),
    ),
    space_bytes=lambda size: {Size.SMALL: 96, Size.NORMAL: 420, Size.LARGE: 1400}[size] << 20,
    run=run,
    parts=("kafka_model",),
)
