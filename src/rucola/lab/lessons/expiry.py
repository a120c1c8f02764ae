"""The cost of removing old messages: whole segments at once, or all but the newest message of each key (compaction)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rucola.common.columns import ROW_WIDTH, RecordColumn, new_table
from rucola.formats.checksum import crc32
from rucola.formats.message import walk_records
from rucola.lab import page_cache
from rucola.lab.engine import Run, message, open_store
from rucola.lab.lesson import Claim, Lesson, Quantity, Size
from rucola.lab.workbench import Workbench
from rucola.runtime.files import Files

SEGMENT_BYTES = 1 << 20
STAYING = (1, 10, 50)
"""Percentage of messages that are the newest of their key."""
REMOVE, COMPACT = "remove whole segments", "compact by key"
ROWS_MAX = 4096


def run(bench: Workbench) -> None:
    """Lets the real engine write a log with repeated keys, once for each of the two ways to remove messages."""
    messages = bench.choose(2000, 12_000, 100_000)
    for _ in bench.repetitions():
        for percent in STAYING:
            for name, way in ((REMOVE, remove), (COMPACT, compact)):
                with bench.directory() as directory:
                    segments = write(directory, messages, messages * percent // 100)
                    size = sum(path.stat().st_size for path in segments)
                    page_cache.sync(segments)
                    page_cache.drop(segments)
                    disk = page_cache.disk_bytes_read(), page_cache.disk_bytes_dirtied()
                    begin = time.perf_counter()
                    left = way(segments)
                    mebibytes = size / (1 << 20)
                    bench.note("time", name, percent, (time.perf_counter() - begin) * 1000 / mebibytes)
                    moved = page_cache.disk_bytes_read() - disk[0] + page_cache.disk_bytes_dirtied() - disk[1]
                    bench.note("moved", name, percent, moved / size)
                    bench.note("freed", name, percent, 100 - left / size * 100)


def write(directory: Path, messages: int, keys: int) -> list[Path]:
    """Writes messages of 1 KiB that use ``keys`` keys in turn; returns the full segments."""
    with open_store(directory, mapped_file_size_commit_log=SEGMENT_BYTES) as store:
        for start in range(0, messages, 100):
            Run.of([message(number % keys, 1024) for number in range(start, start + 100)]).append(store)
    return sorted((directory / "commitlog").iterdir())[: -(-store.max_offset // SEGMENT_BYTES) - 1]


def remove(segments: list[Path]) -> int:
    """Removes the files, as if all their messages had expired; returns the number of bytes left."""
    files = Files()
    for path in segments:
        files.remove(str(path))
    files.sync_directory(str(segments[0].parent))
    return 0


def compact(segments: list[Path]) -> int:
    """Cleans segments as Kafka compacts a topic: finds the newest message of each key, then copies only these."""
    newest: dict[bytes, tuple[int, int]] = {}
    for number, path in enumerate(segments):
        for key, position, _ in records(path.read_bytes()):
            newest[key] = number, position
    left = 0
    for number, path in enumerate(segments):
        log = path.read_bytes()
        stays = [log[at : at + size] for key, at, size in records(log) if newest[key] == (number, at)]
        cleaned = path.with_suffix(".cleaned")
        with cleaned.open("wb") as file:
            left += file.write(b"".join(stays))
            file.flush()
            os.fsync(file.fileno())
        cleaned.replace(path)
    Files().sync_directory(str(segments[0].parent))
    return left


def records(log: bytes) -> list[tuple[bytes, int, int]]:
    """Returns key, position and size of each record in a segment, found by the engine's own walk."""
    table, found, position = new_table(ROWS_MAX), [], 0
    while True:
        count, position, _ = walk_records(log, memoryview(log), position, len(log), 0, table, ROWS_MAX, crc32, 0)
        for row in range(0, count * ROW_WIDTH, ROW_WIDTH):
            start = table[row + RecordColumn.KEYS_POS]
            key = log[start : start + table[row + RecordColumn.KEYS_LEN]]
            found.append((key, table[row + RecordColumn.RECORD_POS], table[row + RecordColumn.RECORD_SIZE]))
        if count < ROWS_MAX:
            return found


def _space(size: Size) -> int:
    return {Size.SMALL: 16, Size.NORMAL: 128, Size.LARGE: 640}[size] << 20


LESSON = Lesson(
    title="Expiry: removing whole segments, compared with compaction",
    intro=(
        "A log that keeps growing has to give up its oldest messages at some point. RocketMQ removes a whole segment "
        "when its time is over (`fileReservedTime`), whatever it contains. Kafka can do that too. It can also "
        "**compact** a topic, to keep only the newest message of each key: a cleaner reads the segments and copies the "
        "messages to be kept into new segments. In this lesson the engine writes a log in which every key "
        "occurs more than once. Then the program removes or compacts all full segments, none of which is in memory. "
        "The compaction is our own program in Python, so the number of bytes that it reads and writes means more than "
        "the time that it takes."
    ),
    design=(
        "Age, time of day and disk space decide when a segment is removed. Queues and index then drop the entries that "
        "point before the log's first offset. Rucola has no compaction: to compact one topic in a log of all topics, "
        "the other topics would have to be copied too."
    ),
    quantities=(
        Quantity("time", "Time", "ms per MiB of log", "messages that stay, %"),
        Quantity(
            "moved", "Read from the disk and written", "bytes per byte of log", "messages that stay, %", linear=True
        ),
        Quantity("freed", "Space that is free afterwards", "% of the log", "messages that stay, %", drawn=False),
    ),
    claims=(
        Claim(
            "RocketMQ's documentation (best practice, fileReservedTime)",
            "removing whole segments costs nothing per message: hardly any bytes are read or written (our test: "
            "fewer bytes than 2 % of the log)",
            lambda n: max(n["moved"][REMOVE].values()) < 0.02,
            f"{{moved[{REMOVE}][10]}} bytes for each byte of log, {{time[{REMOVE}][10]}} ms per MiB",
            "Only the name of the file is removed and its blocks become free; no message is read.",
            "The file system writes more than expected to record the freed blocks.",
        ),
        Claim(
            "Kafka's documentation (Design, Log Compaction)",
            "compaction reads the whole log at least once, and writes a second copy of the messages that stay (our "
            "test: the bytes read and written are more than 90 % of the log's size plus the copy's size)",
            lambda n: all(n["moved"][COMPACT][p] > 0.9 * (1 + p / 100) for p in STAYING),
            f"{{moved[{COMPACT}][1]}}, {{moved[{COMPACT}][10]}} and {{moved[{COMPACT}][50]}} bytes for each byte of "
            "log when 1, 10 and 50 % stay",
            "The program reads the log twice: first to find the newest message of each key, then to copy. The second "
            "time, the log is in memory.",
            "Not all of the log had to come from the disk: some of it was still in memory.",
        ),
        Claim(
            "What one might expect",
            "removing is more than ten times as fast as compacting, however much stays",
            lambda n: all(n["time"][COMPACT][p] > 10 * n["time"][REMOVE][p] for p in STAYING),
            ", ".join(
                f"{{time[{REMOVE}][{p}]}} ms per MiB against {{time[{COMPACT}][{p}]}} when {p} % stay" for p in STAYING
            ),
            "Removing a segment reads no message.",
            "Removing reads no message, but the file system takes time to free the blocks.",
        ),
    ),
    space_bytes=_space,
    run=run,
)
