"""What the store may do now, and what it has no space for.

Space is missing for one cause or several, and there again when none is left:

======== ================================================ ====================================================
cause    noted by                                         taken back by
======== ================================================ ====================================================
segment  an append, while no next segment can be made     the allocating thread, once it has made one
write    an append whose run could not be written         the keeper's thread a second later: the next one tries
dispatch a dispatch without space for a queue             the next one that comes through
ratio    the keeper's thread, by the share of the disk    the same thread, by the same share
======== ================================================ ====================================================

Any thread may call any method. ``state`` is read without the lock, with every append; it is changed under it, so that
nobody who looked a moment earlier puts something else in the place of an error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Literal

from rucola.errors import DiskFullError
from rucola.runtime.logs import event
from rucola.store.results import StoreState

_log = logging.getLogger(__name__)

Cause = Literal["segment", "write", "dispatch", "ratio"]


class StoreCondition:
    """See the module.

    Attributes:
        state: to be read.
        missing: what there is no space for; to be read.
        tell: called in any thread: the state may have changed, or the log is on the disk further than before, or
            something is to be tried again.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self.state = StoreState.STOPPED
        self.tell = tell
        self.missing: set[Cause] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Messages are taken from now on."""
        with self._lock:
            self.state = StoreState.RUNNING

    def stop(self) -> bool:
        """None are any more; whether the store had been started."""
        with self._lock:
            started = self.state is not StoreState.STOPPED
            self.state = StoreState.STOPPED
        return started

    def fail(self) -> bool:
        """What a sync covered may be lost: no messages until a restart. False when that was so already."""
        with self._lock:
            news = self.state is not StoreState.IO_ERROR
            self.state = StoreState.IO_ERROR
        return news

    def space_is_gone(self, cause: Cause, error: DiskFullError | None = None) -> None:
        """No messages until there is space; reads go on."""
        with self._lock:
            self.missing.add(cause)
            news = self.state is StoreState.RUNNING
            if news:
                self.state = StoreState.DISK_FULL
        if news:
            event(_log, logging.ERROR, "disk full, store is read-only", cause=cause, error=error)

    def space_is_back(self, cause: Cause) -> None:
        """Does nothing when it was not missing."""
        if cause not in self.missing:
            return
        with self._lock:
            self.missing.discard(cause)
            news = self.state is StoreState.DISK_FULL and not self.missing
            if news:
                self.state = StoreState.RUNNING
        if news:
            event(_log, logging.INFO, "space is back, store takes messages again", cause=cause)
        self.tell()

    def segment_made(self) -> None:
        """In the allocating thread, after it had failed."""
        self.space_is_back("segment")

    def judged(self, short: bool) -> None:
        """In the keeper's thread: the share of the disk in use is above the limit, or far enough below it."""
        if short:
            self.space_is_gone("ratio")
        else:
            self.space_is_back("ratio")

    def try_again(self) -> None:
        """In the keeper's thread, now and then: an append tries to write, and who is told to dispatch."""
        self.space_is_back("write")
        if "dispatch" in self.missing:
            self.tell()
