"""Writes messages from the buffers of the transient store pool to their files (RocketMQ 5.3.3,
``CommitRealTimeService``).

Committed messages are in the page cache, as if they had been written through a map: they survive the end of the
process, can be read, and wait for the flush. Messages that are still in a buffer are not visible, and they are lost if
the process ends. The lost messages are at most those of the last ``commitCommitLogThoroughInterval``, plus those that
arrived during one commit.

With ``ASYNC_FLUSH`` a separate thread commits. With ``SYNC_FLUSH`` the flush thread commits before each sync, so that a
sender waits for both.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from rucola.errors import DiskError, DiskFullError
from rucola.runtime.background import Worker
from rucola.runtime.clock import Clock
from rucola.runtime.file_map import PAGE_BYTES
from rucola.runtime.logs import event
from rucola.store.config import MessageStoreConfig
from rucola.store.log.commit_log import CommitLog
from rucola.store.log.transient_store_pool import TransientStorePool

logger = logging.getLogger(__name__)


class CommitService:
    """Commits, and owns the commit thread.

    Attributes:
        failed: whether a write failed; bytes that were not written by then stay in memory.

    Args:
        pool: the pool to which buffers are returned.
        on_committed: called on the commit thread when the log's ``max_offset`` rises, and after a failure.
    """

    def __init__(
        self,
        log: CommitLog,
        pool: TransientStorePool,
        clock: Clock,
        config: MessageStoreConfig,
        on_committed: Callable[[], None],
    ) -> None:
        self.failed = False
        self._log = log
        self._pool = pool
        self._clock = clock
        self._least_bytes = config.commit_commit_log_least_pages * PAGE_BYTES
        self._thorough_s = config.commit_commit_log_thorough_interval_ms / 1000
        self._thorough_at = 0.0
        self._on_committed = on_committed
        self._lock = threading.Lock()
        self._full = False
        self._has_thread = not config.sync_flush
        self._wakes = config.wake_commit_when_put_message
        self._worker = Worker("rucola-commit", self._work, config.commit_interval_commit_log_ms / 1000)

    def start(self) -> None:
        """Starts the thread, if the flush mode has one."""
        self._thorough_at = self._clock.monotonic()
        if self._has_thread:
            self._worker.start()

    def wake(self) -> None:
        """Wakes the thread after messages were appended."""
        if self._wakes:
            self._worker.wake()

    def stop(self) -> None:
        """Frees the memory of the pool. The thread and the last commit must have ended before this call."""
        self._pool.stop()

    def end(self) -> None:
        """Ends the thread without committing anything."""
        if self._has_thread:
            self._worker.stop()

    def commit(self) -> bool:
        """Writes everything that was appended before the call; returns False if some of it could not be written. Any
        thread may call it.
        """
        with self._lock:
            if self.failed:
                return False
            log = self._log
            timestamp_ms, target = log.store_timestamp_ms, log.written_offset
            try:
                for file in list(log.segments.files):
                    if file.end > log.max_offset and file.start < target:
                        stop = min(target, file.end)
                        if file.pending is not None:
                            position = log.max_offset - file.start
                            file.map.write(position, file.pending.view[position : stop - file.start])
                        log.publish(stop, log.published_timestamp_ms)
                        if stop == file.end and (buffer := file.committed()) is not None:
                            self._pool.give_back(buffer)
            except DiskFullError as error:
                # The blocks were allocated, but copy-on-write file systems need new blocks for each write.
                if not self._full:
                    event(
                        logger,
                        logging.ERROR,
                        "no space for a commit, tried again later",
                        offset=log.max_offset,
                        error=error,
                    )
                self._full = True
                return False
            except DiskError as error:
                self.failed = True
                event(
                    logger,
                    logging.CRITICAL,
                    "commit failed, store is read-only until a restart, which loses the messages that are only in "
                    "memory",
                    from_offset=log.max_offset,
                    to_offset=target,
                    error=error,
                )
                return False
            log.publish(log.max_offset, timestamp_ms)
            self._full = False
            return True

    def _work(self) -> None:
        if self.failed or not self._take_cause():
            return
        before = self._log.max_offset
        if not self.commit() or self._log.max_offset > before:
            self._on_committed()

    def _take_cause(self) -> bool:
        """Whether there is a cause to commit now. Time that has passed is a cause only once."""
        waiting = self._log.written_offset - self._log.max_offset
        now = self._clock.monotonic()
        if now - self._thorough_at >= self._thorough_s:
            self._thorough_at = now
            return waiting > 0
        # A segment without a buffer was written through its map. The commit only has to make the bytes of that segment
        # visible.
        return waiting >= max(self._least_bytes, 1) or (waiting > 0 and not self._log.buffered)
