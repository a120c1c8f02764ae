"""Syncs the commit log to the disk: by group commit (``SYNC_FLUSH``) or at intervals (``ASYNC_FLUSH``).

A separate thread waits for the disk while appends and reads continue. One sync confirms everything that was appended
before the sync began. A failed sync is never retried, because the operating system reports an error only once. After a
failure, the flushed offset stays unchanged until the process ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rucola.errors import DiskError
from rucola.runtime.background import Worker
from rucola.runtime.clock import Clock
from rucola.runtime.file_map import PAGE_BYTES
from rucola.runtime.logs import event
from rucola.store.condition import StoreCondition
from rucola.store.config import MessageStoreConfig
from rucola.store.log.commit import CommitService
from rucola.store.log.commit_log import CommitLog

logger = logging.getLogger(__name__)


class FlushService:
    """The flush thread.

    Attributes:
        flushed_offset: physical offset up to which the log is synced; always the end of a record; never decreases.
        flushed_timestamp_ms: a time not later than the store time of the newest record below ``flushed_offset``.
        failed: whether a sync, a commit or a write failed. Any thread may set it with ``fail``; nothing clears it.
        wake: function to call after each append; it does something only with ``SYNC_FLUSH`` or a pool.

    Args:
        condition: is notified on the flush or commit thread when ``flushed_offset`` rises, after a commit, and after a
            failure.
    """

    def __init__(self, log: CommitLog, clock: Clock, config: MessageStoreConfig, condition: StoreCondition) -> None:
        self.flushed_offset = 0
        self.flushed_timestamp_ms = 0
        self._failed = False
        self._log = log
        self._clock = clock
        self._sync_flush = config.sync_flush
        self._least_bytes = config.flush_commit_log_least_pages * PAGE_BYTES
        self._thorough_s = config.flush_commit_log_thorough_interval_ms / 1000
        self._thorough_at = 0.0
        self._asked = False
        self._condition = condition
        interval_s = None if self._sync_flush else config.flush_interval_commit_log_ms / 1000
        self._worker = Worker("rucola-flush", self._work, interval_s)
        self._commit: CommitService | None = None
        self.wake: Callable[[], None] = self._worker.wake if self._sync_flush else _nothing
        if log.pool is not None:
            self._commit = CommitService(log, log.pool, clock, config, self._committed)
            if not self._sync_flush:
                self.wake = self._commit.wake

    @property
    def failed(self) -> bool:
        """Whether a sync, a commit or a write failed; see the class."""
        return self._failed

    def fail(self) -> None:
        """Notes a failure. Bytes after ``flushed_offset`` may never reach the disk, so this offset no longer rises."""
        self._failed = True

    def loaded(self, end_offset: int, store_timestamp_ms: int) -> None:
        """Sets ``flushed_offset`` after recovery has synced the log up to ``end_offset``."""
        self.flushed_offset, self.flushed_timestamp_ms = end_offset, store_timestamp_ms

    def start(self) -> None:
        """Starts the flush thread and, with a pool and ``ASYNC_FLUSH``, the commit thread."""
        self._thorough_at = self._clock.monotonic()
        if self._commit is not None:
            self._commit.start()
        self._worker.start()

    def ask(self) -> None:
        """Requests a sync of everything appended so far, however little that is."""
        self._asked = True
        self._worker.wake()

    def stop(self) -> None:
        """Ends the flush thread and the commit thread (if there is one), then syncs everything that was appended."""
        self.end()
        if not self.flush():
            self.fail()
        elif self._commit is not None:
            self._commit.stop()

    def end(self) -> None:
        """Ends the flush thread and the commit thread (if there is one) without syncing anything."""
        if self._commit is not None:
            self._commit.end()
        self._worker.stop()

    def flush(self) -> bool:
        """Syncs everything that was appended before the call. Returns False if some of it is not synced. Only one
        thread at a time may call it.
        """
        if self.failed:
            return False
        committed = self._commit is None or self._commit.commit()
        timestamp_ms = self._log.published_timestamp_ms
        target = self._log.max_offset
        if target <= self.flushed_offset:
            return committed
        try:
            for file in list(self._log.segments.files):
                if file.end > self.flushed_offset and file.start < target:
                    file.sync()
        except DiskError as error:
            self.fail()
            event(
                logger,
                logging.CRITICAL,
                "sync failed, store is read-only until a restart",
                from_offset=self.flushed_offset,
                to_offset=target,
                error=error,
            )
            return False
        if self.failed or self._log.failed:
            return False
        self.flushed_offset = target
        self.flushed_timestamp_ms = timestamp_ms
        return committed

    def _committed(self) -> None:
        """Handles the end of a commit. Called on the commit thread."""
        assert self._commit is not None
        self._tell()

    def _work(self) -> None:
        if self.failed or not self._take_cause():
            return
        before = self.flushed_offset
        if not self.flush() or self.flushed_offset > before:
            self._tell()

    def _tell(self) -> None:
        if self._commit is not None and self._commit.failed:
            self.fail()
        if self.failed:
            self._condition.fail()
        self._condition.tell()

    def _take_cause(self) -> bool:
        """Whether there is a cause to flush now. Somebody's wish and time that has passed are causes only once."""
        if self._sync_flush:
            return True
        waiting = self._log.written_offset - self.flushed_offset
        if self._asked:
            self._asked = False
            return waiting > 0
        now = self._clock.monotonic()
        if waiting >= max(self._least_bytes, 1):
            return True
        if now - self._thorough_at < self._thorough_s:
            return False
        self._thorough_at = now
        return waiting > 0


def _nothing() -> None:
    """Does nothing, because no sender waits for a sync."""
