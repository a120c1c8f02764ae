"""Finds the end of a log by a walk from the start of a record to the first bytes that are not a good record."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.formats.checksum import crc32
from rucola.formats.message import BLANK, CHECK_PHYSICAL_OFFSET, ROWS_MAX, walk_records
from rucola.runtime.logs import event
from rucola.store.log.checked_walk import CheckedWalk
from rucola.store.log.log_reader import LogReader
from rucola.store.log.mapped_file import MappedFile

logger = logging.getLogger(__name__)
_LOOK_BYTES = 8 << 20
"""Number of bytes that ``_misplaced`` reads for a record; a longer record, which is rare, counts as damaged."""

UnitAt = Callable[[bytes, int, int], tuple[int, int]]
"""Reads a queue entry: takes topic, queue id and queue offset; returns the entry's physical offset and size."""


@dataclass(frozen=True)
class LogEnd:
    """Where and why a scan of the log stopped.

    Attributes:
        physical_offset: physical offset at which the scan stopped.
        store_timestamp_ms: store time of the last good record; 0 if the scan met none.
        problem: the reason why the scan stopped.
        unreadable: True if the scan stopped because the disk cannot read the next bytes; they may hold a record.
        torn_blanks: segment and position of each blank record whose size field was lost in a crash.
        last_record: physical offset of the last good record; -1 if the scan met none.
    """

    physical_offset: int
    store_timestamp_ms: int
    problem: str
    unreadable: bool = False
    torn_blanks: tuple[tuple[MappedFile, int], ...] = ()
    last_record: int = -1


def scan(log: LogReader, start: int, check: int, trusted_to: int = 0, unit_at: UnitAt | None = None) -> LogEnd:
    """Walks the log from the record at ``start`` up to the first bytes that are not a good record.

    If a blank record ends the last segment, the log ends where the blank record starts: the next append overwrites the
    blank record.

    Args:
        trusted_to: physical offset. The walk passes a record before this offset even if its physical offset field is
            wrong. Such a record must have no other fault and must be confirmed: a good or blank record follows
            directly, or the queue entry for the record's topic, queue id and queue offset points to the record.
        unit_at: reads a queue entry; None if queue entries are not to be consulted.
    """
    table, offset, timestamp_ms, last = new_table(ROWS_MAX), start, 0, -1
    walk = CheckedWalk(table, log.stretches)
    torn: list[tuple[MappedFile, int]] = []
    while (file := log.segments.find(offset)) is not None:
        rows, position, stop = walk.walk(file, offset - file.start, check)
        if rows:
            timestamp_ms = table[(rows - 1) * ROW_WIDTH + RecordColumn.STORE_TIMESTAMP]
            last = file.start + table[(rows - 1) * ROW_WIDTH + RecordColumn.RECORD_POS]
        offset = file.start + position
        if walk.unreadable:
            return LogEnd(offset, timestamp_ms, "the disk cannot read the record", True, tuple(torn), last)
        if stop == WalkStop.TORN and check & CHECK_PHYSICAL_OFFSET and offset < trusted_to:
            passed = _misplaced(log, file, position, check, walk, unit_at)
            if passed is not None:
                last = offset
                offset, timestamp_ms = passed
                continue
        if stop == WalkStop.TORN:
            return LogEnd(offset, timestamp_ms, "no whole, undamaged record", False, tuple(torn), last)
        if stop == WalkStop.BLANK:
            if log.segments.find(file.end) is None:
                return LogEnd(offset, timestamp_ms, "no segment after this one", False, tuple(torn), last)
            if BLANK.unpack(file.map.view, position)[0] != file.size - position:
                torn.append((file, position))
            offset = file.end
    return LogEnd(offset, timestamp_ms, "no segment", False, tuple(torn), last)


def _misplaced(
    log: LogReader, file: MappedFile, position: int, check: int, walk: CheckedWalk, unit_at: UnitAt | None
) -> tuple[int, int] | None:
    """Returns the offset after the record at ``position``, and the record's store time. Returns None unless the
    record's only fault is its physical offset field, and the record is confirmed (see ``scan``).
    """
    segment, table, start = file.map, new_table(1), file.start + position
    limit = walk.read_to(file, min(position + _LOOK_BYTES, file.size))
    lenient = check & ~CHECK_PHYSICAL_OFFSET
    rows, behind, _ = walk_records(
        segment.buffer, segment.view, position, limit, file.start, table, 1, crc32, lenient, log.stretches
    )
    if not rows:
        return None
    timestamp_ms = table[RecordColumn.STORE_TIMESTAMP]
    said = table[RecordColumn.PHYSICAL_OFFSET]
    topic = log.topic_of(start, table)
    named = (topic, table[RecordColumn.QUEUE_ID], table[RecordColumn.QUEUE_OFFSET])
    place = (start, table[RecordColumn.RECORD_SIZE])
    limit = walk.read_to(file, min(behind + _LOOK_BYTES, file.size))
    rows, _, stop = walk_records(
        segment.buffer, segment.view, behind, limit, file.start, table, 1, crc32, check, log.stretches
    )
    if not rows and stop != WalkStop.BLANK and (unit_at is None or unit_at(*named) != place):
        return None
    event(
        logger,
        logging.WARNING,
        "record states another position",
        path=file.path,
        position=position,
        physical_offset=said,
    )
    return file.start + behind, timestamp_ms
