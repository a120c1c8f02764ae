"""The maintenance thread ``rucola-keeper`` syncs queues and index at intervals, and records how much of them is synced.

The thread writes two files: the watermark (``recovery.watermark``), and ``checkpoint`` in case RocketMQ opens the store
next. Both files lag behind, because a value is written only after the sync that makes it true. The thread also removes
expired files (``retention``).
"""

from __future__ import annotations

import logging

from rucola.errors import DiskError
from rucola.formats.checkpoint import StoreCheckpoint
from rucola.runtime.background import Worker
from rucola.runtime.clock import Clock
from rucola.runtime.logs import event
from rucola.store.condition import StoreCondition
from rucola.store.config import MessageStoreConfig
from rucola.store.dispatch import Dispatcher
from rucola.store.log.flush import FlushService
from rucola.store.parts import StoreParts
from rucola.store.progress import Progress
from rucola.store.recovery.marks import StoreMarks
from rucola.store.recovery.watermark import Watermark
from rucola.store.retention import Retention

logger = logging.getLogger(__name__)
_THOROUGH_BYTES = 256 << 20


class StoreKeeper:
    """The maintenance thread of a store, and its state.

    Attributes:
        failed: whether a sync of queues or index failed; from then on, their recorded progress stays unchanged.

    Args:
        parts: the queues and the index to sync.
        dispatcher: tells what must be synced.
        marks: writes the checkpoint and the watermark.
        condition: is notified once a second, so that operations that lacked space are tried again.
    """

    def __init__(
        self,
        clock: Clock,
        config: MessageStoreConfig,
        flush: FlushService,
        parts: StoreParts,
        dispatcher: Dispatcher,
        marks: StoreMarks,
        retention: Retention,
        condition: StoreCondition,
    ) -> None:
        self.failed = False
        self._clock = clock
        self._flush = flush
        self._dispatcher = dispatcher
        self._queues = parts.queues
        self._index = parts.index
        self._lite = parts.queues.lite
        self._marks = marks
        self._retention = retention
        self._condition = condition
        self._thorough_s = config.flush_consume_queue_thorough_interval_ms / 1000
        self._thorough_at = 0.0
        self._synced = Progress()
        self._worker = Worker("rucola-keeper", self._work, config.flush_interval_consume_queue_ms / 1000)

    def load(self) -> None:
        """Takes over after recovery: queues and index count as synced up to the dispatch position."""
        self._dispatcher.publish()
        published = self._dispatcher.progress.current
        self._synced = published._replace(store_timestamp_ms=self._flush.flushed_timestamp_ms)

    def start(self) -> None:
        """Records the progress that recovery reached, and starts the thread. The watermark then no longer says that the
        store was stopped cleanly.

        Raises:
            DiskError: the state cannot be recorded.
        """
        self._thorough_at = self._clock.monotonic()
        self._retention.start()
        self._record(self._reached())
        self._worker.start()

    def look_soon(self) -> None:
        """Wakes the thread, so that it does its work now. Any thread may call it."""
        self._worker.wake()

    def stop(self) -> bool:
        """Ends the thread and syncs everything; returns whether the whole log is synced.

        The caller must have flushed and dispatched the log.
        """
        self.end()
        self._retention.remove()
        self.sync_queues()
        self._finish_lite()
        offset = self._flush.flushed_offset
        followed = self._synced.position == self._synced.index_position == offset
        clean = not self.failed and not self._flush.failed and followed
        try:
            self._record(self._reached(offset if clean else -1))
        except DiskError as error:
            event(logger, logging.ERROR, "watermark not written", error=error)
            return False
        return clean

    def _finish_lite(self) -> None:
        if self._lite is None or self.failed:
            return
        try:
            self._lite.finish()
        except DiskError as error:
            event(logger, logging.ERROR, "table of lite topics not written", error=error)

    def end(self) -> None:
        """Ends the thread without syncing anything."""
        self._worker.stop()

    def sync_queues(self) -> None:
        """Syncs queues and index up to the progress that the dispatching thread has published, then notes this progress
        as synced. Only one thread at a time may call this method.
        """
        if self.failed:
            self._dispatcher.progress.take()  # No further sync will follow.
            return
        try:
            synced = self._dispatcher.sync()
        except DiskError as error:
            self.failed = True
            self._queues.fail(error)
            event(
                logger,
                logging.CRITICAL,
                "queues cannot be synced; new segments do not expire until a restart, which rebuilds the queues",
                error=error,
            )
            return
        if synced is None:
            return  # no space for names of lite topics; the next round tries again
        newest_ms = max(synced.store_timestamp_ms, self._synced.store_timestamp_ms)
        self._synced = synced._replace(store_timestamp_ms=newest_ms)

    def _work(self) -> None:
        now = self._clock.monotonic()
        published, synced = self._dispatcher.progress.current, self._synced
        waiting = max(published.position - synced.position, published.index_position - synced.index_position)
        due = waiting >= _THOROUGH_BYTES or (waiting > 0 and now - self._thorough_at >= self._thorough_s)
        if due or self._retention.wants_sync or self._queues.wants_sync or self._lite_waits:
            self._retention.wants_sync = False
            self._thorough_at = now
            self.sync_queues()
        try:
            self._record(self._reached())
        except DiskError as error:
            event(logger, logging.ERROR, "watermark not written", error=error)
        self._keep_lite()
        self._retention.look(min(self._flush.flushed_offset, self._synced.position))
        self._try_again()

    @property
    def _lite_waits(self) -> bool:
        return self._lite is not None and self._lite.wants_sync

    def _keep_lite(self) -> None:
        """Lets deletions of lite topics take effect, and writes their table if it is due."""
        if self._lite is None or self.failed:
            return
        if self._lite.wants_sync:
            self._condition.tell()
        try:
            self._lite.keep()
        except DiskError as error:
            event(logger, logging.ERROR, "table of lite topics not written, will retry later", error=error)

    def _try_again(self) -> None:
        """Tells every component that lacked space to try once more."""
        index = self._dispatcher.follower
        if index is not None and index.retry():
            self._condition.tell()
        self._condition.try_again()

    def _reached(self, end_offset: int = -1) -> Watermark:
        """Returns the progress as a watermark. An index that has fallen behind delays neither expiry nor the syncs of
        queues.
        """
        synced = self._synced
        complete = min(synced.position, synced.index_position)
        counts = synced.queue_count, synced.later_files
        return Watermark(self._flush.flushed_offset, complete, end_offset, *counts, self._marks.writers)

    def _record(self, watermark: Watermark) -> None:
        self._marks.write_checkpoint(self._checkpoint(watermark))
        self._marks.watermark.write(watermark)

    def _checkpoint(self, watermark: Watermark) -> StoreCheckpoint:
        """Returns the checkpoint. After a crash, RocketMQ dispatches the log again, beginning at the earlier of the
        checkpoint's times for log and queues.

        RocketMQ also removes every index file whose end time is later than the checkpoint's index time, including the
        file in use. All keys of these files are put again only if that dispatch begins at or before the index time.
        Therefore, while the store is in use, the time for queues is never later than the index time.
        """
        index_ms = self._index.full_timestamp_ms if self._index is not None else 0
        logics_ms = self._synced.store_timestamp_ms
        if self._index is not None and not watermark.clean:
            logics_ms = min(logics_ms, index_ms)
        confirmed = self._marks.confirm_offset
        return StoreCheckpoint(
            physic_msg_timestamp_ms=self._flush.flushed_timestamp_ms,
            logics_msg_timestamp_ms=logics_ms,
            index_msg_timestamp_ms=index_ms,
            confirm_physical_offset=(
                watermark.flushed_offset if confirmed is None else min(watermark.flushed_offset, confirmed())
            ),
        )
