"""Brings a store from any state left by a stop or a crash into a state in which appends can continue.

First, recovery finds the end of the log without changing anything. It refuses to continue if the end lies below the
offset up to which the log was known to be synced. Then recovery creates the abort file and cuts the log: it zeroes the
bytes after the end and removes later segments. Finally it syncs the log and brings queues and index up to the end.

In a Rucola store, recovery starts at the synced offsets in the watermark (``watermark``). It uses the times in the
checkpoint only after a crash: they determine the segment from which on it compares synced queue entries with their
records (``queue_mend``). A RocketMQ store has no watermark, so its whole log is checked. Its index files are kept if
they agree with the log and, after a crash, are known to be synced. An interrupted recovery reaches the same result when
it runs again.

Recovery deliberately differs from RocketMQ 5.3.3. It zeroes the bytes after the end of the log, and first copies them
to quarantine unless they are zeros or begin with a blank record. In the queues, it zeroes the units that point beyond
the end of the log, and all bytes after them. It rebuilds missing queues completely, and rebuilds the newest index file,
which RocketMQ deletes.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import chain

from rucola.common.columns import RecordColumn, new_table
from rucola.common.numbers import INT64_MAX
from rucola.errors import DiskError, StoreDamagedError
from rucola.formats.message import BLANK, CHECK_ALL, CHECK_PHYSICAL_OFFSET, CHECK_TORN_END, MAGIC_BLANK
from rucola.formats.segment_name import segment_start
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.dispatch import Dispatcher
from rucola.store.index.index_audit import sound_files
from rucola.store.log.checked_walk import CheckedWalk
from rucola.store.log.log_end import LogEnd, scan
from rucola.store.log.mapped_file import MappedFile
from rucola.store.parts import StoreParts
from rucola.store.recovery.marks import StoreMarks
from rucola.store.recovery.quarantine import Quarantine
from rucola.store.recovery.queue_mend import QueueMend
from rucola.store.recovery.repair import LogRepair
from rucola.store.recovery.screen import QueueScreen
from rucola.store.recovery.watermark import Watermark

logger = logging.getLogger(__name__)
_COPY_BYTES = 1 << 20
_CHECKPOINT_LAG_MS = 3000
"""Milliseconds that RocketMQ subtracts from the times of its checkpoint before it relies on them."""
_ADVICE = "restore the file from a copy, or start with --quarantine to serve the rest"


class Recovery:
    """One run of recovery over a store that was opened for writing.

    Attributes:
        unclean: True if the last process did not stop the store cleanly.
        trusted: True if the store is unchanged since Rucola stopped it cleanly; queues and index are then complete.
        mended: the number of synced queue entries that did not point to their record and were written again.

    Args:
        quarantine: keeps the bytes that are cut away.
        parts: the log, the queues and the index to recover.
        dispatcher: adds records of this log to these queues and this index.
        marks: the files that the last run left.
        watermark: the watermark of the last run; None if Rucola did not write the store, or the file was lost.
        replay_from: records from this offset on may lack their units, whatever the watermark says; None if there is no
            such offset.
    """

    def __init__(
        self,
        files: Files,
        quarantine: Quarantine,
        parts: StoreParts,
        dispatcher: Dispatcher,
        marks: StoreMarks,
        watermark: Watermark | None,
        replay_from: int | None = None,
    ) -> None:
        self.unclean = marks.in_use
        self.trusted = False
        self.mended = 0
        self._files = files
        self._quarantine = quarantine
        self._parts = parts
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._lite = parts.queues.lite
        self._dispatcher = dispatcher
        self._marks = marks
        self._watermark = watermark
        self._replay_from = replay_from
        self._scanned_from = 0

    def find_end(self) -> LogEnd:
        """Finds the end of the log; changes nothing.

        Raises:
            StoreDamagedError: the log ends below the offset up to which it was synced; or synced records follow a bad
                one (after a clean stop all records are synced); or a file of a queue is not a segment.
        """
        watermark, log = self._watermark, self._log
        if watermark is None and self.unclean:
            end = self._scan(log.min_offset, CHECK_ALL, INT64_MAX)
            synced_ms = self._marks.read_checkpoint().physic_msg_timestamp_ms - _CHECKPOINT_LAG_MS
            # A crash may lose bytes that were not synced. It cannot lose a file if a file that was created later still
            # exists.
            is_lost = log.segments.find(end.physical_offset) is None
            self._refuse_hole(end, INT64_MAX if is_lost else synced_ms)
        elif watermark is None:
            # As RocketMQ would, this checks the structure of the whole log and the checksums in the last segment.
            structure = self._scan(log.min_offset, CHECK_PHYSICAL_OFFSET, INT64_MAX)
            end = self._scan(self._segment_start(structure.physical_offset - 1), CHECK_ALL, INT64_MAX)
            self._refuse_hole(end, INT64_MAX)
        else:
            safe = min(watermark.flushed_offset, watermark.queues_offset)
            if watermark.clean and not self.unclean:
                safe = watermark.end_offset
            end = self._scan(self._segment_start(safe - 1), CHECK_ALL, watermark.flushed_offset)
            if end.physical_offset < watermark.flushed_offset:
                self._refuse(end, f"bytes up to {watermark.flushed_offset} were synced")
            if self.unclean and end.physical_offset > watermark.flushed_offset:
                flushed = log.boundary(max(watermark.flushed_offset, log.min_offset))
                torn = scan(log, flushed, CHECK_ALL | CHECK_TORN_END)
                # The first scan could read these records. If their pages have left memory since then, the second scan
                # reads them from the disk and may fail.
                self._refuse_unreadable(torn)
                if torn.physical_offset < end.physical_offset:
                    end = replace(torn, store_timestamp_ms=torn.store_timestamp_ms or end.store_timestamp_ms)
        self.trusted = (
            watermark is not None
            and not self.unclean
            and self._replay_from is None
            and watermark.end_offset == end.physical_offset
            and watermark.queue_count == self._queues.queue_count
            and watermark.later_files <= self._queues.later_files
            and self._queues.lengths_right
            and (self._index is None or self._index.plausible)
        )
        placement = self._queues.factory.placement
        placement.trusted_to = INT64_MAX if watermark is None or self.trusted else watermark.queues_offset
        if not self.trusted:
            self._queues.check()
        return end

    def _scan(self, start: int, check: int, trusted_to: int) -> LogEnd:
        end = scan(self._log, start, check, trusted_to, self._queues.factory.raw_unit)
        self._refuse_unreadable(end)
        self._scanned_from = start
        return end

    def _refuse_unreadable(self, end: LogEnd) -> None:
        if end.unreadable:
            self._refuse(end, "it may be there")

    def _check_readable(self, start: int, end: int) -> None:
        """Checks that the disk can read the log from ``start`` to ``end``. The search for the end of the log did not
        read these records. Dispatch will read them through the memory map, where a read error would kill the process.
        """
        for file in self._log.segments.files:
            first, last = max(start, file.start), min(end, file.end)
            if first < last:
                position = file.map.readable_end(first - file.start, last - file.start)
                if position < last - file.start:
                    raise StoreDamagedError(file.path, position, "the disk cannot read it", _ADVICE)

    def find_unreadable(self) -> None:
        """Reads all files of queues and index, to find parts that the disk cannot read. A normal start-up does not read
        these files.

        Raises:
            StoreDamagedError: the disk cannot read a part of a file, or a file of a queue is not a segment.
        """
        self._queues.check()
        paths = [path for path in self._queues.directories() if path.rpartition("/")[2].isdigit()]
        if self._index is not None:
            paths.append(self._index.path)
        for directory in paths:
            for name, size in self._files.list_sizes(directory).items():
                if size:
                    self._read_through(f"{directory}/{name}", size)

    def _read_through(self, path: str, size: int) -> None:
        segment = self._files.map_file(path, size, writable=False)
        try:
            for start, end in segment.data_ranges(0):
                if (position := segment.readable_end(start, end)) < end:
                    raise StoreDamagedError(path, position, "the disk cannot read it", _ADVICE)
        finally:
            segment.close()

    def repair(self, error: StoreDamagedError) -> None:
        """Moves the damaged part that made ``find_end`` fail into quarantine. The caller then searches for the end
        again.

        Raises:
            StoreDamagedError: this damage cannot be moved.
        """
        paths, queues = self._log.segments.paths, self._queues
        directory, _, name = error.path.rpartition("/")
        start = segment_start(name)
        if directory.rpartition("/")[2].isdigit() and directory in queues.directories():
            self._quarantine.move(directory, "-".join(directory.rsplit("/", 3)[1:]), error.problem)
            queues.close()
            queues.load()
        elif self._index is not None and directory == self._index.path:
            self._index.close()
            self._quarantine.move(directory, "index", error.problem)
            self._index.load()
        elif error.path in paths or (directory in paths and start is not None):
            offset = error.position if start is None else start + error.position
            durable_to = 0 if self._watermark is None else self._watermark.flushed_offset
            LogRepair(self._log, self._quarantine).repair(offset, durable_to, error.problem)
        else:
            raise error

    def cut_log(self, end: LogEnd) -> None:
        """Makes ``end`` the synced end of the log: overwrites everything after it with zeros, removes later segments,
        and syncs everything before it.
        """
        log = self._log
        log.max_offset = end.physical_offset
        log.segments.remove_empty()
        # Later segments may exist after a clean stop too: a segment that was created but could not be mapped is not
        # removed.
        later = [file for file in log.segments.files if file.start > end.physical_offset]
        for file in reversed(later):
            self._set_aside(file, 0, end)
        log.segments.remove_after(end.physical_offset)
        if self.trusted:
            return
        last = log.segments.find(end.physical_offset)
        if last is not None:
            position = end.physical_offset - last.start
            self._set_aside(last, position, end)
            if last.zero(position):
                event(logger, logging.WARNING, "log cut", path=last.path, position=position, reason=end.problem)
        if self.unclean:
            for file, at in end.torn_blanks:
                file.map.view[at : at + BLANK.size] = BLANK.pack(file.size - at, MAGIC_BLANK)
            self._write_again(end.physical_offset)
        for file in log.segments.files:
            file.sync()
        self._sync_directories()

    def follow(self, end: LogEnd) -> int:
        """Dispatches records to queues and index up to the end of the log; returns the number of records."""
        physical_end, log = end.physical_offset, self._log
        queues_from = log.boundary(max(self._queues_from(physical_end), log.min_offset))
        index_from = log.boundary(max(self._index_from(physical_end), log.min_offset))
        lite_from = physical_end
        if self._lite is not None:
            # Imported only here, because few stores have lite topics.
            from rucola.store.recovery.lite_recovery import open_lite

            lite_from = open_lite(self._lite, self._files, self._quarantine, queues_from, log.min_offset)
            self._dispatcher.lite_from = lite_from
        self._dispatcher.position = min(queues_from, index_from, lite_from)
        known = set() if self.trusted else set(self._queues.names())
        for topic, queue_id in sorted(known):
            self._queues.get(topic, queue_id).rewind(queues_from)
        watermark = self._watermark
        if watermark is not None and queues_from < physical_end:
            # Without this watermark, queues would look complete after a crash during this recovery. The watermark is
            # written even if the file already has this content. The content may be in memory only, because an earlier
            # process was killed or failed to sync it.
            queues_offset = min(queues_from, watermark.queues_offset)
            self._marks.watermark.write(replace(watermark, queues_offset=queues_offset, end_offset=-1))
        if self._index is not None:
            self._index.sync_when_full = True
        self._check_readable(self._dispatcher.position, min(self._scanned_from, physical_end))
        if not self.trusted:
            self._dispatcher.screen_with(QueueScreen(self._queues.factory, known))
        count = self._dispatcher.dispatch(physical_end, queues_from, index_from)
        self._dispatcher.screen_with(None)
        self._queues.factory.placement.trusted_to = INT64_MAX
        if self._index is not None:
            self._index.sync_when_full = False
        self._dispatcher.position = physical_end
        if not self.trusted:
            # The newest first: of many queues, those that were opened last are still mapped.
            for queue in reversed(list(self._queues.open_queues())):
                if queue.cut(physical_end):
                    event(logger, logging.INFO, "queue cut", topic=queue.topic, queue_id=queue.queue_id)
                queue.correct_min_offset()
            if self.unclean and watermark is not None:
                mend = QueueMend(self._parts, self._dispatcher.levels_ms, known | self._queues.names_of_files())
                self.mended = mend.run(self._synced_segment(), min(queues_from, physical_end))
        self._dispatcher.publish()
        self._dispatcher.sync()
        if self._lite is not None:
            from rucola.store.recovery.lite_recovery import complete_lite

            complete_lite(self._lite, self._queues)
        self._queues.close()
        return count

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _queues_from(self, end: int) -> int:
        """Returns the physical offset below which all records have their units."""
        if self.trusted:
            return end
        watermark, queues = self._watermark, self._queues
        if watermark is None or queues.queue_count < watermark.queue_count:
            return self._log.min_offset
        if queues.later_files < watermark.later_files:
            return self._log.min_offset
        replay_from = end if self._replay_from is None else self._replay_from
        return min(watermark.queues_offset, end, replay_from)

    def _synced_segment(self) -> int:
        """Returns the start of the segment at which RocketMQ begins to refill the queues after a crash. It is the
        newest segment whose first record was synced together with its units, according to the times in the checkpoint.
        """
        synced_ms, table = self._marks.read_checkpoint().min_timestamp_ms, new_table(1)
        for file in reversed(self._log.segments.files):
            rows, _, _ = CheckedWalk(table).walk(file, 0, CHECK_PHYSICAL_OFFSET)
            if rows and table[RecordColumn.STORE_TIMESTAMP] <= synced_ms:
                return file.start
        return self._log.min_offset

    def _index_from(self, end: int) -> int:
        """Removes index files that a crash or a cut has made wrong. Returns the physical offset below which the
        remaining files have the keys of all records.
        """
        if self._index is None:
            return end
        if self.trusted:
            return end if self._index.files else self._log.min_offset
        watermark = self._watermark
        if watermark is not None:
            return self._index.drop(end, self.unclean, watermark.queues_offset)
        for file in self._index.files:
            self._read_through(file.path, self._files.size(file.path))
        sound = sound_files(self._index.files, self._log)
        # A full index file was synced if its end time is not later than this store time.
        synced_ms = self._marks.read_checkpoint().index_msg_timestamp_ms
        return self._index.keep(sound, self.unclean, synced_ms)

    def _segment_start(self, offset: int) -> int:
        """Returns the start of the segment that holds ``offset``, or of the nearest segment if none does."""
        segments = self._log.segments
        file = segments.find(offset)
        if file is not None:
            return file.start
        return segments.start if offset < segments.start or not segments.files else segments.files[-1].start

    def _refuse_hole(self, end: LogEnd, synced_ms: int) -> None:
        """Raises ``StoreDamagedError`` if a segment after ``end`` begins with a synced record: the bad record at
        ``end`` is then damage, not the end of the log.
        """
        table = new_table(1)
        for file in self._log.segments.files:
            if file.start > end.physical_offset:
                rows, _, _ = CheckedWalk(table, self._log.stretches).walk(file, 0, CHECK_ALL)
                if rows and table[RecordColumn.STORE_TIMESTAMP] <= synced_ms:
                    self._refuse(end, f"the log continues in {file.path}")

    def _refuse(self, end: LogEnd, proof: str) -> None:
        offset = end.physical_offset
        file = self._log.segments.find(offset)
        path, position = (self._log.segments.path, offset) if file is None else (file.path, offset - file.start)
        raise StoreDamagedError(path, position, f"{end.problem} at physical offset {offset}, yet {proof}", _ADVICE)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _set_aside(self, file: MappedFile, position: int, end: LogEnd) -> None:
        """Copies to ``quarantine/`` the bytes that recovery cuts off. They may contain messages that were stored but
        not confirmed to their senders.
        """
        stop = file.data_end(position)
        content = file.map.read(position, stop - position)
        blank = len(content) >= BLANK.size and BLANK.unpack(content)[1] == MAGIC_BLANK
        if stop == position or blank:
            return
        self._quarantine.keep(file.start + position, content, end.physical_offset, end.problem)

    def _sync_directories(self) -> None:
        """Syncs directories, because a killed process may have created files in them without a sync."""
        # The log's directories are always synced, because the first segment is created before the abort file: a process
        # killed in between leaves no sign of a crash.
        places = iter(self._log.segments.paths)
        if self.unclean:
            places = chain(places, self._queues.directories(), () if self._index is None else (self._index.path,))
        for directory in places:
            try:
                self._files.sync_directory(directory)
            except DiskError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise

    def _write_again(self, end: int) -> None:
        """Writes the bytes above the watermark once more, so that the next sync covers them.

        After a failed sync, the system may treat pages that never reached the disk as clean.
        """
        if self._watermark is None:
            offset = self._segment_start(end - 1)
        else:
            offset = max(self._watermark.flushed_offset, self._log.min_offset)
        while offset < end and (file := self._log.segments.find(offset)) is not None:
            start = offset - file.start
            stop = min(end - file.start, file.size, start + _COPY_BYTES)
            file.map.rewrite(start, bytes(file.map.view[start:stop]))
            offset = file.start + stop
