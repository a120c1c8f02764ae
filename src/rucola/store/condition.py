"""Keeps track of whether the store accepts messages, and of the operations that lack disk space.

Missing space may have several causes at once. The store has space again when no cause is left:

======== ================================================ ====================================================
cause    noted by                                         cleared by
======== ================================================ ====================================================
segment  an append, while no next segment can be made     the allocating thread, once it has made the segment
write    an append that found no space for its records    the maintenance thread at intervals, for a retry
dispatch a dispatch without space for a queue             the next dispatch that succeeds
ratio    the maintenance thread, by the share of the disk the maintenance thread, by the share of the disk
======== ================================================ ====================================================

Any thread may call any method. Each append reads ``state`` without the lock. ``state`` changes only under the lock, so
that a thread that has read an older state cannot overwrite an error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Literal

from rucola.errors import DiskFullError, NoMemoryError, ResourceError
from rucola.runtime.logs import event
from rucola.store.results import StoreState

logger = logging.getLogger(__name__)

Cause = Literal["segment", "write", "dispatch", "ratio"]


class StoreCondition:
    """The state of the store, and the causes of missing space.

    Attributes:
        state: whether the store accepts messages, and if not, why; read only.
        missing: the present causes of missing space; read only.
        tell: called on any thread when the state may have changed, when more of the log is synced, or when an operation
            should be retried.
    """

    def __init__(self) -> None:
        self.state = StoreState.STOPPED
        self.tell: Callable[[], None] = lambda: None
        self.missing: set[Cause] = set()
        self._lock = threading.Lock()
        self._lacks_resources = False

    def listen(self, tell: Callable[[], None]) -> None:
        """Sets ``tell``."""
        self.tell = tell

    def start(self) -> None:
        """Starts to accept messages."""
        with self._lock:
            self.state = StoreState.RUNNING

    def stop(self) -> bool:
        """Stops accepting messages; returns whether the store had been started."""
        with self._lock:
            started = self.state is not StoreState.STOPPED
            self.state = StoreState.STOPPED
        return started

    def fail(self) -> bool:
        """Refuses messages until a restart, because a sync failed, or a write failed for a reason other than missing
        space. Returns False if messages were already refused because of such a failure.
        """
        with self._lock:
            news = self.state is not StoreState.IO_ERROR
            self.state = StoreState.IO_ERROR
        return news

    def space_is_gone(self, cause: Cause, error: DiskFullError | None = None) -> None:
        """Adds one cause; refuses messages until there is space. Reads continue."""
        with self._lock:
            self.missing.add(cause)
            news = self.state is StoreState.RUNNING
            if news:
                self.state = StoreState.DISK_FULL
        if news:
            event(logger, logging.ERROR, "disk full, store is read-only", cause=cause, error=error)

    def space_is_back(self, cause: Cause) -> None:
        """Clears one cause; does nothing if it was not set."""
        if cause not in self.missing:
            return
        with self._lock:
            self.missing.discard(cause)
            news = self.state is StoreState.DISK_FULL and not self.missing
            if news:
                self.state = StoreState.RUNNING
        if news:
            event(logger, logging.INFO, "space is back, store takes messages again", cause=cause)
        self.tell()

    def resources_are_gone(self, error: ResourceError) -> None:
        """Notes that a dispatch found no descriptor or memory for a queue. Messages are still accepted, because the log
        needs no more of them.
        """
        if self._lacks_resources:
            return
        self._lacks_resources = True
        if isinstance(error, NoMemoryError):
            event(logger, logging.WARNING, "no memory is left to map queues, messages reach them later", error=error)
        else:
            event(
                logger,
                logging.WARNING,
                "no file descriptor is left, messages reach their queues later; raise the limit of open files",
                error=error,
            )

    def resources_are_back(self) -> None:
        """Notes that a dispatch succeeded."""
        if self._lacks_resources:
            self._lacks_resources = False
            event(logger, logging.INFO, "descriptors and memory are free again, messages reach their queues")

    def segment_made(self) -> None:
        """Notes that a segment was created after earlier attempts had failed. Called on the allocating thread."""
        self.space_is_back("segment")

    def judged(self, short: bool) -> None:
        """Sets or clears the cause ``ratio``: sets it when the used fraction of the disk exceeds the limit, and clears
        it when this fraction is far enough below the limit. Called on the maintenance thread.
        """
        if short:
            self.space_is_gone("ratio")
        else:
            self.space_is_back("ratio")

    def try_again(self) -> None:
        """Allows appends to try again, and requests a dispatch. Called at intervals on the maintenance thread."""
        self.space_is_back("write")
        if self._lacks_resources or "dispatch" in self.missing:
            self.tell()
