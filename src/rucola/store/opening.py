"""Locks a store's directory, opens the store and recovers it if necessary.

Each part is opened after the parts that it relies on, in this order: lock, segments of the log, deleted topics, queues,
index. A cut of the log that is planned is made first (``recovery.log_cut``). Without one, until recovery has found the
end of the log, nothing is changed, except that ``quarantine`` moves damaged parts of the store away. From then on the
abort file marks the directory as in use, so that the next start-up treats an interrupted recovery like a crash.
"""

from __future__ import annotations

import logging

from rucola.errors import StoreDamagedError
from rucola.runtime.files import DirectoryLock, Files
from rucola.runtime.logs import event
from rucola.runtime.machine import raise_file_limit
from rucola.store.config import MessageStoreConfig
from rucola.store.dispatch import Dispatcher
from rucola.store.doctor.journal import Journal
from rucola.store.index.index_service import IndexService
from rucola.store.log.log_end import LogEnd
from rucola.store.log.mapped_file import readable
from rucola.store.parts import StoreParts
from rucola.store.places import hold_store
from rucola.store.recovery.checksum_stretches import as_pairs, follow_on, known_stretches
from rucola.store.recovery.log_cut import LogCut
from rucola.store.recovery.marks import StoreMarks
from rucola.store.recovery.quarantine import Quarantine
from rucola.store.recovery.recovery import Recovery
from rucola.store.recovery.repair import repair_layout
from rucola.store.recovery.watermark import Watermark
from rucola.store.topic_deletion import TopicDeletion

logger = logging.getLogger(__name__)

_LATE_S = 86_400
"""How long the checkpoint of a pop may wait after its time, because the broker did not run."""


class StoreOpening:
    """Opens a store for writing. Each object is used once: first call ``take``, then ``open``.

    Attributes:
        recovered: whether the store had to be recovered; queues may then end earlier than before.
        mended: number of queue entries that were written again (``Recovery``); 0 unless the disk lost or damaged data.

    Args:
        root: the store's directory.
        parts: the log, the queues and the index to open.
        dispatcher: adds records to these queues and this index.
        deletion: deletes topics; completes deletions that a crash interrupted.
        marks: reads and writes the files that tell how the last run ended.
    """

    def __init__(
        self,
        files: Files,
        root: str,
        config: MessageStoreConfig,
        parts: StoreParts,
        dispatcher: Dispatcher,
        deletion: TopicDeletion,
        marks: StoreMarks,
    ) -> None:
        self.recovered = False
        self.mended = 0
        self._files = files
        self._root = root
        self._serves_around_damage = config.quarantine
        self._pop_wait_ms = (config.timer_max_delay_sec + _LATE_S) * 1000
        self._with_checksums = config.enabled_append_prop_crc
        self._dispatcher = dispatcher
        self._parts = parts
        self._log = parts.log
        self._queues = parts.queues
        self._deletion = deletion
        self._marks = marks
        self._quarantine = Quarantine(files, root)

    def take(self) -> DirectoryLock:
        """Creates the directory if there is none, and locks it.

        Raises:
            StoreLockedError: another process uses the store; nothing was touched.
            DiskError: a call of the operating system failed.
        """
        self._files.make_directory(self._root)
        hold_store(self._files, self._root, *self._log.segments.paths)
        if not self._files.exists(self._log.segments.path):
            self._sync_parent()
        return self._files.lock_directory(self._root)

    def open(self) -> LogEnd:
        """Opens the parts, makes them consistent, and returns the end of the log.

        Raises:
            StoreDamagedError: a file is damaged. Before the end of the log is found, only ``quarantine`` changes the
                store.
            DiskError: a call of the operating system failed.
        """
        if limit := raise_file_limit():
            self._queues.limit_descriptors(limit)
            self._files.held.limit_descriptors(limit)
        for path in Journal.close(self._files, self._root):
            event(logger, logging.WARNING, "repair can no longer be undone, the store is in use again", path=path)
        if self._serves_around_damage:
            repair_layout(self._files, self._log.segments, self._quarantine)
        self._log.segments.load(remove_empty=False)
        cut = LogCut(self._files, self._root, self._log, self._marks, self._quarantine)
        with readable():
            cut.begin()
        self._deletion.load()
        self._log.gaps = self._quarantine.gaps()
        watermark = self._marks.watermark.read()
        self._log.know_stretches(as_pairs(known_stretches(self._log.segments.files, watermark)))
        known = watermark if watermark is not None and watermark.clean and not self._marks.in_use else None
        self._queues.load(several=known is None or known.later_files != 0)
        if self._parts.index is not None:
            self._load_index(self._parts.index)
        end = self._recover(watermark)
        cut.finish(self._queues)
        return end

    def _recover(self, watermark: Watermark | None) -> LogEnd:
        recovery = Recovery(
            self._files,
            self._quarantine,
            self._parts,
            self._dispatcher,
            self._marks,
            watermark,
            self._deletion.replay_from,
        )
        end = self._find_end(recovery)
        if not recovery.trusted and (self._log.segments.files or self._queues.queue_count):
            self._marks.create_abort_file()
        if self._deletion.resume():
            self._queues.load()
        recovery.cut_log(end)
        writers, stretches = follow_on(self._log.segments.files, watermark, end.physical_offset, self._with_checksums)
        self._marks.writers = writers
        self._log.know_stretches(as_pairs(stretches))
        records = self._follow(recovery, end)
        needed_since_ms = end.store_timestamp_ms - self._pop_wait_ms
        self._deletion.resumed(self._log.min_offset, end.physical_offset, needed_since_ms)
        self.recovered = not recovery.trusted
        self.mended = recovery.mended
        event(
            logger,
            logging.INFO,
            "store loaded",
            path=self._root,
            unclean=recovery.unclean,
            end_offset=end.physical_offset,
            records_checked=records,
            queues=self._queues.queue_count,
            gaps=len(self._log.gaps),
        )
        return end

    def _find_end(self, recovery: Recovery) -> LogEnd:
        """Finds the end of the log. With ``quarantine``, first moves all damaged parts out of the log."""
        last = ("", 0)
        while True:
            try:
                if self._serves_around_damage:
                    recovery.find_unreadable()
                with readable():
                    return recovery.find_end()
            except StoreDamagedError as error:
                place = error.path, error.position
                if not self._serves_around_damage or place == last:
                    raise
                recovery.repair(error)
                last = place

    def _follow(self, recovery: Recovery, end: LogEnd) -> int:
        """Dispatches records to queues and index up to the end of the log. With ``quarantine``, also skips damaged
        parts that the search for the end of the log did not read.
        """
        last = ("", 0)
        while True:
            try:
                with readable():
                    return recovery.follow(end)
            except StoreDamagedError as error:
                place = error.path, error.position
                if not self._serves_around_damage or place == last:
                    raise
                recovery.repair(error)
                last = place

    def _load_index(self, index: IndexService) -> None:
        try:
            index.load()
        except StoreDamagedError as error:
            if not self._serves_around_damage:
                raise
            self._quarantine.move(index.path, "index", error.problem)
            index.load()

    def _sync_parent(self) -> None:
        """Syncs the parent directory: an earlier process may have created the store's directory and been killed before
        it synced the parent.
        """
        self._files.sync_parent(self._root)
