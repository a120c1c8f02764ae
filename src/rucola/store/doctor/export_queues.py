"""Writes consume queues of RocketMQ's own kind for lite topics, so that RocketMQ finds them when it opens the store.

RocketMQ ignores ``rucola-lite``, and after a clean stop it dispatches only records behind its newest queue unit. Each
lite topic with messages gets a directory in ``consumequeue``. The directories are not kept up to date afterwards; a
later export replaces them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rucola.common.numbers import INT64_MAX
from rucola.errors import StoreDamagedError
from rucola.formats.light_queue import lite_topic
from rucola.runtime.files import Files
from rucola.store.lite.lite_queue import LiteQueue
from rucola.store.lite.lite_topics import LiteTopics
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.places import hold_store
from rucola.store.queue.consume_queue_store import ConsumeQueueStore
from rucola.store.recovery.lite_recovery import load_lite

_UNITS_AT_ONCE = 4096
_OPEN_MAX = 256


@dataclass(frozen=True)
class ExportedQueues:
    """What an export has written.

    Attributes:
        lite_topics: number of lite topics with a message.
        units: number of their units.
        empty_topics: number of lite topics without a message; RocketMQ begins them at offset 0 again.
    """

    lite_topics: int
    units: int
    empty_topics: int


def export_queues(
    path: str,
    files: Files | None = None,
    commit_log_path: str | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> ExportedQueues:
    """Exports all lite topics of a store that was stopped cleanly.

    Args:
        commit_log_path: see ``OfflineStore``.
        progress: called with the number of topics done and of all topics.

    Raises:
        StoreLockedError: a process uses the store.
        StoreDamagedError: the store was not stopped cleanly, or its lite topics are damaged.
        DiskError: a queue cannot be written; the next export begins anew.
    """
    files = files if files is not None else Files()
    root = hold_store(files, files.expand(path))
    lock = files.lock_directory(root)
    try:
        if files.exists(f"{root}/abort"):
            raise StoreDamagedError(root, 0, "the store was not stopped cleanly", "start a broker on it, and stop it")
        store = OfflineStore(root, files, commit_log_path)
        try:
            return _export(files, root, store, progress)
        finally:
            store.close()
    finally:
        lock.release()


def _export(files: Files, root: str, store: OfflineStore, progress: Callable[[int, int], None]) -> ExportedQueues:
    topics = LiteTopics(files, root, 1, store.log)
    if not files.exists(topics.path):
        return ExportedQueues(0, 0, 0)
    load_lite(topics, files, INT64_MAX)
    queues = ConsumeQueueStore(files, root, store.queue_options(), store.log)
    count = units = 0
    total = len(topics.names)
    for name_id in range(total):
        topic = lite_topic(topics.names.name(name_id))
        directory = queues.factory.topic_directory(topic)
        if files.exists(directory):
            files.remove_tree(directory)
            files.sync_directory(directory.rpartition("/")[0])
        queue = LiteQueue(topics, topic, name_id)
        if queue.min_offset < queue.max_offset:
            count += 1
            units += _write(queue, queues, topic)
        if name_id % _OPEN_MAX == _OPEN_MAX - 1:
            queues.close()
            progress(name_id + 1, total)
    queues.close()
    topics.close()
    progress(total, total)
    return ExportedQueues(count, units, total - count)


def _write(queue: LiteQueue, queues: ConsumeQueueStore, topic: bytes) -> int:
    """Writes the units of a lite topic; returns their number."""
    first, end = queue.min_offset, queue.max_offset
    plain = queues.get(topic, 0)
    if first:
        plain.begin_at(first)
    for offset in range(first, end, _UNITS_AT_ONCE):
        part = min(_UNITS_AT_ONCE, end - offset)
        plain.put_units(queue.read_units(offset, part), part)
    plain.sync()
    return end - first
