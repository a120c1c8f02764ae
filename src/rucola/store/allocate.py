"""Makes the next commit-log segment before it is needed (RocketMQ's ``AllocateMappedFileService``)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from rucola.errors import DiskError
from rucola.runtime.background import Worker
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.mapped_file_queue import MappedFileQueue

_log = logging.getLogger(__name__)
_RETRY_S = 1.0


class SegmentAllocator:
    """A thread that creates the segment that was asked for, and tries again every second while the disk refuses.

    Args:
        files: door to the disk.
        queue: where the segment goes; its list is not changed here.
        on_space: called in the thread when an allocation succeeds after one had failed.
    """

    def __init__(self, files: Files, queue: MappedFileQueue, on_space: Callable[[], None]) -> None:
        self._files = files
        self._queue = queue
        self._on_space = on_space
        self._lock = threading.Lock()
        self._wanted: int | None = None
        self._made: str | None = None
        self._failed = False
        self._worker = Worker("rucola-allocate", self._work, _RETRY_S)

    def start(self) -> None:
        """Starts the thread."""
        self._worker.start()

    def want(self, start: int) -> None:
        """Asks for the segment that starts at offset ``start``."""
        self._wanted = start
        self._worker.wake()

    def take(self, start: int) -> None:
        """Makes sure that the file of the segment at ``start`` exists; waits for the thread if it is at it.

        Raises:
            DiskError: it cannot be made; the thread goes on trying.
        """
        with self._lock:
            try:
                self._queue.create(start)
            except DiskError:
                self._wanted, self._failed = start, True
                raise
            self._wanted = self._made = None

    def stop(self) -> None:
        """Ends the thread and removes a segment that nobody took."""
        self._worker.stop()
        if self._made is not None and self._files.exists(self._made):
            self._files.remove(self._made)
            self._files.sync_directory(self._made.rpartition("/")[0])
            self._made = None

    def _work(self) -> None:
        with self._lock:
            start = self._wanted
            if start is None:
                return
            try:
                self._made = self._queue.create(start)
            except DiskError as error:
                if not self._failed:
                    event(_log, logging.ERROR, "next segment cannot be allocated", start=start, error=error)
                self._failed = True
                return
            self._wanted = None
            recovered, self._failed = self._failed, False
        if recovered:
            self._on_space()
