"""Raw archives: every byte of a commit log as rows, so that ``restore`` writes the same files again.

A row covers a stretch of a segment: a record of any topic (including system topics, such as that of half messages), the
blank record at the end of a segment, or bytes that are not a record. A blank record, and bytes that are not a record,
are stored without the zeros at their end. The bytes after the end of the log (its tail), such as a torn record, are
archived only while no broker uses the store. If the tail changes, a later commit replaces or removes the archived tail.
The commit that reaches the end of the log also archives the files of ``config``, the list of deleted topics, and the
sizes of the files of queues and index, if they have changed.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rucola.arrow.offsets import Mark, StreamOffsets, queue_text
from rucola.arrow.ranges import FileSpan
from rucola.arrow.read_options import DEFAULT_BROKER_NAME
from rucola.common.message_queue import MessageQueue
from rucola.errors import AnotherLogError, ConfigError, DataLossError, TableConflictError
from rucola.formats.segment_name import is_segment_name
from rucola.lake.archiver import (
    CONFLICTS_MAX,
    Step,
    commit_rebased,
    files_of,
    tell_conflict,
    write_all,
)
from rucola.lake.columns import json_of
from rucola.lake.continuation import ANOTHER_TABLE, name_error
from rucola.lake.file_sizes import SIZES, encode_sizes, read_sizes, sizes_of
from rucola.lake.raw_rows import (
    CONFIG_PART,
    DELETED_PART,
    LOG_PART,
    TAIL_PART,
    Stretch,
    content_rows,
    digest_of,
    raw_schema,
    stretch_rows,
)
from rucola.lake.table_log import Change, DataFile, Snapshot, TableLog
from rucola.lake.workers import Task, Workers, run_here
from rucola.places.place import Place
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.store.log.multi_path import log_directories
from rucola.store.offline.offline_store import OfflineStore
from rucola.store.topic_deletion import FILE_NAME as DELETED_TOPICS

LOG_TOPIC = "#log"
"""The archived offset of a log is stored like that of a queue, under this topic name, which no real topic can have."""
CONFIG = "config"
SEGMENTS_PER_COMMIT = 16

logger = logging.getLogger(__name__)


class RawArchiver:
    """Copies the new bytes of a commit log, and the store's configuration, into a raw table.

    Args:
        table: the table's log.
        store: directory of the store.
        workers: who reads and writes.
        broker_name: name of the store's broker; a table may hold the logs of several brokers.
        commit_log_path: directory of the log if the log is not in the store's directory; several directories are
            separated by commas.
        segments_per_commit: largest number of segments in one commit.
        clock: source of time.
    """

    def __init__(
        self,
        table: TableLog,
        store: str,
        workers: Workers = run_here,
        broker_name: str = DEFAULT_BROKER_NAME,
        commit_log_path: str = "",
        segments_per_commit: int = SEGMENTS_PER_COMMIT,
    ) -> None:
        if not broker_name:
            raise ConfigError("broker_name", "''", "the name of the store's broker")
        self._table = table
        self._files = Files()
        self._store = self._files.expand(store)
        self._workers = workers
        self._broker_name = broker_name
        self._commit_log_path = commit_log_path
        self._segments_per_commit = segments_per_commit
        self._clock = SystemClock()
        self._queue = MessageQueue(LOG_TOPIC, broker_name, 0)

    def steps(self) -> Iterator[Step]:
        """Archives until nothing is new; yields each commit."""
        while (step := self.step()) is not None:
            yield step

    def step(self) -> Step | None:
        """Makes one commit; returns None if there is nothing new.

        Raises:
            AnotherLogError: the last archived record is no longer at its position.
            DataLossError: segments expired before they were archived, or the log became shorter.
            TableConflictError: other writers were faster many times in a row.
        """
        for attempt in range(CONFLICTS_MAX):
            began_s = self._clock.monotonic()
            # First the snapshot, then the log: what other runs archive meanwhile must not lie beyond the log's end.
            base = self._table.snapshot()
            self._recognise(base)
            plan = self._plan(base)
            if plan is None:
                return None
            task = _stretch_task(self._table.place, self._broker_name, plan.stretches)
            added = files_of([*self._workers(task, len(plan.stretches)), *plan.added])
            mark = _last_record(self._table.place, added) or base.mark_of(self._queue)
            offsets = plan.offsets if mark is None else replace(plan.offsets, marks={self._queue: mark})
            schema = json_of(raw_schema()) if base.schema is None else None
            change = Change("archive", tuple(added), tuple(plan.removed), offsets, schema)
            try:
                version = commit_rebased(self._table, base, change)
            except TableConflictError as error:
                tell_conflict(error)
                for one in added:
                    self._table.place.remove(one.path)
                if attempt == CONFLICTS_MAX - 1:
                    raise
                continue
            except ConfigError:
                for one in added:
                    self._table.place.remove(one.path)
                raise
            rows, size = sum(one.rows for one in added), sum(one.size for one in added)
            return Step(version, rows, size, len(added), plan.left, self._clock.monotonic() - began_s)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _recognise(self, base: Snapshot) -> None:
        """Goes on under the name that the table has for this log, if it has it by another name.

        Raises:
            ConfigError: the log may be one that the table has by another name, but the records that would show it have
                expired.
        """
        others = [queue for queue in base.offsets.marks if queue.topic == LOG_TOPIC and queue != self._queue]
        if base.end_of(self._queue) is not None or not others:
            return
        store = OfflineStore(self._store, self._files, self._commit_log_path or None)
        try:
            unsure = []
            for queue in others:
                is_same = _has_record(store, base.offsets.marks[queue])
                if is_same:
                    logger.info(
                        "the log of broker %s is the one that the table has as %s; it goes on under that name",
                        self._broker_name,
                        queue.broker_name,
                    )
                    self._queue, self._broker_name = queue, queue.broker_name
                    return
                if is_same is None:
                    unsure.append(queue.broker_name)
        finally:
            store.close()
        if unsure:
            raise name_error(self._broker_name, min(unsure))

    def _plan(self, base: Snapshot) -> _Plan | None:
        store = OfflineStore(self._store, self._files, self._commit_log_path or None)
        try:
            segments = [FileSpan(*segment) for segment in store.log_segments()]
            first, end = segments[0].start if segments else 0, store.end_offset()
            start = self._start(base, store, first, end)
            every = [
                Stretch(LOG_PART, one, max(start, one.start), min(end, one.end))
                for one in segments
                if max(start, one.start) < min(end, one.end)
            ]
            chosen = every[: self._segments_per_commit]
        finally:
            store.close()
        reached = chosen[-1].end if chosen else start
        offsets = StreamOffsets({self._queue: reached}, {self._queue: start})
        if len(every) > len(chosen):
            # The log has grown past the archived tails, so they are removed.
            return _Plan(chosen, [], list(self._old(base, TAIL_PART)), offsets, len(every) - len(chosen))
        tail, old_tail = self._tail(base, segments, end)
        config, old_config = self._config(base)
        sizes, old_sizes = self._sizes(base)
        deleted, old_deleted = self._deleted(base)
        added, removed = [*config, *sizes, *deleted], [*old_tail, *old_config, *old_sizes, *old_deleted]
        if not (chosen or tail or added or removed) and base.end_of(self._queue) is not None:
            return None
        return _Plan([*chosen, *tail], added, removed, offsets, 0)

    def _start(self, base: Snapshot, store: OfflineStore, first: int, end: int) -> int:
        """Physical offset of the first byte of the log that is not in the table."""
        archived = base.end_of(self._queue)
        if archived is None:
            return first
        if not first <= archived <= end:
            raise DataLossError(queue_text(self._queue), archived, max(archived, end), first, end, ANOTHER_TABLE)
        mark = base.mark_of(self._queue)
        if (
            mark is not None
            and mark.physical_offset >= first
            and store.store_timestamp(mark.physical_offset) != mark.store_timestamp_ms
        ):
            raise AnotherLogError(queue_text(self._queue), archived, archived, first, end, ANOTHER_TABLE)
        return archived

    def _tail(self, base: Snapshot, segments: Sequence[FileSpan], end: int) -> tuple[list[Stretch], list[DataFile]]:
        """Returns the stretches of the tail to archive, and the data files of older tails, which the commit removes.

        While the broker runs, the tail is left out: it changes all the time, and a restore does not need it.
        """
        old = {(one.partition["segment"], one.partition["sha256"]): one for one in self._old(base, TAIL_PART)}
        found = []
        if not self._files.lock_held(self._store):
            for one in [*segments, *self._empty_segments()]:
                if one.end > end or not one.size:
                    stretch = Stretch(TAIL_PART, one, min(max(end, one.start), one.end), one.end)
                    found.append(replace(stretch, digest=digest_of(stretch)))
        same = {(one.partition("")["segment"], one.digest) for one in found} & old.keys()
        new = [one for one in found if (one.partition("")["segment"], one.digest) not in same]
        return new, [file for key, file in old.items() if key not in same]

    def _empty_segments(self) -> Iterator[FileSpan]:
        """Segment files of length 0, which a crash may leave behind; they hold no part of the log."""
        for directory in log_directories(self._files, self._store, self._commit_log_path or None):
            for name, length in self._files.list_sizes(directory, is_segment_name).items():
                if not length:
                    yield FileSpan(f"{directory}/{name}", int(name), 0)

    def _old(self, base: Snapshot, part: str) -> Iterator[DataFile]:
        """Data files of kind ``part`` for this broker."""
        for one in base.files.values():
            if one.partition["part"] == part and one.partition["broker"] == self._broker_name:
                yield one

    def _config(self, base: Snapshot) -> tuple[list[str], list[DataFile]]:
        """Writes a changed configuration to a new data file; returns the report of this file, and the data files that
        it replaces.
        """
        contents = {}
        for name in self._files.list_files(f"{self._store}/{CONFIG}"):
            content = self._files.read_file(f"{self._store}/{CONFIG}/{name}")
            if content is not None and not name.endswith(".tmp"):
                contents[name] = content
        return self._replaced(base, CONFIG_PART, CONFIG, contents)

    def _sizes(self, base: Snapshot) -> tuple[list[str], list[DataFile]]:
        """The same for the sizes of the files of queues and index."""
        known = read_sizes(self._table.place, self._old(base, SIZES))
        sizes = sizes_of(self._files, self._store, known)
        return self._replaced(base, SIZES, SIZES, {SIZES: encode_sizes(sizes)} if sizes else {})

    def _deleted(self, base: Snapshot) -> tuple[list[str], list[DataFile]]:
        """The same for the list of deleted topics: without it, a restore brings them back."""
        content = self._files.read_file(f"{self._store}/{DELETED_TOPICS}")
        return self._replaced(base, DELETED_PART, DELETED_PART, {DELETED_TOPICS: content} if content else {})

    def _replaced(
        self, base: Snapshot, part: str, kind: str, contents: Mapping[str, bytes]
    ) -> tuple[list[str], list[DataFile]]:
        """Writes a new data file with a row for each of ``contents``, unless the table has one with the same rows."""
        digest = hashlib.sha256(repr(sorted(contents.items())).encode()).hexdigest() if contents else ""
        old = list(self._old(base, part))
        if [one.partition["sha256"] for one in old] == ([digest] if digest else []):
            return [], []
        if not contents:
            return [], old
        fixed = {"part": part, "broker": self._broker_name, "segment": "0", "sha256": digest}
        return [write_all(self._table.place, raw_schema(), content_rows(kind, contents), fixed)], old


@dataclass(frozen=True)
class _Plan:
    stretches: Sequence[Stretch]
    added: Sequence[str]
    """Reports of the data files that are written already."""
    removed: Sequence[DataFile]
    offsets: StreamOffsets
    left: int
    """Number of segments that are left for later commits."""


def _stretch_task(place: Place, broker_name: str, stretches: Sequence[Stretch]) -> Task:
    def write(number: int) -> str:
        stretch = stretches[number]
        rows = stretch_rows(stretch, broker_name)
        return write_all(place, raw_schema(), rows, stretch.partition(broker_name))

    return write


def _has_record(store: OfflineStore, mark: Mark) -> bool | None:
    """Whether the record of a mark is in the log; None if it has expired, and the log is not older."""
    first = store.min_offset()
    if mark.physical_offset >= first:
        found = store.record_at(mark.physical_offset)
        return found is not None and store.store_timestamp(mark.physical_offset) == mark.store_timestamp_ms
    oldest = store.store_timestamp(first) if store.record_at(first) is not None else mark.store_timestamp_ms
    return False if oldest < mark.store_timestamp_ms else None


def _last_record(place: Place, added: Sequence[DataFile]) -> Mark | None:
    """Returns store time and physical offset of the last record in ``added``; None if there is no record."""
    import numpy as np

    from rucola.arrow.buffers import numbers_of

    found: Mark | None = None
    names = ["physicalOffset", "storeTimestamp"]
    for one in added:
        if one.partition["part"] != LOG_PART:
            continue
        with place.parquet(one.path) as file:
            last = file.read_row_group(file.num_row_groups - 1, columns=names)
        last = last.filter(last.column("storeTimestamp").is_valid())  # only records have a store time
        if last.num_rows:
            at, time = (numbers_of(last.column(name).combine_chunks(), np.int64)[-1] for name in names)
            found = max(found or Mark(0, -1), Mark(int(time) // 1000, int(at)), key=lambda mark: mark.physical_offset)
    return found
