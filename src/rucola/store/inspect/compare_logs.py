"""Compares two logs byte by byte, by physical offset, whatever the lengths of their segments are.

Three kinds of bytes may differ although both are copies of one log, and are passed over: the bytes behind the header of
a blank record, which mean nothing; the gaps that a copy has noted, where its master had damage; and what lies before or
after the part that both have.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.errors import DiskError
from rucola.formats.message import BLANK, MAGIC_BLANK, ROWS_MAX
from rucola.store.log.checked_walk import CheckedWalk
from rucola.store.log.log_reader import LogReader
from rucola.store.log.mapped_file import MappedFile

PIECE_BYTES = 1 << 20


class RecordThere(NamedTuple):
    """What one log has at a physical offset.

    Attributes:
        kind: ``message``, ``blank`` for the record that ends a segment, or ``no record``.
        physical_offset: where the record begins.
        size: its size in bytes; 0 if there is no record.
        sha256: digest of its bytes; empty if there is no record.
        topic, queue_id, queue_offset, store_timestamp_ms: as a message states them; empty or -1 otherwise.
    """

    kind: str
    physical_offset: int
    size: int = 0
    sha256: str = ""
    topic: str = ""
    queue_id: int = -1
    queue_offset: int = -1
    store_timestamp_ms: int = -1


class Part(NamedTuple):
    """A part of a log that the other log lacks.

    Attributes:
        size_bytes: its length in bytes.
        messages: number of messages in it.
        segments: number of segments that lie wholly in it.
    """

    size_bytes: int = 0
    messages: int = 0
    segments: int = 0


class LogComparison:
    """One comparison of two logs, up to the ends that they have now.

    Attributes:
        start, end: physical offsets of the part that both logs have; ``run`` ends it before the first difference, and
            moves its start behind segments that expire meanwhile.
        different_at: physical offset of the first byte that differs; -1 if none does.
        rests: number of blank records behind which meaningless bytes differ.

    Args:
        logs: both logs.
        advance: called with the number of further bytes that were looked at.
    """

    def __init__(self, logs: tuple[LogReader, LogReader], advance: Callable[[int], None]) -> None:
        self.start = max(log.min_offset for log in logs)
        self.end = min(log.max_offset for log in logs)
        self.different_at = -1
        self.rests = 0
        self._logs = logs
        self._advance = advance
        self._gaps = sorted({gap for log in logs for gap in log.gaps})

    def run(self) -> None:
        """Compares.

        Raises:
            DiskError: a byte cannot be read.
        """
        at = self.start
        while at < self.end:
            before = at
            at = self._next(at)
            self._advance(at - before)
            if self.different_at >= 0:
                # Both have the same records before this byte, unless one of them is damaged.
                self.end = max(record_at(log, self.different_at).physical_offset for log in self._logs)
                return

    def _next(self, at: int) -> int:
        """Compares one piece; returns where the next one begins."""
        stop = min(at + PIECE_BYTES, self.end)
        for gap in self._gaps:
            if gap.start <= at < gap.end:
                return min(gap.end, self.end)
            if at < gap.start < stop:
                stop = gap.start
        files = [log.segments.find(at) for log in self._logs]
        pieces = []
        for file in files:
            assert file is not None, "both logs have these bytes"
            stop = min(stop, file.end)
        for file in files:
            assert file is not None
            try:
                pieces.append(file.map.read(at - file.start, stop - at))
            except DiskError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                self.start = min(file.end, self.end)  # it has expired meanwhile, and so have those before it
                return self.start
        if pieces[0] == pieces[1]:
            return stop
        different_at = at + _first_difference(*pieces)
        rest_end = max(_rest_end(log, different_at) for log in self._logs)
        if rest_end > different_at:
            self.rests += 1
            return min(rest_end, self.end)
        self.different_at = different_at
        return different_at


def part_of(log: LogReader, start: int, end: int, advance: Callable[[int], None]) -> Part:
    """Returns what ``log`` has from ``start`` up to ``end``. Damaged records, and what follows them in their segment,
    count as bytes only.

    Args:
        advance: called with the number of further bytes that were looked at.

    Raises:
        DiskError: a segment cannot be opened.
    """
    if start >= end:
        return Part()
    messages = segments = 0
    for file in log.segments.files:
        first, last = max(file.start, start), min(file.end, end)
        if first < last:
            segments += last - first == file.size
            for positions, _, _ in _records(file, last):
                messages += len(positions) - bisect_left(positions, first - file.start)
            advance(last - first)
    return Part(end - start, messages, segments)


def record_at(log: LogReader, physical_offset: int) -> RecordThere:
    """Returns what stands at a byte of ``log``.

    Raises:
        DiskError: the segment cannot be opened.
    """
    file = log.segments.find(physical_offset)
    if file is None:
        return RecordThere("no record", physical_offset)
    wanted, behind = physical_offset - file.start, 0
    for positions, table, end in _records(file, file.end):
        row = bisect_right(positions, wanted) - 1
        if row >= 0 and wanted < end:
            return _message(file, list(table[row * ROW_WIDTH : (row + 1) * ROW_WIDTH]))
        behind = end
    size, magic = BLANK.unpack(file.map.read(behind, BLANK.size)) if behind + BLANK.size <= file.size else (0, 0)
    if magic == MAGIC_BLANK and behind <= wanted < behind + size:
        content = file.map.read(behind, BLANK.size)
        return RecordThere("blank", file.start + behind, size, hashlib.sha256(content).hexdigest())
    return RecordThere("no record", file.start + min(behind, wanted))


def _message(file: MappedFile, row: list[int]) -> RecordThere:
    position, size = row[RecordColumn.RECORD_POS], row[RecordColumn.RECORD_SIZE]
    topic = file.map.read(row[RecordColumn.TOPIC_POS], row[RecordColumn.TOPIC_LEN])
    return RecordThere(
        "message",
        file.start + position,
        size,
        hashlib.sha256(file.map.read(position, size)).hexdigest(),
        topic.decode("utf-8", "replace"),
        row[RecordColumn.QUEUE_ID],
        row[RecordColumn.QUEUE_OFFSET],
        row[RecordColumn.STORE_TIMESTAMP],
    )


def _records(file: MappedFile, limit: int) -> Iterator[tuple[list[int], memoryview, int]]:
    """Yields the positions in their segment of the records that begin before the physical offset ``limit``, the table
    with their rows, and the position after the last of them; ends at a blank or damaged record.
    """
    table = new_table(ROWS_MAX)
    walk, position = CheckedWalk(table), 0
    while position < limit - file.start:
        rows, position, stop = walk.walk(file, position, 0)
        if rows:
            positions = table[RecordColumn.RECORD_POS : rows * ROW_WIDTH : ROW_WIDTH].tolist()
            yield positions[: bisect_left(positions, limit - file.start)], memoryview(table), position
        if stop != WalkStop.TABLE_FULL:
            return


def _rest_end(log: LogReader, physical_offset: int) -> int:
    """Returns where the meaningless bytes behind a blank record end, if ``physical_offset`` is one of them; else -1."""
    file = log.segments.find(physical_offset)
    there = record_at(log, physical_offset)
    if file is None or there.kind != "blank" or physical_offset < there.physical_offset + BLANK.size:
        return -1
    return min(there.physical_offset + there.size, file.end)


def _first_difference(ours: bytes, theirs: bytes) -> int:
    """Returns the position of the first byte that differs; there is one."""
    low, high = 0, len(ours)
    while high - low > 1:
        middle = (low + high) // 2
        if ours[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle
    return low
