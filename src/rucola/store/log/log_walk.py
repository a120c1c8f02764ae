"""Walks over parts of the log: searches for records of a given kind, and for the queues that have records there."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.formats.checksum import crc32
from rucola.formats.message import CHECK_PHYSICAL_OFFSET, ROWS_MAX, walk_records
from rucola.store.log.log_reader import LogReader
from rucola.store.log.mapped_file import MappedFile


def records_of_kind(
    log: LogReader, physical_offset: int, flag_mask: int, flags: int, topic: bytes
) -> Iterator[memoryview]:
    """Yields the matching records from ``physical_offset``, where a record starts, to the end of the log.

    Args:
        flag_mask, flags: a record matches if ``sysFlag & flag_mask == flags``.
        topic: a record also matches if it has this topic.
    """
    for file, table, rows, _ in _batches(log, physical_offset):
        view, wanted = file.map.view, False
        for base in range(0, rows * ROW_WIDTH, ROW_WIDTH):
            if not table[base + RecordColumn.SAME_TOPIC] or base == 0:
                begin = table[base + RecordColumn.TOPIC_POS]
                wanted = view[begin : begin + table[base + RecordColumn.TOPIC_LEN]] == topic
            if wanted or table[base + RecordColumn.SYS_FLAG] & flag_mask == flags:
                begin = table[base + RecordColumn.RECORD_POS]
                yield view[begin : begin + table[base + RecordColumn.RECORD_SIZE]]


def queues_named_from(log: LogReader, physical_offset: int, limit: int) -> set[tuple[bytes, int]] | None:
    """Returns topic and queue id of the records from ``physical_offset`` to ``limit``; may include records after
    ``limit``. A record must start at ``physical_offset``. None if the log cannot be read up to ``limit``.
    """
    found: set[tuple[bytes, int]] = set()
    reached = physical_offset
    for file, table, rows, following in _batches(log, physical_offset):
        if reached >= limit:
            break
        for base in range(0, rows * ROW_WIDTH, ROW_WIDTH):
            begin = table[base + RecordColumn.TOPIC_POS]
            topic = bytes(file.map.view[begin : begin + table[base + RecordColumn.TOPIC_LEN]])
            found.add((topic, table[base + RecordColumn.QUEUE_ID]))
        reached = following
    return found if reached >= limit else None


def _batches(log: LogReader, physical_offset: int) -> Iterator[tuple[MappedFile, array[int], int, int]]:
    """Yields segment, rows, number of rows, and the physical offset after these records, up to the end of the log or to
    damage.
    """
    table = new_table(ROWS_MAX)
    while physical_offset < log.max_offset:
        file = log.segments.find(physical_offset)
        if file is None:
            return
        rows, position, stop = walk_records(
            file.map.buffer,
            file.map.view,
            physical_offset - file.start,
            min(log.max_offset - file.start, file.size),
            file.start,
            table,
            ROWS_MAX,
            crc32,
            CHECK_PHYSICAL_OFFSET,
        )
        following = file.end if stop == WalkStop.BLANK else file.start + position
        yield file, table, rows, following
        if stop == WalkStop.TORN or following <= physical_offset:
            return
        physical_offset = following
