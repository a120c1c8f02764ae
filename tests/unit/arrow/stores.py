"""A store with small files that holds the messages of ``records``."""

from __future__ import annotations

from pathlib import Path

from tests.unit.arrow.records import message

from rucola.common.hosts import host_bytes
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore

SEGMENT_BYTES = 16 * 1024


def open_store(
    path: Path,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    queue_file_units: int = 64,
    index_entries: int = 10_000,
    clock: Clock | None = None,
) -> MessageStore:
    config = MessageStoreConfig(
        store_path_root_dir=str(path),
        mapped_file_size_commit_log=segment_bytes,
        mapped_file_size_consume_queue=20 * queue_file_units,
        max_hash_slot_num=100,
        max_index_num=index_entries,
    )
    store = MessageStore(config, Files(), clock or SystemClock())
    store.store_host = host_bytes("127.0.0.1", 10911)
    store.load()
    store.start()
    return store


def put(store: MessageStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        one = message(number)
        one.store_host = store.store_host
        store.put_message(one)
    store.dispatch()
