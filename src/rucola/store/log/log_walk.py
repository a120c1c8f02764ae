"""Searches a part of the log for a few records of one kind."""

from __future__ import annotations

from collections.abc import Iterator

from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.formats.checksum import crc32
from rucola.formats.message import walk_records
from rucola.store.log.log_reader import CHECK_PHYSICAL_OFFSET, LogReader

_ROWS_MAX = 512


def records_of_kind(
    log: LogReader, physical_offset: int, flag_mask: int, flags: int, topic: bytes
) -> Iterator[memoryview]:
    """Yields the matching records from ``physical_offset``, where a record starts, to the end of the log.

    Args:
        flag_mask, flags: a record matches if its sysFlag has these bits,
        topic: and if it has this topic.
    """
    table = new_table(_ROWS_MAX)
    while physical_offset < log.max_offset:
        file = log.queue.find(physical_offset)
        if file is None:
            return
        view = file.segment.view
        rows, position, stop = walk_records(
            file.segment.buffer,
            view,
            physical_offset - file.start,
            min(log.max_offset - file.start, file.size),
            file.start,
            table,
            _ROWS_MAX,
            crc32,
            CHECK_PHYSICAL_OFFSET,
        )
        wanted = False
        for base in range(0, rows * ROW_WIDTH, ROW_WIDTH):
            if not table[base + RecordColumn.SAME_TOPIC] or base == 0:
                begin = table[base + RecordColumn.TOPIC_POS]
                wanted = view[begin : begin + table[base + RecordColumn.TOPIC_LEN]] == topic
            if wanted or table[base + RecordColumn.SYS_FLAG] & flag_mask == flags:
                begin = table[base + RecordColumn.RECORD_POS]
                yield view[begin : begin + table[base + RecordColumn.RECORD_SIZE]]
        if stop == WalkStop.TORN:
            return
        following = file.end if stop == WalkStop.BLANK else file.start + position
        if following <= physical_offset:
            return
        physical_offset = following
