"""The process that tests kill: appends through the store and reports each message that counts as acknowledged.

Usage: ``python -m tests.crash.writer DIRECTORY sync|async index|plain SEED``. It writes one line to standard output for
each acknowledged message: its number, topic, queue id, queue offset and physical offset. With ``async`` a message is
acknowledged when it is appended, with ``sync`` when the flushed offset has reached its end. It runs until it is killed.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections import deque
from random import Random

from rucola.common.columns import ROW_WIDTH, FrameColumn, new_table
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus
from rucola.store.row_run import RowRun

TOPICS, QUEUES, RUN_MAX = 3, 4, 24
HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"


def config(path: str, mode: str, index: bool) -> MessageStoreConfig:
    return MessageStoreConfig(
        store_path_root_dir=path,
        mapped_file_size_commit_log=65536,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=200,
        max_index_num=2000,
        message_index_enable=index,
        flush_disk_type=FlushDiskType.SYNC_FLUSH if mode == "sync" else FlushDiskType.ASYNC_FLUSH,
        flush_interval_commit_log_ms=20,
        flush_interval_consume_queue_ms=20,
        flush_consume_queue_thorough_interval_ms=50,
    )


def body_of(number: int) -> bytes:
    random = Random(number)
    return random.randbytes(random.choice([10, 100, 1000, 3000]))


def properties_of(number: int) -> bytes:
    return b"KEYS\x01k%d\x02TAGS\x01t%d\x02UNIQ_KEY\x01U%d\x02" % (number, number % 5, number)


def run_of(numbers: range, random: Random) -> tuple[bytearray, array[int]]:
    """Returns messages as a buffer and a table of rows, as the broker passes them to the store."""
    source, table = bytearray(), new_table(len(numbers))
    for row, number in enumerate(numbers):
        body, properties = body_of(number), properties_of(number)
        base = row * ROW_WIDTH
        table[base + FrameColumn.QUEUE_ID] = random.randrange(QUEUES)
        table[base + FrameColumn.BODY_POS] = len(source)
        table[base + FrameColumn.BODY_LEN] = len(body)
        table[base + FrameColumn.PROPERTIES_POS] = len(source) + len(body)
        table[base + FrameColumn.PROPERTIES_LEN] = len(properties)
        source += body + properties
    return source, table


def main(path: str, mode: str, index: bool, seed: int) -> None:
    random, flushed = Random(seed), threading.Event()
    store = MessageStore(config(path, mode, index), Files(), SystemClock())
    store.listen(on_flushed=flushed.set)
    store.load()
    store.start()
    waiting: deque[tuple[int, str]] = deque()
    number = seed * 1_000_000
    while True:
        count = random.randrange(1, RUN_MAX)
        source, table = run_of(range(number, number + count), random)
        topic = b"T%d" % random.randrange(TOPICS)
        status = store.append_rows(RowRun(source, memoryview(source), table, 0, count), topic, HOST)
        if status is not PutMessageStatus.PUT_OK:
            sys.exit(f"{status}")
        for row in range(count):
            base = row * ROW_WIDTH
            place = table[base + FrameColumn.PHYSICAL_OFFSET]
            fields = (number + row, topic.decode(), table[base + FrameColumn.QUEUE_ID])
            line = " ".join(map(str, (*fields, table[base + FrameColumn.QUEUE_OFFSET], place)))
            waiting.append((place + table[base + FrameColumn.RECORD_SIZE], line))
        number += count
        if mode == "sync" and random.random() < 0.8:
            flushed.wait(10)
            flushed.clear()
        acknowledged = store.flushed_offset if mode == "sync" else store.max_offset
        lines = []
        while waiting and waiting[0][0] <= acknowledged:
            lines.append(waiting.popleft()[1] + "\n")
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
        if random.random() < 0.7:
            store.dispatch()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "index", int(sys.argv[4]))
