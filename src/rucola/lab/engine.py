"""The real engine as lessons use it: a store in a directory, and prepared messages that are appended many at a time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from rucola.common.columns import new_table
from rucola.common.message import StoreMessage
from rucola.errors import StoreError
from rucola.formats.message import fill_row
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.files import Files
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus
from rucola.store.row_run import AS_THEY_ARE, RowRun

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
TOPIC = b"lab"
_OPTIONS: dict[str, Any] = {
    "mapped_file_size_commit_log": 16 << 20,
    "mapped_file_size_consume_queue": 100_000,
    "max_hash_slot_num": 100_000,
    "max_index_num": 400_000,
}


@contextmanager
def open_store(
    directory: Path, on_flushed: Callable[[], None] | None = None, clock: Clock | None = None, **options: Any
) -> Iterator[MessageStore]:
    """Opens the engine over ``directory`` and stops it cleanly at the end. ``options`` are options of
    ``MessageStoreConfig``.
    """
    options = {"message_index_enable": False, **_OPTIONS, **options}
    config = MessageStoreConfig(store_path_root_dir=str(directory), **options)
    store = MessageStore(config, Files(), clock or SystemClock())
    store.listen(on_flushed=on_flushed)
    store.load()
    try:
        store.start()
        yield store
    finally:
        store.shutdown()


@contextmanager
def read_store(directory: Path, **options: Any) -> Iterator[MessageStore]:
    """Opens the engine over a directory from ``open_store``, for reading only."""
    options = {**_OPTIONS, **options}
    config = MessageStoreConfig(store_path_root_dir=str(directory), **options)
    store = MessageStore(config, Files(), SystemClock())
    store.load()
    try:
        yield store
    finally:
        store.shutdown()


@cache
def body_of(size: int) -> bytes:
    """Returns a body that does not compress; equal sizes give equal bodies."""
    return Random(1).randbytes(size)


def message(number: int, body_bytes: int, queue_id: int = 0, topic: bytes = TOPIC) -> StoreMessage:
    """Returns a message with a key and a tag."""
    properties = b"KEYS\x01key%d\x02TAGS\x01tag%d\x02" % (number, number % 4)
    return StoreMessage(topic, queue_id, body_of(body_bytes), properties, 1_700_000_000_000 + number, HOST)


@dataclass(frozen=True)
class Run:
    """Messages of one topic, prepared for one call of ``append_rows``. The broker makes such a call for messages that
    arrived in one read from a connection.
    """

    source: bytearray
    view: memoryview
    table: array[int]
    count: int
    topic: bytes

    @classmethod
    def of(cls, messages: list[StoreMessage]) -> Run:
        """Prepares the messages: a table with a row for each message, and a buffer with their bodies and properties."""
        source, table = bytearray(), new_table(len(messages))
        for row, one in enumerate(messages):
            fill_row(table, row, one, len(source))
            source += one.body + one.properties
        return cls(source, memoryview(source), table, len(messages), messages[0].topic)

    def append(self, store: MessageStore) -> None:
        """Appends all messages; may be called any number of times.

        Raises:
            StoreError: the store refused them.
        """
        run = RowRun(self.source, self.view, self.table, 0, self.count)
        status = store.append_rows(run, self.topic, HOST, AS_THEY_ARE)
        if status is not PutMessageStatus.PUT_OK:
            raise StoreError(f"{store.root}: the store returned {status.value}, its state is {store.state.value}")
