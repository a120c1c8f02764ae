"""Writes consume queues of RocketMQ's own kind for lite topics, so that RocketMQ finds them when it opens the store.

RocketMQ ignores ``rucola-lite``, and after a clean stop it dispatches only records behind its newest queue unit. Each
lite topic with messages gets a directory in ``consumequeue``. The directories are not kept up to date afterwards; a
later export replaces them.

RocketMQ reads a queue that begins above offset 0 only after a part of the log has expired. Before, it takes the
pre-filled units for messages, finds none, and skips the messages behind them (seen with 5.5.0). So as long as the log
has its first byte, the deleted messages of a lite topic that was used again are exported, too. They are also back when
RocketMQ builds its queues from the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from rucola.common.numbers import INT64_MAX
from rucola.errors import StoreDamagedError
from rucola.formats.consume_queue import UNIT_BYTES
from rucola.formats.light_queue import lite_topic
from rucola.runtime.files import Files
from rucola.store.lite.lite_queue import LiteQueue
from rucola.store.lite.lite_topics import LiteTopics
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.places import hold_store
from rucola.store.queue.consume_queue import ConsumeQueue
from rucola.store.queue.consume_queue_store import ConsumeQueueStore
from rucola.store.recovery.lite_recovery import load_lite

_UNITS_AT_ONCE = 4096
_TOPICS_AT_ONCE = 32
_THREADS = 8
_WAITING_MAX = 2 * _THREADS
"""Parts that wait for a thread; more would only fill the memory."""


@dataclass(frozen=True)
class ExportedQueues:
    """What an export has written.

    Attributes:
        lite_topics: number of lite topics with a message.
        units: number of their units.
        empty_topics: number of lite topics without a message; RocketMQ begins them at offset 0 again.
        deleted_back: number of lite topics whose deleted messages are back, because they have later ones.
    """

    lite_topics: int
    units: int
    empty_topics: int
    deleted_back: int


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
        return ExportedQueues(0, 0, 0, 0)
    load_lite(topics, files, INT64_MAX)
    try:
        return _write(topics, _Writer(files, root, store), store.min_offset() == 0, progress)
    finally:
        topics.close()


def _write(
    topics: LiteTopics, writer: _Writer, keeps_deleted: bool, progress: Callable[[int, int], None]
) -> ExportedQueues:
    count = units = returned = 0
    total = len(topics.names)
    with ThreadPoolExecutor(_THREADS, "rucola-export") as pool:
        running: deque[Future[None]] = deque()
        for start in range(0, total, _TOPICS_AT_ONCE):
            part: list[_Exported] = []
            for name_id in range(start, min(start + _TOPICS_AT_ONCE, total)):
                queue = LiteQueue(topics, lite_topic(topics.names.name(name_id)), name_id)
                first, end = queue.min_offset, queue.max_offset
                count += first < end
                if 0 < first < end and keeps_deleted:
                    oldest = topics.min_offset(name_id, 0)
                    returned += oldest < first
                    first = oldest
                units += end - first
                if end - first > _UNITS_AT_ONCE:
                    writer.write_long(queue, first)
                else:
                    part.append(_Exported(queue.topic, first, queue.read_units(first, end - first)))
            running.append(pool.submit(writer.write, part))
            while len(running) > _WAITING_MAX or (running and running[0].done()):
                running.popleft().result()
            progress(min(start + _TOPICS_AT_ONCE, total), total)
        for one in running:
            one.result()
    return ExportedQueues(count, units, total - count, returned)


class _Exported(NamedTuple):
    """The units of a lite topic from the offset ``first`` on; without units, its directory is removed."""

    topic: bytes
    first: int
    units: bytearray


class _Writer:
    """Writes consume queues. Several threads may call ``write``: most of the time goes by in syncs of single files."""

    def __init__(self, files: Files, root: str, store: OfflineStore) -> None:
        self._files = files
        self._root = root
        self._log = store.log
        self._options = store.queue_options()

    def write(self, part: list[_Exported]) -> None:
        """Replaces the directories of some lite topics."""
        queues = self._queues()
        for topic, first, units in part:
            self._remove(queues, topic)
            if units:
                plain = self._begun(queues, topic, first)
                plain.put_units(units, len(units) // UNIT_BYTES)
                plain.sync()
        queues.close()

    def write_long(self, queue: LiteQueue, first: int) -> None:
        """Replaces the directory of one lite topic from the offset ``first`` on; its units are read part by part."""
        queues, end = self._queues(), queue.max_offset
        self._remove(queues, queue.topic)
        plain = self._begun(queues, queue.topic, first)
        for offset in range(first, end, _UNITS_AT_ONCE):
            count = min(_UNITS_AT_ONCE, end - offset)
            plain.put_units(queue.read_units(offset, count), count)
        plain.sync()
        queues.close()

    def _queues(self) -> ConsumeQueueStore:
        return ConsumeQueueStore(self._files, self._root, self._options, self._log)

    def _remove(self, queues: ConsumeQueueStore, topic: bytes) -> None:
        directory = queues.factory.topic_directory(topic)
        if self._files.exists(directory):
            self._files.remove_tree(directory)
            self._files.sync_directory(directory.rpartition("/")[0])

    def _begun(self, queues: ConsumeQueueStore, topic: bytes, first: int) -> ConsumeQueue:
        plain = queues.get(topic, 0)
        if first:
            plain.begin_at(first)
        return plain
