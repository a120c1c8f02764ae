"""Decides which index files of a store with unknown history can be kept: files that agree completely with the log.

The keys of the log are put, batch by batch, into a temporary index file with one slot. Its entries must equal the next
entries of the store's files in hash, physical offset and time; so missing entries are noticed, too. The entries are
compared column by column. The chains of a file are checked separately. A file with more entries than the log has keys
is wrong, and so are all files after a wrong one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from rucola.common.columns import WalkStop, new_table
from rucola.common.ids import PhysicalOffset
from rucola.formats.checksum import crc32
from rucola.formats.index_file import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    IndexHeader,
    find_broken_chain,
    index_file_bytes,
    put_rows,
)
from rucola.formats.message import ROWS_MAX, walk_records
from rucola.store.index.index_service import IndexFile
from rucola.store.log.log_reader import LogReader
from rucola.store.log.mapped_file import MappedFile

_SCRATCH_ENTRIES = 8192
# Entry 0 is never used. Entry 1 is not used either, because it would set the time from which seconds are counted.
_SCRATCH_FIRST = 2
_SCRATCH_AT = INDEX_HEADER.size + INDEX_SLOT.size + INDEX_ENTRY.size * _SCRATCH_FIRST
_WORDS = INDEX_ENTRY.size // 4
_SECONDS_WORD = 3
_offset_of = INDEX_ENTRY.struct.unpack_from


def sound_files(files: Iterable[IndexFile], log: LogReader) -> list[IndexFile]:
    """Returns the files whose entries all agree with the log, in the order of their records. Changes nothing.

    Entries of expired records are accepted unchecked.
    """
    waiting = sorted(files, key=lambda file: (file.header().begin_physical_offset, file.name))
    audits = (_FileAudit(file, log) for file in waiting)
    sound: list[IndexFile] = []
    current = _next(audits, None)
    for segment, table, rows in _batches(log):
        row = done = 0
        while current is not None and row < rows:
            if current.left == 0:
                sound.append(current.file)
                current = _next(audits, current)
                continue
            step = current.match(segment, table, row, rows, done)
            if step is None:
                return sound
            row, done = step
        if current is None:
            return sound
    while current is not None and current.left == 0:
        sound.append(current.file)
        current = _next(audits, current)
    return sound


class _FileAudit:
    """Compares the entries of one file with the log.

    Attributes:
        left: number of entries that are not yet compared.
    """

    def __init__(self, file: IndexFile, log: LogReader) -> None:
        self.file = file
        self.header = file.header()
        self._log = log
        self._entries_at = INDEX_HEADER.size + INDEX_SLOT.size * file.slot_count
        self._scratch = bytearray(index_file_bytes(1, _SCRATCH_ENTRIES))
        self._view = memoryview(self._scratch)
        # End time of the previous file. The seconds in the first entry are counted from this time, or from the begin
        # time of the entry's own file.
        self._first_from_ms = 0
        self.left = 0

    def begin(self, previous: IndexHeader | None) -> bool:
        """Checks header and chains and skips to the first record that still exists; returns whether header and chains
        are right.
        """
        header, log = self.header, self._log
        if not self.file.plausible:
            return False
        heads = array("i", bytes(INDEX_SLOT.size * self.file.slot_count))
        if find_broken_chain(self.file.view, self.file.slot_count, self.file.entry_max, heads) >= 0:
            return False
        end = (header.end_timestamp_ms, header.end_physical_offset)
        if header.index_count == 1:
            inherited = (0, 0) if previous is None else (previous.end_timestamp_ms, previous.end_physical_offset)
            return end in ((0, 0), inherited) and end == (header.begin_timestamp_ms, header.begin_physical_offset)
        self._first_from_ms = 0 if previous is None else previous.end_timestamp_ms
        ends = (
            (1, header.begin_timestamp_ms, header.begin_physical_offset),
            (header.index_count - 1, *end),
        )
        for number, timestamp_ms, physical_offset in ends:
            expired = physical_offset < log.min_offset
            if self._offset(number) != physical_offset or not (
                expired or log.store_timestamp(physical_offset) == timestamp_ms
            ):
                return False
        numbers = range(1, header.index_count)
        self.left = len(numbers) - bisect_left(numbers, log.min_offset, key=self._offset)
        return True

    def match(self, segment: MappedFile, table: array[int], row: int, rows: int, done: int) -> tuple[int, int] | None:
        """Compares the keys of records with the next entries, skipping the first ``done`` keys of the first record.

        Returns:
            The index of the first incomplete row and the number of its keys that were compared; None if an entry
            differs.
        """
        # Since 5.4.0, RocketMQ also puts the tags into the index. RocketMQ may have been upgraded between two of the
        # compared records.
        for last in (rows, row + 1):
            for tags in (False, True):
                step = self._match(segment, table, row, last, done, tags)
                if step is not None:
                    return step
        return None

    def _match(
        self, segment: MappedFile, table: array[int], first: int, last: int, done: int, tags: bool
    ) -> tuple[int, int] | None:
        head = IndexHeader(self.header.begin_timestamp_ms, 0, PhysicalOffset(0), PhysicalOffset(0), 0, _SCRATCH_FIRST)
        self._scratch[: INDEX_HEADER.size + INDEX_SLOT.size] = head.encode() + bytes(INDEX_SLOT.size)
        limit = min(_SCRATCH_ENTRIES, _SCRATCH_FIRST + self.left)
        source = segment.map.buffer
        row, done = put_rows(self._scratch, 1, limit, source, table, first, last, segment.start, 0, done, tags)
        count = IndexHeader.decode(self._scratch).index_count - _SCRATCH_FIRST
        number = self.header.index_count - self.left
        ours = self._view[_SCRATCH_AT : _SCRATCH_AT + INDEX_ENTRY.size * count].cast("I")
        at = self._entries_at + INDEX_ENTRY.size * number
        theirs = self.file.view[at : at + INDEX_ENTRY.size * count].cast("I")
        for word in range(_SECONDS_WORD):
            if ours[word::_WORDS].tobytes() != theirs[word::_WORDS].tobytes():
                return None
        known = 1 if number == 1 and count and self._first_seconds_right() else 0
        from_word = _SECONDS_WORD + _WORDS * known
        if ours[from_word::_WORDS].tobytes() != theirs[from_word::_WORDS].tobytes():
            return None
        self.left -= count
        return row, done

    def _first_seconds_right(self) -> bool:
        """Whether the seconds in the first entry are right. They may be counted from the end time of the previous file
        (5.3.3, ``IndexFile#putKey``).
        """
        begin_ms, from_ms = self.header.begin_timestamp_ms, self._first_from_ms
        seconds: int = _offset_of(self.file.view, self._entries_at + INDEX_ENTRY.size)[2]
        return seconds == (max(begin_ms - from_ms, 0) // 1000 if from_ms > 0 else 0)

    def _offset(self, number: int) -> int:
        physical_offset: int = _offset_of(self.file.view, self._entries_at + INDEX_ENTRY.size * number)[1]
        return physical_offset


def _next(audits: Iterator[_FileAudit], previous: _FileAudit | None) -> _FileAudit | None:
    """Returns the next file to compare; None if there is none, or if the content of the file is inconsistent."""
    audit = next(audits, None)
    if audit is None or not audit.begin(None if previous is None else previous.header):
        return None
    return audit


def _batches(log: LogReader) -> Iterator[tuple[MappedFile, array[int], int]]:
    """Walks all records; yields a segment, a table and the number of its rows. The next batch overwrites the table."""
    table, physical_offset = new_table(ROWS_MAX), log.min_offset
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
            0,
        )
        yield file, table, rows
        if stop == WalkStop.TORN:
            return
        physical_offset = file.end if stop == WalkStop.BLANK else file.start + position
