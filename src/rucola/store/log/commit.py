"""Writes messages from the buffers of the pool to their files (RocketMQ 5.3.3, ``CommitRealTimeService``).

What is written this way is in the page cache, as everything is that goes through a map: it survives the process, can be
read, and waits for the flush. What is still in a buffer is seen by nobody and is lost with the process: the newest
messages, at most those of ``commitCommitLogThoroughInterval`` and one commit.

With ``ASYNC_FLUSH`` a thread of its own commits; with ``SYNC_FLUSH`` the flush thread does, before each sync, so that a
sender waits for both.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from rucola.errors import DiskError, DiskFullError
from rucola.runtime.background import Worker
from rucola.runtime.clock import Clock
from rucola.runtime.logs import event
from rucola.store.config import MessageStoreConfig
from rucola.store.log.commit_log import CommitLog
from rucola.store.log.transient_store_pool import TransientStorePool

_log = logging.getLogger(__name__)
_PAGE = 4096


class CommitService:
    """The commit thread, and the commit itself.

    Attributes:
        failed: a write failed; what comes behind it stays in memory.

    Args:
        pool: gets its buffers back.
        on_committed: called in the thread when the log's ``max_offset`` rose, and after a failure.
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
        self._least_bytes = config.commit_commit_log_least_pages * _PAGE
        self._thorough_s = config.commit_commit_log_thorough_interval_ms / 1000
        self._thorough_at = 0.0
        self._on_committed = on_committed
        self._lock = threading.Lock()
        self._full = False
        self._has_thread = not config.sync_flush
        self._wakes = config.wake_commit_when_put_message
        self._worker = Worker("rucola-commit", self._work, config.commit_interval_commit_log_ms / 1000)

    def start(self) -> None:
        """Starts the thread, if there is one."""
        self._thorough_at = self._clock.monotonic()
        if self._has_thread:
            self._worker.start()

    def wake(self) -> None:
        """Something was appended."""
        if self._wakes:
            self._worker.wake()

    def stop(self) -> None:
        """Ends the thread and gives the memory up; the last commit was made."""
        self._pool.stop()

    def end(self) -> None:
        """Ends the thread and nothing else."""
        if self._has_thread:
            self._worker.stop()

    def commit(self) -> bool:
        """Writes what was appended before the call; False when some of it could not be written. Any thread."""
        with self._lock:
            if self.failed:
                return False
            log = self._log
            timestamp_ms, target = log.store_timestamp_ms, log.written_offset
            try:
                for file in list(log.queue.segments):
                    if file.end > log.max_offset and file.start < target:
                        stop = min(target, file.end)
                        if file.pending is not None:
                            position = log.max_offset - file.start
                            file.segment.write(position, file.pending.view[position : stop - file.start])
                        log.show(stop, log.shown_timestamp_ms)
                        if stop == file.end and file.pending is not None:
                            self._pool.give_back(file.pending)
                            file.pending = None
            except DiskFullError as error:
                # The blocks were allocated, but some file systems never write to the same ones twice.
                if not self._full:
                    event(_log, logging.ERROR, "no space to commit, tried again", offset=log.max_offset, error=error)
                self._full = True
                return False
            except DiskError as error:
                self.failed = True
                event(
                    _log,
                    logging.CRITICAL,
                    "commit failed, store is read-only until a restart, which loses what is in memory",
                    from_offset=log.max_offset,
                    to_offset=target,
                    error=error,
                )
                return False
            log.show(log.max_offset, timestamp_ms)
            self._full = False
            return True

    def _work(self) -> None:
        if self.failed or not self._is_due():
            return
        before = self._log.max_offset
        if not self.commit() or self._log.max_offset > before:
            self._on_committed()

    def _is_due(self) -> bool:
        waiting = self._log.written_offset - self._log.max_offset
        now = self._clock.monotonic()
        if now - self._thorough_at >= self._thorough_s:
            self._thorough_at = now
            return waiting > 0
        # What was written through a map, in a segment without a buffer, only has to be shown.
        return waiting >= max(self._least_bytes, 1) or (waiting > 0 and not self._log.buffered)
