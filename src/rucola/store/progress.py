"""Publishes the progress of queues and index together with their unsynced files, as one value.

The syncing thread takes progress and files together. After the sync it records the progress that it took, never a value
read at another time. The recorded progress can therefore never be ahead of the sync, whichever threads run in between.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from rucola.store.index.index_service import IndexFile
from rucola.store.queue.consume_queue import ConsumeQueue


class Progress(NamedTuple):
    """Progress of the dispatching thread at one moment.

    Attributes:
        position: physical offset of the first record not dispatched.
        store_timestamp_ms: store time of the newest record dispatched.
        index_position: physical offset of the first record whose keys are not in the index, at most ``position``.
        queue_count: number of queues with at least one file.
        later_files: number of files of all queues, not counting the first file of each.
    """

    position: int = 0
    store_timestamp_ms: int = 0
    index_position: int = 0
    queue_count: int = 0
    later_files: int = 0


class Unsynced(NamedTuple):
    """Progress, and the files that must be synced before this progress may be recorded.

    Attributes:
        queues: the written queues in the order of their first write, so that a simulation syncs in the same order in
            each run.
        index_files: the written index files, each with a time: the store time of the newest key if the file is full,
            else 0.
    """

    progress: Progress
    queues: dict[ConsumeQueue, None]
    index_files: dict[IndexFile, int]


class PublishedProgress:
    """Passes progress from the dispatching thread, which publishes it, to the maintenance thread, which takes it."""

    def __init__(self) -> None:
        # A plain tuple, because it is created at each dispatch and read only once a second.
        self._fields = (0, 0, 0, 0, 0)
        self._queues: dict[ConsumeQueue, None] = {}
        self._index_files: dict[IndexFile, int] = {}
        self._lock = threading.Lock()

    def publish(
        self,
        fields: tuple[int, int, int, int, int],
        queues: Iterable[ConsumeQueue],
        index_files: dict[IndexFile, int] | None,
    ) -> None:
        """Publishes ``fields`` as progress, together with ``queues`` and ``index_files``, which were written since the
        last call.
        """
        with self._lock:
            self._queues.update(dict.fromkeys(queues))
            if index_files:
                self._index_files.update(index_files)
            self._fields = fields

    @property
    def current(self) -> Progress:
        """The progress published last. Any thread may read it."""
        return Progress._make(self._fields)

    def take(self) -> Unsynced:
        """Takes everything published since the last call. The caller must sync the files; otherwise no progress may
        ever be recorded again.
        """
        with self._lock:
            taken = Unsynced(Progress._make(self._fields), self._queues, self._index_files)
            self._queues, self._index_files = {}, {}
        return taken

    def put_back(self, taken: Unsynced) -> None:
        """Publishes once more what ``take`` has returned, because it could not be synced yet."""
        with self._lock:
            self._queues = taken.queues | self._queues
            self._index_files = taken.index_files | self._index_files

    def forget(self, queues: list[ConsumeQueue]) -> None:
        """Forgets ``queues``, which no longer belong to the store."""
        with self._lock:
            for queue in queues:
                self._queues.pop(queue, None)
