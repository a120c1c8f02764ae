"""How far queues and index have come, and what of them is not on the disk yet: one value, published as a whole.

Whoever syncs takes both together. What is recorded after the sync is the progress that was taken, never a number that
was read at another moment: so it cannot be ahead of what was synced, whichever thread runs in between.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from rucola.store.index.index_service import IndexFile
from rucola.store.queue.consume_queue import ConsumeQueue


class Progress(NamedTuple):
    """A moment of the dispatching thread.

    Attributes:
        position: physical offset of the first record not dispatched.
        store_timestamp_ms: store time of the newest record dispatched.
        index_position: physical offset of the first record whose keys are not in the index, at most ``position``.
        queue_count: number of queues with at least one file.
        later_files: number of files of all queues, without the first of each.
    """

    position: int = 0
    store_timestamp_ms: int = 0
    index_position: int = 0
    queue_count: int = 0
    later_files: int = 0


class Unsynced(NamedTuple):
    """What must be on the disk before ``progress`` is true of the disk, too.

    Attributes:
        queues: in the order of their first write: syncs then come in the same order in each run of a simulation.
        index_files: with the store time of the newest key of those that are full, 0 of the one that is not.
    """

    progress: Progress
    queues: dict[ConsumeQueue, None]
    index_files: dict[IndexFile, int]


class PublishedProgress:
    """Handed from the dispatching thread, which publishes, to the keeper's thread, which takes."""

    def __init__(self) -> None:
        # A plain tuple: made with each dispatch, looked at once a second.
        self._fields = (0, 0, 0, 0, 0)
        self._queues: dict[ConsumeQueue, None] = {}
        self._index_files: dict[IndexFile, int] = {}
        self._lock = threading.Lock()

    def publish(
        self,
        fields: tuple[int, int, int, int, int],
        queues: list[ConsumeQueue],
        index_files: dict[IndexFile, int] | None,
    ) -> None:
        """``queues`` and ``index_files`` were written since the last call; afterwards progress is ``fields``."""
        with self._lock:
            for queue in queues:
                self._queues[queue] = None
            if index_files:
                self._index_files.update(index_files)
            self._fields = fields

    @property
    def current(self) -> Progress:
        """What was published last; any thread may read it."""
        return Progress._make(self._fields)

    def take(self) -> Unsynced:
        """All that was published and not taken yet. Whoever takes it syncs it, or nothing is ever recorded again."""
        with self._lock:
            taken = Unsynced(Progress._make(self._fields), self._queues, self._index_files)
            self._queues, self._index_files = {}, {}
        return taken

    def forget(self, queues: list[ConsumeQueue]) -> None:
        """These queues are no part of the store any more."""
        with self._lock:
            for queue in queues:
                self._queues.pop(queue, None)
