"""Creates the next commit-log segment before it is needed (RocketMQ's ``AllocateMappedFileService``)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from rucola.errors import DiskError
from rucola.runtime.background import Worker
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.log.segment_list import SegmentList
from rucola.store.log.warm import SegmentWarmer, Step

logger = logging.getLogger(__name__)
_RETRY_S = 1.0


class SegmentAllocator:
    """Owns the thread that creates the requested segment. If the creation fails, the thread retries every second.

    Args:
        files: access to the disk.
        segments: determines name and directory of the segment; the list is not changed here.
        on_space: called on the thread when an allocation succeeds after a failure.
        warmer: warms up new segments; None if they are not to be warmed up.
    """

    def __init__(
        self,
        files: Files,
        segments: SegmentList,
        on_space: Callable[[], None],
        warmer: SegmentWarmer | None = None,
    ) -> None:
        self._files = files
        self._segments = segments
        self._on_space = on_space
        self._warmer = warmer
        self._lock = threading.Lock()
        self._wanted: int | None = None
        self._made: str | None = None
        self._made_start = 0
        self._ended = False
        self._failed = False
        self._worker = Worker("rucola-allocate", self._work, _RETRY_S)

    def start(self) -> None:
        """Starts the thread."""
        self._worker.start()

    @property
    def failing(self) -> bool:
        """Whether the last attempt to create a segment failed. The thread keeps trying, and calls ``on_space`` when it
        succeeds.
        """
        return self._failed

    def want(self, start: int) -> None:
        """Requests the segment that starts at offset ``start``."""
        self._wanted = start
        self._worker.wake()

    def take(self, start: int) -> None:
        """Makes sure that the file of the segment at ``start`` exists; waits while the thread creates it.

        Raises:
            DiskError: the file cannot be created; the thread keeps trying.
        """
        with self._lock:
            try:
                self._segments.create(start)
            except DiskError:
                self._wanted, self._failed = start, True
                raise
            self._wanted = self._made = None

    def stop(self) -> None:
        """Ends the thread and removes a segment that was created but not used."""
        self._ended = True
        self._worker.stop()
        if self._warmer is not None:
            self._warmer.close()
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
                self._made = made = self._segments.create(start)
                self._made_start = start
            except DiskError as error:
                if not self._failed:
                    event(logger, logging.ERROR, "next segment cannot be allocated", start=start, error=error)
                self._failed = True
                return
            self._wanted = None
            recovered, self._failed = self._failed, False
        if recovered:
            self._on_space()
        if self._warmer is not None:
            self._warmer.warm(made, self._while_free)

    def _while_free(self, step: Step) -> bool:
        """Runs a step on the new segment, unless the segment was taken or the thread should end."""
        with self._lock:
            if self._ended or self._made is None or self._segments.end > self._made_start:
                return False
            step()
            return True
