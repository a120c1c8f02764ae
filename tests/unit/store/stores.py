"""Functions for tests of the store: small stores, messages, reads."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from rucola.common.message import MessageExt, StoreMessage
from rucola.formats.message import decode_messages
from rucola.runtime.files import Files
from rucola.store.config import FlushDiskType, MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import GetMessageStatus, PutMessageResult, PutMessageStatus
from rucola.testing.clock import ManualClock

HOST = b"\x7f\x00\x00\x01\x00\x00\x30\x39"
SEGMENT = 65536
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": SEGMENT,
    "mapped_file_size_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}


def config(path: Path, **options: Any) -> MessageStoreConfig:
    return MessageStoreConfig(store_path_root_dir=str(path), **(SMALL | options))


def sync_config(path: Path, **options: Any) -> MessageStoreConfig:
    return config(path, flush_disk_type=FlushDiskType.SYNC_FLUSH, **options)


def opened(path: Path, files: Files | None = None, clock: ManualClock | None = None, **options: Any) -> MessageStore:
    """Opens and runs a store whose clock advances by a millisecond with each reading."""
    store = MessageStore(config(path, **options), files or Files(), clock or ManualClock(step_ms=1))
    store.load()
    try:
        store.start()
    except BaseException:
        store._log.stop()
        store.shutdown()
        raise
    return store


def with_topics(path: Path) -> str:
    """Gives a store the topic table that a broker would have written, unless it has one; returns the store's path."""
    table = path / "config/topics.json"
    if not table.exists():
        table.parent.mkdir(exist_ok=True)
        table.write_text('{"topicConfigTable":{}}')
    return str(path)


def message(number: int, topic: bytes = b"TopicTest", queue_id: int = 0, size: int = 100) -> StoreMessage:
    """Returns message ``number``; its body and keys contain the number."""
    body = (b"%d " % number) * (size // 2 + 1)
    properties = b"KEYS\x01key-%d all\x02TAGS\x01Tag%d\x02UNIQ_KEY\x01ID%08d\x02" % (number, number % 3, number)
    return StoreMessage(topic, queue_id, body[:size], properties, 1_700_000_000_000 + number, HOST)


def fill(store: MessageStore, count: int, topics: int = 2, queues: int = 2, first: int = 0) -> list[PutMessageResult]:
    """Puts consecutive messages from ``first`` on into topics ``T0``, ``T1`` ... and their queues in turn, and
    dispatches.
    """
    results = []
    for number in range(first, first + count):
        queue_id = number // topics % queues
        results.append(store.put_message(message(number, b"T%d" % (number % topics), queue_id, 80 + number % 200)))
        assert results[-1].status is PutMessageStatus.PUT_OK
    store.dispatch()
    return results


def read(store: MessageStore, topic: bytes, queue_id: int) -> list[MessageExt]:
    """Returns all messages of a queue, by repeated pulls."""
    messages: list[MessageExt] = []
    queue_offset = store.min_queue_offset(topic, queue_id)
    while True:
        result = store.get_message(topic, queue_id, queue_offset, 32, 1 << 20)
        if result.status is not GetMessageStatus.FOUND:
            assert queue_offset == store.max_queue_offset(topic, queue_id)
            return messages
        got = [found for view in result.views for found in decode_messages(view)]
        assert [found.queue_offset for found in got] == list(range(queue_offset, result.next_offset))
        assert len(got) == result.message_count
        assert sum(map(len, result.views)) == result.message_bytes
        messages += got
        queue_offset = result.next_offset


def everything(store: MessageStore) -> dict[tuple[bytes, int], list[tuple[int, int, bytes]]]:
    """Returns physical offset, store time and body of all messages in all queues."""
    return {
        name: [(found.physical_offset, found.store_timestamp_ms, found.body) for found in read(store, *name)]
        for name in store.queue_names()
    }


def crashed(store: MessageStore, path: Path, target: Path) -> Path:
    """Copies the directory as a process killed now would leave it; the store continues and is stopped later."""
    snapshot(path, target)
    store.shutdown()
    return target


def snapshot(path: Path, target: Path) -> None:
    """Copies all files except ``lock``, because closing that file would release this process's lock. The store's thread
    may give the next segment its name meanwhile; such a file is left out.
    """
    shutil.copytree(path, target, ignore=shutil.ignore_patterns("lock"), copy_function=_copy_if_there)


def _copy_if_there(source: str, target: str) -> None:
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def contents(path: Path) -> dict[str, bytes]:
    """Returns every file below ``path`` except the lock."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "lock"
    }
