"""Defects to plant in the store: each removes one precaution, and the explorer must notice every one of them.

The defects in ``FOUND`` are bugs of the store that the explorer found when it was first used; they are regression tests
of the explorer.
"""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.unit.runtime import test_files
from tests.unit.store import test_readers_in_place

from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.errors import DiskError
from rucola.formats.checksum import crc32
from rucola.formats.message import RecordPlacement, encode_rows
from rucola.formats.segment_name import segment_name
from rucola.runtime.files import DirectoryLock, Files
from rucola.store.condition import StoreCondition
from rucola.store.dispatch import Dispatcher
from rucola.store.index.index_service import IndexService
from rucola.store.keeper import StoreKeeper
from rucola.store.log.commit_log import CommitLog
from rucola.store.log.flush import FlushService
from rucola.store.log.log_end import LogEnd
from rucola.store.log.mapped_file import MappedFile
from rucola.store.log.segment_list import SegmentList
from rucola.store.message_store import MessageStore
from rucola.store.opening import StoreOpening
from rucola.store.progress import Progress
from rucola.store.queue.consume_queue import ConsumeQueue
from rucola.store.queue.consume_queue_store import ConsumeQueueStore
from rucola.store.recovery import recovery
from rucola.store.recovery.quarantine import Quarantine
from rucola.store.recovery.recovery import Recovery
from rucola.store.recovery.watermark import Watermark
from rucola.store.retention import Retention
from rucola.store.row_run import RowRun

Defect = Callable[[], AbstractContextManager[Any]]


def plant(owner: Any, name: str, value: Any) -> Defect:
    """Returns a defect that sets ``owner.name`` to ``value``."""
    return lambda: patch.object(owner, name, value)


# -- while running ----------------------------------------------------------------------------------------------------


def _flush_without_sync(self: FlushService) -> bool:
    self.flushed_offset = self._log.max_offset
    return True


def _flush_newest_segment_only(self: FlushService) -> bool:
    target = self._log.max_offset
    self._log.segments.files[-1].sync()
    self.flushed_offset = max(self.flushed_offset, target)
    return True


def _flush_counts_what_came_meanwhile(self: FlushService) -> bool:
    for file in list(self._log.segments.files):
        file.sync()
    self.flushed_offset = self._log.max_offset
    return True


_sync = MappedFile.sync


def _sync_again(self: MappedFile) -> None:
    try:
        _sync(self)
    except DiskError:
        _sync(self)


def _sync_and_ignore(self: MappedFile) -> None:
    with suppress(DiskError):
        _sync(self)


def _record_ahead(self: StoreKeeper, watermark: Watermark) -> None:
    self._marks.watermark.write(replace(watermark, flushed_offset=self._flush._log.max_offset))


def _dispatch_raises(self: MessageStore) -> int:
    return self._dispatcher.dispatch(self.confirm_offset)


_work = FlushService._work


def _work_in_spite_of_failure(self: FlushService) -> None:
    self._failed = False
    _work(self)


@contextmanager
def _failed_sync_is_tried_again() -> Iterator[None]:
    with (
        patch.object(FlushService, "_work", _work_in_spite_of_failure),
        patch.object(StoreCondition, "fail", lambda self: True),
    ):
        yield


# -- recovery ---------------------------------------------------------------------------------------------------------


_scan = recovery.scan


def _scan_stops_early(*arguments: Any) -> LogEnd:
    end = _scan(*arguments)
    return replace(end, physical_offset=end.physical_offset - end.physical_offset % 4096)


def _scan_goes_too_far(*arguments: Any) -> LogEnd:
    end = _scan(*arguments)
    return replace(end, physical_offset=end.physical_offset + 8)


def _remove_later_only_in_memory(self: SegmentList, position: int) -> list[str]:
    self.files = [file for file in self.files if file.start <= position]
    return []


PLANTED: dict[str, tuple[str, Defect]] = {
    "acknowledged before the sync": ("put", plant(FlushService, "flush", _flush_without_sync)),
    "newest segment synced only": ("roll", plant(FlushService, "flush", _flush_newest_segment_only)),
    "what came during a sync counted": (
        "while_syncing",
        plant(FlushService, "flush", _flush_counts_what_came_meanwhile),
    ),
    "visible before the sync": ("put", plant(MessageStore, "confirm_offset", property(lambda self: self.max_offset))),
    "watermark ahead of the sync": ("put", plant(StoreKeeper, "_record", _record_ahead)),
    "queues recorded, not synced": ("queues", plant(ConsumeQueueStore, "sync", lambda self, queues: None)),
    "tail not zeroed": ("put", plant(MappedFile, "zero", lambda self, position: False)),
    "tail not kept aside": ("batch", plant(Recovery, "_set_aside", lambda self, file, position, end: None)),
    "log cut too early": ("put", plant(recovery, "scan", _scan_stops_early)),
    "log cut too late": ("put", plant(recovery, "scan", _scan_goes_too_far)),
    "checksums not compared": ("roll", plant(recovery, "CHECK_ALL", 4)),
    "later segments left": ("roll", plant(SegmentList, "remove_after", _remove_later_only_in_memory)),
    "stale units left": ("roll, async", plant(ConsumeQueue, "cut", lambda self, physical_end: False)),
    "damaged index kept": (
        "put",
        plant(IndexService, "drop", lambda self, physical_end, unclean, synced_end: self.end_offset),
    ),
    "batch split between two segments": ("border", plant(CommitLog, "_make_room", lambda *_: True)),
    "recovered bytes not synced": ("kill", plant(MappedFile, "sync", lambda self: None)),
}
"""Defects that power cuts reveal: workload (under SYNC_FLUSH unless it says otherwise) and defect, by name."""

PLANTED_FAULTS: dict[str, tuple[str, Defect]] = {
    "failed sync repeated at once": ("put", plant(MappedFile, "sync", _sync_again)),
    "failed sync ignored": ("put", plant(MappedFile, "sync", _sync_and_ignore)),
    "store goes on after a failed sync": ("roll", _failed_sync_is_tried_again),
    "range of a failed sync trusted": ("put", plant(Recovery, "_write_again", lambda self, end: None)),
}
"""Defects that failing calls reveal: workload and defect, by name."""


# -- found by the explorer --------------------------------------------------------------------------------------------


_drop = IndexService.drop


def _drop_newest_only(self: IndexService, physical_end: int, unclean: bool, synced_end: int) -> int:
    return _drop(self, physical_end, unclean, 1 << 62)


def _remove_after(self: SegmentList, position: int) -> list[str]:
    removed = []
    while self.files and self.files[-1].start > position:
        file = self.files.pop()
        file.close()
        self._files.remove(file.path)
        removed.append(file.path)
    if removed:
        self._files.sync_directory(self.path)
    return removed


_write_again = ConsumeQueue._write_again


def _write_only_what_differs(self: ConsumeQueue, start: int, units: bytes) -> None:
    file = self.segments.find(start)
    if file is None or file.map.view[start - file.start : start - file.start + len(units)] != units:
        _write_again(self, start, units)


def _create_without_sync(self: SegmentList, start: int) -> str:
    path = f"{self.path}/{segment_name(start)}"
    return path if self._files.exists(path) else _create(self, start)


_create = SegmentList.create


def _overwrite_aside(self: Quarantine, place: int, content: bytes) -> tuple[str, bytes | None]:
    return f"{self.path}/{place:020d}", None


_next_file = IndexService._next_file


def _next_file_without_sync(self: IndexService) -> Any:
    self.sync_when_full = False
    return _next_file(self)


_find_end = IndexService._find_end


def _find_end_of_one_file(self: IndexService, *begins: int) -> None:
    _find_end(self, *begins)
    if self._keys_done:
        ends = [file.header().end_physical_offset for file in self.files]
        self._keys_done = self.files[ends.index(max(ends))].keys_at_end()


FOUND: dict[str, tuple[str, Defect]] = {
    "record whose checksum was lost with its page taken for one that has none": (
        "kill, async",
        plant(recovery, "CHECK_TORN_END", 0),
    ),
    "keys of the record at the border of two index files put twice": (
        "index_roll",
        plant(IndexService, "_first_row", lambda self, table, rows, base: setattr(self, "_keys_done", 0) or 0),
    ),
    "index files that filled up between two syncs kept after a crash": (
        "index_roll",
        plant(IndexService, "drop", _drop_newest_only),
    ),
    "units found in memory after a kill not synced": (
        "kill, async",
        plant(ConsumeQueue, "_write_again", _write_only_what_differs),
    ),
}
"""Defects that power cuts revealed: workload, and the code as it was, by name."""

FOUND_IN_RECOVERY: dict[str, tuple[str, int, int, int, Defect]] = {
    "removals of segments synced together": ("roll", 1, 5, 20, plant(SegmentList, "remove_after", _remove_after)),
    "watermark of queues not lowered while one is rebuilt": (
        "missing_queue",
        0,
        3,
        5,
        plant(
            recovery,
            "replace",
            lambda value, **changes: value if "queues_offset" in changes else replace(value, **changes),
        ),
    ),
    "index files rebuilt by a recovery not synced when they are full": (
        "kill",
        0,
        5,
        11,
        plant(IndexService, "_next_file", _next_file_without_sync),
    ),
    "kept bytes overwritten by what an interrupted recovery left": (
        "batch",
        8,
        3,
        11,
        plant(Quarantine, "_place", _overwrite_aside),
    ),
}
"""Defects that power cuts during recovery revealed, by name: workload, number of random states per step, n, m, and the
code as it was. One in n states is recovered under further power cuts; the power fails at one in m steps.
"""

FOUND_BY_FAULTS: dict[str, tuple[str, str, Defect]] = {
    "input/output error while dispatching thrown at the caller": (
        "put",
        "EIO once",
        plant(MessageStore, "dispatch", _dispatch_raises),
    ),
    "keys of a record that two index files share counted in one of them": (
        "missing_queue",
        "EIO once",
        plant(IndexService, "_find_end", _find_end_of_one_file),
    ),
    "segment taken whose directory could not be synced when it was made": (
        "clean_stop",
        "EIO once",
        plant(SegmentList, "create", _create_without_sync),
    ),
    "directories of a killed process not synced": (
        "put",
        "kill",
        plant(Recovery, "_sync_directories", lambda self: None),
    ),
    "store directory of a process killed in its first moments not synced": (
        "put",
        "kill",
        plant(StoreOpening, "_sync_parent", lambda self: None),
    ),
}
"""Defects that failing calls or kills revealed: workload, fault, and the code as it was, by name."""


# -- found between threads --------------------------------------------------------------------------------------------


_dispatch_batch = Dispatcher._dispatch_batch


def _position_of_each_batch(self: Dispatcher, file: MappedFile, end: int, queues_from: int, index_from: int) -> int:
    rows = _dispatch_batch(self, file, end, queues_from, index_from)
    counts = self._queues.queue_count, self._queues.later_files
    self.progress.publish(Progress(self.position, self.store_timestamp_ms, self.index_position, *counts), [], None)
    return rows


def _park_without_descriptor(self: MappedFile, unsynced: bool) -> bool:
    if self._mapped is not None:
        self.close()
        parked_by_path.add(self)
    return False


parked_by_path: set[MappedFile] = set()


def _sync_by_path(self: MappedFile) -> None:
    if self._mapped is not None:
        self._mapped.sync()
    elif self in parked_by_path:
        segment = self._files.map_file(self.path, self.size)
        segment.sync()
        segment.close()
    parked_by_path.discard(self)


@contextmanager
def _parked_files_synced_by_path() -> Iterator[None]:
    with (
        patch.object(MappedFile, "park", _park_without_descriptor),
        patch.object(MappedFile, "sync", _sync_by_path),
    ):
        yield
    parked_by_path.clear()


def _publish_then_map(self: SegmentList, start: int) -> MappedFile:
    path = self.create(start)
    file = MappedFile(self._files, path, start, self.segment_bytes, self._writable, self.segment_bytes)
    self.files.append(file)
    _ = file.map
    return file


@contextmanager
def _published_before_it_is_mapped() -> Iterator[None]:
    with (
        patch.object(SegmentList, "prepare", _publish_then_map),
        patch.object(SegmentList, "publish", lambda self, file: None),
    ):
        yield


def _forget_only_uncorrected(self: Retention, queues: list[ConsumeQueue]) -> None:
    gone = set(queues)
    self._uncorrected = deque(queue for queue in self._uncorrected if queue not in gone)


_sync_dispatched = Dispatcher.sync


def _sync_what_is_being_written(self: Dispatcher) -> Progress:
    """The sync takes the list of dirty index files too late: a file written while the sync runs is marked as clean."""
    written = None if self._index is None else self._index.take_written()
    self.progress.publish(self.progress.current, [], written)
    return _sync_dispatched(self)


BETWEEN_THREADS: dict[str, tuple[str, int, Defect]] = {
    "1.1 position published before what was written": (
        "expiry",
        41,
        plant(Dispatcher, "_dispatch_batch", _position_of_each_batch),
    ),
    "1.2 index file taken as synced before it was written": (
        "index_roll",
        2848,
        plant(Dispatcher, "sync", _sync_what_is_being_written),
    ),
    "1.3 files that gave up their maps synced by path": ("parked", 22, _parked_files_synced_by_path),
    "expired files of a deleted topic removed by path": (
        "expired_and_deleted",
        1,
        plant(Retention, "forget", _forget_only_uncorrected),
    ),
}
"""Defects that power cuts revealed while the store's threads took turns: workload, seed, and the code as it was, by
name.
"""

MAPS_FAIL: dict[str, tuple[str, str, Defect]] = {
    "1.4 segment published before it is mapped": ("roll", "ENOMEM once", _published_before_it_is_mapped),
}
"""Defects that failing calls revealed; see ``FOUND_BY_FAULTS``."""


_lock_directory = Files.lock_directory


def _lock_and_close_nothing(self: Files, path: str) -> DirectoryLock:
    with patch.object(os, "close", lambda descriptor: None):
        return _lock_directory(self, path)


_make_room = CommitLog._make_room


def _encode_to_find_out(self: CommitLog, rows: RowRun, lengths: tuple[int, int, int, int], suffix: bytes) -> bool:
    """Encodes the batch into the current segment to find out how much of it fits, then erases these records, although a
    reader in place may have seen them.
    """
    file, target = self._file, self._target
    assert file is not None and target is not None
    source, view, _, first, last = rows
    topic, born_host, host = (b"T" * lengths[0], bytes(lengths[2]), bytes(lengths[3]))
    position, table = self.written_offset - file.start, array("q", rows.table)
    place = RecordPlacement(position, file.size, file.start, 1, False)
    hosts = array("q", bytes(8 * lengths[1])), born_host, host
    encode_rows(source, view, table, first, last, target.buffer, target.view, place, topic, *hosts, suffix, crc32)
    end = file.start + position
    for row in range(first, self._encoded(table, first, last)):
        end += table[row * ROW_WIDTH + FrameColumn.RECORD_SIZE]
    target.view[position : end - file.start] = bytes(end - file.start - position)
    return _make_room(self, rows, lengths, suffix)


ELSEWHERE: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], None], Defect]] = {
    "1.5 records taken back that a reader in place was given": (
        lambda path, _: test_readers_in_place.test_a_batch_that_rolls_is_not_seen_in_the_segment_it_does_not_fit_into(
            {}, path
        ),
        plant(CommitLog, "_make_room", _encode_to_find_out),
    ),
    "1.6 descriptor and lock kept when the lock file cannot be written": (
        test_files.test_a_lock_file_that_cannot_be_written_is_given_free,
        plant(Files, "lock_directory", _lock_and_close_nothing),
    ),
}
"""Defects that a unit test notices: the test, and the change that plants the defect, by name."""
