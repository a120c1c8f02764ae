"""One log and one queue file in plain Python, compared byte by byte with the files of the real engine."""

from __future__ import annotations

import os
import time
import zlib
from dataclasses import replace
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING

from rucola.common.java import string_hash
from rucola.common.message import StoreMessage
from rucola.formats.annotate import annotate_record, annotate_unit
from rucola.lab.bytes_picture import draw_fields
from rucola.lab.engine import HOST, message, open_store
from rucola.lab.lesson import Claim, Lesson, Quantity
from rucola.lab.picture import draw_panels
from rucola.lab.readings import Readings
from rucola.lab.workbench import Workbench
from rucola.runtime.clock import SystemClock

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MESSAGES = 100
STORE_TIME_MS = 1_700_000_000_000
HEAD = Struct(">iiiiiqqiq8sq8siqi")
UNIT = Struct(">qiq")
MAGIC = -626843481


class SmallestStore:
    """The whole idea in 60 lines: one log, and a queue of 20-byte units that point into the log."""

    def __init__(self, directory: Path) -> None:
        self._log = os.open(directory / "log", os.O_RDWR | os.O_CREAT)
        self._queue = os.open(directory / "queue", os.O_RDWR | os.O_CREAT)
        self.end = 0
        self.count = 0

    def append(self, message: StoreMessage) -> None:
        """Appends a record to the log and a unit to the queue."""
        topic, body, properties = message.topic, message.body, message.properties
        size = HEAD.size + len(body) + 1 + len(topic) + 2 + len(properties)
        crc = zlib.crc32(body) & 0x7FFFFFFF
        born, host = message.born_timestamp_ms, message.born_host
        places = (message.queue_id, message.flag, self.count, self.end, message.sys_flag)
        head = HEAD.pack(size, MAGIC, crc, *places, born, host, STORE_TIME_MS, HOST, 0, 0, len(body))
        tail = bytes([len(topic)]) + topic + len(properties).to_bytes(2, "big") + properties
        os.pwrite(self._log, head + body + tail, self.end)
        tag = properties.partition(b"TAGS\x01")[2].partition(b"\x02")[0]
        os.pwrite(self._queue, UNIT.pack(self.end, size, string_hash(tag.decode())), self.count * UNIT.size)
        self.end += size
        self.count += 1

    def record(self, number: int) -> bytes:
        """Returns the record of message ``number``: computes the position of its unit, which points at the record."""
        physical_offset, size, _ = UNIT.unpack(os.pread(self._queue, UNIT.size, number * UNIT.size))
        return os.pread(self._log, size, physical_offset)

    def record_by_walking(self, number: int) -> bytes:
        """Returns the record of message ``number`` without the queue: walks from record to record by their sizes."""
        position = 0
        while True:
            size = int.from_bytes(os.pread(self._log, 4, position), "big")
            if number == 0:
                return os.pread(self._log, size, position)
            position += size
            number -= 1

    def close(self) -> None:
        """Closes the files."""
        os.close(self._log)
        os.close(self._queue)


class StoppedClock(SystemClock):
    """A clock that stands still: both stores write the same store time."""

    def wall_ms(self) -> int:
        """Always the same time."""
        return STORE_TIME_MS


def run(bench: Workbench) -> None:
    """Writes the same messages to both stores and compares the files."""
    messages = [replace(message(number, 24), store_host=HOST) for number in range(MESSAGES)]
    rounds = bench.choose(2, 200, 1000)
    log = units = b""
    for _ in bench.repetitions():
        with bench.directory() as directory:
            plain = SmallestStore(directory)
            plain.append(messages[0])
            begin = time.perf_counter()
            for one in messages[1:]:
                plain.append(one)
            bench.note("append", "60 lines of Python", "each for itself", _us(begin, MESSAGES - 1))
            for number in (0, 25, 50, 99):
                begin = time.perf_counter()
                for _ in range(rounds):
                    plain.record(number)
                bench.note("find", "by its queue unit", number, _us(begin, rounds))
                begin = time.perf_counter()
                for _ in range(rounds):
                    plain.record_by_walking(number)
                bench.note("find", "by walking along the log", number, _us(begin, rounds))
            plain.close()
            log, units = (directory / "log").read_bytes(), (directory / "queue").read_bytes()
            with open_store(directory / "store", clock=StoppedClock(), enabled_append_prop_crc=False) as store:
                store.put_message(messages[0])
                store.dispatch()  # makes the queue's file
                begin = time.perf_counter()
                for one in messages[1:]:
                    store.put_message(one)
                store.dispatch()
                bench.note("append", "Rucola's store", "each for itself", _us(begin, MESSAGES - 1))
            name = f"{0:020d}"
            engine_log = (directory / "store" / "commitlog" / name).read_bytes()[: len(log)]
            engine_units = (directory / "store" / "consumequeue" / "lab" / "0" / name).read_bytes()[: len(units)]
        for kind, mine, theirs in (("log", log, engine_log), ("queue file", units, engine_units)):
            bench.note("bytes", "60 lines of Python", kind, len(mine))
            bench.note("bytes", "different bytes in Rucola's files", kind, _different(mine, theirs))
    last = annotate_unit(units[-UNIT.size :], UNIT.size * (MESSAGES - 1))
    start = int(last[0].value or 0)
    header = ["position", "field", "bytes", "value"]
    for title, fields in ((UNIT_TITLE, last), (RECORD_TITLE, annotate_record(log[start:], start))):
        bench.show(title, header, [[str(f.position), f.name, f.data.hex(), _text(f.value)] for f in fields])


UNIT_TITLE = "Unit 99 of the queue file, the same in both stores"
RECORD_TITLE = "The record to which this unit points, the same in both stores"


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _us(begin: float, count: int) -> float:
    return (time.perf_counter() - begin) / count * 1e6


def _different(mine: bytes, theirs: bytes) -> int:
    return sum(a != b for a, b in zip(mine, theirs, strict=True))


def draw(figure: Figure, readings: Readings) -> None:
    """Draws the bytes of a unit and its record in the upper half of the picture, and the times in the lower half."""
    figure.set_size_inches(10.8, 8.4)
    parts = figure.subfigures(2, 1, height_ratios=(1.1, 1), squeeze=False)
    above, below = parts[0, 0], parts[1, 0]
    draw_fields(above.add_subplot(), [(one.title, one.rows) for one in readings.listings])
    draw_panels(below, LESSON.quantities[:2], readings)


LESSON = Lesson(
    title="The smallest store: one log and a queue of 20-byte units",
    intro=(
        "A message becomes a **record** at the end of the log. The record has a head of fixed fields, then the body, "
        "the topic and the properties. The message's queue gets a **unit** of 20 bytes: where the record starts (8 "
        "bytes), how long it is (4), and a hash of the message's tag (8). A reader finds message *n* of a queue "
        "through unit *n*, at byte 20 × *n*. In this lesson, 60 lines of plain Python write 100 messages in this way, "
        "and the real engine writes the same messages. Then the program compares the files byte by byte."
    ),
    design=(
        "The engine adds segments, a checksum of the whole record, recovery, and compiled code that appends many "
        "messages in one call. With that checksum switched off, as in this lesson, the engine's files contain the "
        "same bytes as those of the 60 lines."
    ),
    quantities=(
        Quantity("find", "Find message n of the queue", "µs", "n, position in the queue", linear=True),
        Quantity("append", "Append one message", "µs", "how messages are appended"),
        Quantity("bytes", "Files of 100 messages", "bytes", "file", drawn=False),
    ),
    claims=(
        Claim(
            "RocketMQ's documentation (Message Storage)",
            "a unit of a ConsumeQueue takes 20 bytes, so a queue is read like an array (our test: finding the last "
            "of 100 messages takes less than twice as long as finding the first)",
            lambda n: (
                n["bytes"]["60 lines of Python"]["queue file"] == 20 * MESSAGES
                and n["find"]["by its queue unit"][99] < 2 * n["find"]["by its queue unit"][0]
            ),
            "{bytes[60 lines of Python][queue file]} bytes for 100 units; message 0 takes "
            "{find[by its queue unit][0]} µs to find, message 99 {find[by its queue unit][99]} µs",
            "The reader computes the position of a unit, so two reads find any message.",
            lambda n: (
                "The look-ups of message 0 and message 99 make the same two reads, so something else took the time."
                if n["bytes"]["60 lines of Python"]["queue file"] == 20 * MESSAGES
                else "The queue file has another length: that is a defect, please report it."
            ),
        ),
        Claim(
            "RocketMQ's documentation (Message Storage)",
            "it is inefficient to walk along the CommitLog for the messages of one queue (our test: finding the last "
            "of 100 messages takes more than five times as long as through its unit)",
            lambda n: n["find"]["by walking along the log"][99] > 5 * n["find"]["by its queue unit"][99],
            "message 99 takes {find[by walking along the log][99]} µs by walking, {find[by its queue unit][99]} µs by "
            "its unit",
            "A walk reads the size of each record on the way, and in a real log millions of records may lie between "
            "two messages of a queue.",
            "With 100 messages the walk is short; a real log has millions.",
        ),
        Claim(
            "Rucola's README",
            "Rucola's files are the same as RocketMQ's (our test: they equal, byte for byte, the files of another "
            "program that writes the same messages in RocketMQ's format)",
            lambda n: sum(n["bytes"]["different bytes in Rucola's files"].values()) == 0,
            "{bytes[different bytes in Rucola's files][log]} bytes of the log and "
            "{bytes[different bytes in Rucola's files][queue file]} of the queue file differ",
            "Both programs wrote the same records and units.",
            "That is a defect, please report it.",
        ),
        Claim(
            "What one might expect",
            "60 lines of Python that only append messages are faster than a whole engine",
            lambda n: (
                n["append"]["60 lines of Python"]["each for itself"] < n["append"]["Rucola's store"]["each for itself"]
            ),
            "{append[60 lines of Python][each for itself]} µs per message against "
            "{append[Rucola's store][each for itself]} µs, without a disk sync",
            "For each message, the 60 lines make two `write` calls. The engine stores into mapped memory instead, but "
            "it checks the message and the state of the store, describes the message in a row of integers, and makes "
            "queue units in a second step.",
            "For each message, the 60 lines make two `write` calls. The engine makes none: it stores into mapped "
            "memory, and makes the queue units of many messages together.",
        ),
    ),
    space_bytes=lambda size: 80 << 20,
    run=run,
    draw=draw,
)
