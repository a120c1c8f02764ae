"""Curves of the store: the size of its log, and old messages that are not in memory.

A log of 200 GiB is not written. Each of its segments begins with 64 messages, followed by a blank record that takes
the rest of the segment. A blank record has a header of 8 bytes; the file is a hole after it. Brokers read such a
segment like any other: they find 64 messages and continue with the next segment. The queues have the entries of these
messages. There is no index: a broker would read the whole log to build it. A watermark says that Rucola has stopped
this store cleanly, so its start reads the last segment only; the Java broker ignores it.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.peers.servers import JavaServers, RucolaServers, Servers

from bench.growth_curves import Growth, Point, point_of
from bench.growth_live import PREFIX, make_topics, sends
from bench.load_lockstep import QUEUES_EACH
from bench.memory import fill
from bench.program import Round, python_load, scratch_directory
from bench.samples import HOST, QUEUES, SUFFIX, send_batch
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.common.java import string_hash
from rucola.common.topic_config import TopicConfig
from rucola.formats._message_cy import RecordPlacement, encode_rows
from rucola.formats.checksum import crc32
from rucola.formats.consume_queue import UNIT
from rucola.formats.message import BLANK, MAGIC_BLANK
from rucola.formats.segment_name import segment_name
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.recovery.watermark import Watermark, WatermarkFile

SEGMENT_BYTES = 100 << 20
MIB = 1 << 20
TOPICS, TOPIC_QUEUES = 100, 4
TURN_BYTES = 256 << 10
"""Bytes that a topic gets at a time while the store with old messages is written."""
PULLED = 12_800
LENGTH_BYTES = 1400
"""Maximum number of bytes of a message of 1 KiB in the log."""


def log_size(growth: Growth, server: str, sizes: Sequence[int]) -> Iterator[Point]:
    """Sends to a broker whose log has so many MiB, in segments of 100 MiB."""
    for size in (*sizes, sizes[0]):
        growth.show(f"log: {server}, {size:,} MiB")
        with scratch_directory() as directory:
            store = Path(directory) / "store"
            write_log(store, size * MIB // SEGMENT_BYTES)
            with _servers(
                server, store, {"mappedFileSizeCommitLog": SEGMENT_BYTES, "messageIndexEnable": "false"}
            ) as pair:
                make_topics(pair.broker, [TopicConfig(f"{PREFIX}0", QUEUES_EACH, QUEUES_EACH)])
                with python_load("load_lockstep", pair.broker, PREFIX, servers=pair) as program:
                    growth.warm(pair, program, sends)
                    growth.wait_quiet(pair, f"with {size:,} MiB")
                    yield growth.point(pair, program, size, sends)


def write_log(store: Path, segments: int) -> None:
    """Writes a log of this many segments, which are nearly all holes, and begins another one; see the docstring of the
    module.
    """
    log = store / "commitlog"
    log.mkdir(parents=True)
    units: list[list[bytes]] = [[] for _ in range(QUEUES)]
    queue_offsets = array("q", [0] * QUEUES)
    batch = send_batch(64, 1024)
    records = bytearray(64 * 2048)
    for number in range(segments + 1):
        start = number * SEGMENT_BYTES
        place = RecordPlacement(0, len(records), start, time.time_ns() // 1_000_000, False)
        view = memoryview(records)
        encode_rows(
            batch.source, batch.view, batch.table, 0, 64, records, view, place, f"{PREFIX}0".encode(), queue_offsets,
            HOST, HOST, SUFFIX, crc32,
        )  # fmt: skip
        end = 0
        for row in range(0, 64 * ROW_WIDTH, ROW_WIDTH):
            offset, size = batch.table[row + FrameColumn.PHYSICAL_OFFSET], batch.table[row + FrameColumn.RECORD_SIZE]
            units[batch.table[row + FrameColumn.QUEUE_ID]].append(UNIT.pack(offset, size, string_hash("TagA")))
            end = offset + size - start
        with (log / segment_name(start)).open("wb") as file:
            file.write(records[:end])
            if number < segments:
                file.write(BLANK.pack(SEGMENT_BYTES - end, MAGIC_BLANK))
            file.truncate(SEGMENT_BYTES)
    for queue, content in enumerate(units):
        path = store / "consumequeue" / f"{PREFIX}0" / str(queue)
        path.mkdir(parents=True)
        with (path / segment_name(0)).open("wb") as file:
            file.write(b"".join(content))
            file.truncate(MessageStoreConfig().mapped_file_size_consume_queue)
    end += segments * SEGMENT_BYTES
    WatermarkFile(Files(), str(store)).write(Watermark(end, end, end, QUEUES))


def backlog(growth: Growth, server: str, sizes: Sequence[int]) -> Iterator[Point]:
    """Pulls from random places of a store of so many MiB, none of whose pages is in memory when a round begins.

    The broker starts for each round: the system keeps pages of files that a process has mapped.
    """
    for size in (*sizes, sizes[0]):
        with scratch_directory() as directory:
            growth.show(f"backlog: {server}, writing {size:,} MiB")
            fill(
                growth.context, directory, TOPICS, TOPIC_QUEUES, size * MIB, max(1, size * MIB // TURN_BYTES // TOPICS)
            )
            store = Path(directory) / "store"
            length = size * MIB // LENGTH_BYTES // TOPICS // TOPIC_QUEUES
            rounds: list[Round] = []
            for number in range(growth.context.rounds):
                growth.check_time(f"with {size:,} MiB")
                growth.show(f"backlog: {server}, {size:,} MiB, round {number + 1}")
                drop_pages(store)
                with _servers(server, store, {}) as pair:
                    arguments = (pair.broker, str(TOPICS), str(TOPIC_QUEUES), str(length))
                    growth.wait_quiet(pair, f"with {size:,} MiB")
                    with python_load("load_backlog", *arguments, servers=pair) as program:
                        rounds.append(program.round(f"{PULLED} {number}"))
                        point = point_of(size, rounds, pair)
            yield point


def drop_pages(directory: Path) -> None:
    """Takes the pages of all files in the directory out of memory; no process may have mapped them."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


@contextmanager
def _servers(server: str, store: Path, settings: dict[str, object]) -> Iterator[Servers]:
    made: Servers = (
        RucolaServers(store=store, settings=settings)
        if server == "rucola"
        else JavaServers(store=store, settings=settings)
    )
    with made as pair:
        yield pair
