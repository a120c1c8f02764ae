"""Walks a whole commit log, continues after damage, and distinguishes damage from the ordinary end.

If a record cannot be read, the walk searches for the next intact record (right checksums, right physical offset) that
was not stored before the last record read. The bytes before the intact record are damage, and the walk continues at the
intact record. If there is no such record, the log ends before the record that cannot be read. Records that were stored
earlier may lie after this end, because RocketMQ leaves their bytes in the file when it truncates the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import filterfalse

from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.formats.checksum import crc32
from rucola.formats.message import (
    BLANK,
    CHECK_ALL,
    CHECK_BODY_CRC,
    CHECK_CRC_NAME,
    CHECK_PHYSICAL_OFFSET,
    CHECK_RECORD_CRC,
    CRC_PROPERTY_BYTES,
    CRC_PROPERTY_NAME,
    MAGIC_BLANK,
    RECORD_HEAD,
    ROWS_MAX,
    walk_records,
)
from rucola.formats.record_search import MAGIC_BYTES, MAGIC_POSITION, RECORD_MAGICS, find_record
from rucola.formats.segment_name import is_segment_name, segment_name
from rucola.runtime.files import Files
from rucola.store.log.mapped_file import MappedFile
from rucola.store.verify.findings import FindingKind, Findings
from rucola.store.verify.times import StoreTimes

_SEGMENT_BYTES_MAX = (1 << 31) - 1
"""Largest length of a segment. What lies behind is no part of it, and may be a hole that takes hours to read."""

Batch = tuple[MappedFile, "array[int]", int]
"""A segment, a table and the number of rows in the table; the next batch overwrites the table."""

_PHYSICAL_OFFSET_AT = RECORD_HEAD.position("physical_offset")


def load_segments(
    files: Files, directory: str, found: Findings, length: int = 0, *, others: Sequence[str] = ()
) -> list[MappedFile]:
    """Returns the segments in a directory, oldest first, opened for reading. Files that are not segments, or have a
    wrong length, become findings.

    Args:
        length: the length that all segments should have; 0 for the length that most of them have.
        others: more directories with segments of the same log.
    """
    sizes: dict[int, int] = {}
    paths: dict[int, str] = {}
    for place in (directory, *others):
        for name in filterfalse(is_segment_name, files.list_files(place)):
            found.add(FindingKind.STRAY_FILE, f"{place}/{name}", 0, "the name is not that of a segment (20 digits)")
    places = [
        (place, one) for place in (directory, *others) for one in files.list_sizes(place, is_segment_name).items()
    ]
    for place, (name, size) in places:
        start, path = int(name), f"{place}/{name}"
        if start in paths:
            found.add(FindingKind.STRAY_FILE, path, 0, f"{paths[start]} is the same segment")
        else:
            sizes[start], paths[start] = size, path
    limit = length or _SEGMENT_BYTES_MAX
    lengths = Counter(size for size in sizes.values() if size)
    length = length or max(lengths.items(), key=lambda item: item[1], default=(0, 0))[0]
    for start in [start for start in sizes if length and start % length]:
        found.add(FindingKind.STRAY_FILE, paths[start], 0, f"no segment of {length} bytes begins at {start}")
        del sizes[start]
    last = max(sizes, default=0)
    if sizes and sizes[last] == 0:
        found.note(f"{paths[last]} is empty: the writer ended while it created the file")
        del sizes[last]
    segments: list[MappedFile] = []
    for start, size in sorted(sizes.items()):
        path = paths[start]
        if size != length:
            found.add(
                FindingKind.SEGMENT_LENGTH,
                path,
                min(size, length),
                f"the file has {size} bytes, the others have {length}",
            )
        if segments and segments[-1].start + length < start:
            missing = segments[-1].start + length
            count = -(-(start - missing) // length)
            detail = f"{count} segments before {segment_name(start)} are missing"
            found.add(FindingKind.SEGMENT_MISSING, f"{directory}/{segment_name(missing)}", 0, detail)
        if size:
            segments.append(readable_file(files, path, start, min(size, limit), found))
    return segments


def readable_file(files: Files, path: str, start: int, size: int, found: Findings) -> MappedFile:
    """Opens a file for reading. Parts that the disk cannot read become findings, and are zero in the map."""
    seen: set[tuple[int, int]] = set()

    def look() -> None:
        for part in file.map.replace_unreadable():
            if part not in seen:
                seen.add(part)
                first, last = part
                found.add(
                    FindingKind.UNREADABLE, path, first, f"the disk cannot read {last - first} bytes", last - first
                )
        file.set_readable()

    file = MappedFile(files, path, start, size, False, 0, on_map=look)
    return file


class LogCheck:
    """One walk over a log.

    Attributes:
        records: number of records read so far.
        end: physical offset after the last record.
        times: checks the store times of the records.
        sound_tail: False if bytes after the end may have been a record.

    Args:
        segments: the segments of the log, oldest first.
        found: collects the findings.
        unclean: whether the store was not stopped cleanly, so that the remains of a crash may lie after the end.
        live_end: for a log in use, the physical offset after the last record when the check began; otherwise -1.
        progress: called with the number of bytes walked.
        stretches: see ``LogReader``.
    """

    def __init__(
        self,
        segments: list[MappedFile],
        found: Findings,
        unclean: bool,
        live_end: int = -1,
        progress: Callable[[int], None] = lambda _: None,
        stretches: array[int] | None = None,
    ) -> None:
        self.records = 0
        self.end = segments[0].start if segments else 0
        self.times = StoreTimes(found)
        self.sound_tail = True
        self._segments = segments
        self._found = found
        self._unclean = unclean
        self._live_end = live_end
        self._progress = progress
        self._stretches = stretches
        self._ended = False
        self._current: MappedFile | None = None
        self._looked_at: MappedFile | None = None
        self._damaged: list[tuple[int, int]] = []
        self._table = new_table(ROWS_MAX)
        self._one_row = new_table(1)
        self._faulty_row = new_table(1)

    @property
    def segments_end(self) -> int:
        """Physical offset after the last segment."""
        return self._segments[-1].end if self._segments else 0

    @property
    def segment_bytes(self) -> int:
        """Length of a segment in bytes; 0 if there is none."""
        return self._segments[0].size if self._segments else 0

    @property
    def start(self) -> int:
        """Physical offset of the oldest byte of the log."""
        return self._segments[0].start if self._segments else 0

    def batches(self) -> Iterator[Batch]:
        """Walks the log once. Yields every record whose position and size are known, including those with a wrong
        checksum.
        """
        for number, file in enumerate(self._segments):
            if number and self._segments[number - 1].end < file.start:
                self._damaged.append((self._segments[number - 1].end, file.start))
            self._current = file
            yield from self._walk_segment(number, file)
            if self._ended:
                return
            file.close()
            self._progress(file.end - self.start)

    @property
    def intact(self) -> bool:
        """Whether all records up to now could be read and have plausible store times."""
        return self.sound_tail and not self._damaged and not self.times.wrong

    def damaged(self, physical_offset: int) -> bool:
        """Whether ``physical_offset`` lies in bytes that are damaged or missing."""
        at = bisect_right(self._damaged, physical_offset, key=lambda span: span[0]) - 1
        return at >= 0 and physical_offset < self._damaged[at][1]

    def row_at(self, physical_offset: int, check: int = CHECK_PHYSICAL_OFFSET) -> tuple[MappedFile, array[int]] | None:
        """Returns segment and row of the record at ``physical_offset``; by default without checking checksums. The next
        call overwrites the row.
        """
        at = bisect_right(self._segments, physical_offset, key=lambda file: file.start) - 1
        if at < 0 or physical_offset >= min(self._segments[at].end, self.end):
            return None
        file = self._segments[at]
        if self._looked_at is not None and self._looked_at not in (file, self._current):
            self._looked_at.close()
        self._looked_at = file
        return (file, self._one_row) if self._parse(file, physical_offset - file.start, check) else None

    def is_border(self, physical_offset: int) -> bool:
        """Whether a record starts or ends at ``physical_offset``, which must not lie after the end of the log."""
        if physical_offset == self.end or self.row_at(physical_offset, 0) is not None:
            return True
        return self.is_blank(physical_offset)

    def is_blank(self, physical_offset: int) -> bool:
        """Whether a blank record starts at ``physical_offset``."""
        at = bisect_right(self._segments, physical_offset, key=lambda file: file.start) - 1
        if at < 0 or physical_offset >= self._segments[at].end:
            return False
        position = physical_offset - self._segments[at].start
        rest = bytes(self._segments[at].map.view[position : position + BLANK.size])
        return len(rest) == BLANK.size and BLANK.unpack(rest)[1] == MAGIC_BLANK

    def is_entry(self, place: tuple[int, int], topic: bytes, queue_id: int, queue_offset: int) -> bool:
        """Whether there is a record that has the physical offset and size in ``place``, and states this topic, queue id
        and queue offset.
        """
        hit = self.row_at(place[0])
        if hit is None:
            return False
        file, row = hit
        position = row[RecordColumn.TOPIC_POS]
        named = file.map.view[position : position + row[RecordColumn.TOPIC_LEN]]
        said = (row[RecordColumn.RECORD_SIZE], row[RecordColumn.QUEUE_ID], row[RecordColumn.QUEUE_OFFSET])
        return named == topic and said == (place[1], queue_id, queue_offset)

    def close(self) -> None:
        """Unmaps all files."""
        for file in self._segments:
            file.close()

    # -- one segment ---------------------------------------------------------------------------------------------------

    def _walk_segment(self, number: int, file: MappedFile) -> Iterator[Batch]:
        segment, position = file.map, 0
        limit = file.size if self._live_end < 0 else min(max(self._live_end - file.start, 0), file.size)
        while True:
            rows, position, stop = walk_records(
                segment.buffer,
                segment.view,
                position,
                limit,
                file.start,
                self._table,
                ROWS_MAX,
                crc32,
                CHECK_ALL | CHECK_CRC_NAME,
                self._stretches,
            )
            if rows:
                self._take(file, self._table, rows)
                yield file, self._table, rows
                self._progress(file.start + position - self.start)
            if stop == WalkStop.TORN:
                behind = self._one_fault(file, position)
                if behind >= 0:
                    yield file, self._faulty_row, 1
                else:
                    behind = self._over_damage(number, file, position)
                if behind < 0:
                    self._end_in(number, file, position)
                    return
                position = behind
            elif stop != WalkStop.TABLE_FULL:
                break
        if stop == WalkStop.BLANK:
            self._check_blank(file, position)
        last = number + 1 == len(self._segments) or limit < file.size
        self.end = file.start + position if last else file.end
        self._ended = last

    def _take(self, file: MappedFile, table: array[int], rows: int) -> None:
        self.records += rows
        last = (rows - 1) * ROW_WIDTH
        self.times.take(file, table, rows)
        self.end = file.start + table[last] + table[last + RecordColumn.RECORD_SIZE]

    def _parse(self, file: MappedFile, position: int, check: int) -> bool:
        """Reads the record at ``position`` into ``_one_row``."""
        segment, row, size = file.map, self._one_row, file.size
        stretches = self._stretches if check & CHECK_RECORD_CRC else None
        rows, _, _ = walk_records(
            segment.buffer, segment.view, position, size, file.start, row, 1, crc32, check, stretches
        )
        return rows > 0

    def _check_blank(self, file: MappedFile, position: int) -> None:
        (space, _) = BLANK.unpack(file.map.view, position)
        if space != file.size - position:
            detail = f"the record states that {space} bytes are left, but {file.size - position} are"
            self._found.add(FindingKind.BLANK, file.path, position, detail)

    # -- damage --------------------------------------------------------------------------------------------------------

    def _over_damage(self, number: int, file: MappedFile, position: int) -> int:
        """Returns the position at which the walk continues if no record can be read at ``position``.

        Usually this is the result of ``_next_record``, and the skipped bytes become a finding. The result is
        ``position`` if a running broker has meanwhile completed the record there, and -1 if the log ends there.
        """
        behind = self._next_record(number, file, position)
        if behind < 0 or (self._live_end >= 0 and self._parse(file, position, CHECK_ALL)):
            return behind if behind < 0 else position
        size, magic = BLANK.unpack(file.map.view, position) if file.size - position >= BLANK.size else (0, 0)
        detail = f"no record in {behind - position} bytes: size {size}, magic {magic & 0xFFFFFFFF:08X}"
        self._found.add(FindingKind.RECORD, file.path, position, detail)
        self._damaged.append((file.start + position, file.start + behind))
        return behind

    def _one_fault(self, file: MappedFile, position: int) -> int:
        """Reads a record into ``_faulty_row`` if its only fault is a wrong checksum or a wrong physical offset.

        Returns:
            The position after the record; -1 if the bytes are anything else.
        """
        if self._parse(file, position, CHECK_PHYSICAL_OFFSET):
            body = not self._parse(file, position, CHECK_BODY_CRC)
            kind = FindingKind.BODY_CRC if body else FindingKind.RECORD_CRC
            detail = "the body does not match its checksum" if body else "the record does not match its checksum"
            self._parse(file, position, CHECK_PHYSICAL_OFFSET)
            if not body and not self._ends_with_checksum(file, self._one_row):
                detail = "the record was written with a checksum and has lost it"
        elif self._parse(file, position, CHECK_BODY_CRC | CHECK_RECORD_CRC):
            kind = FindingKind.PHYSICAL_OFFSET
            detail = f"the record states physical offset {self._one_row[RecordColumn.PHYSICAL_OFFSET]}"
        else:
            return -1
        row = self._faulty_row
        row[:] = self._one_row
        self._found.add(kind, file.path, position, f"{detail} (physical offset {file.start + position})")
        self._take(file, row, 1)
        return position + row[RecordColumn.RECORD_SIZE]

    def _ends_with_checksum(self, file: MappedFile, row: array[int]) -> bool:
        end = row[RecordColumn.RECORD_POS] + row[RecordColumn.RECORD_SIZE]
        return bytes(file.map.view[end - CRC_PROPERTY_BYTES : end]).startswith(CRC_PROPERTY_NAME)

    def _next_record(self, number: int, file: MappedFile, position: int) -> int:
        """Returns the position of the next intact record whose store time is not earlier than that of the last record
        before ``position``. If the intact record lies in a later segment, returns the end of this segment.

        Returns -1 if there is no such record.
        """
        for start in self._intact(file, position + 1):
            if self._one_row[RecordColumn.STORE_TIMESTAMP] >= self.times.last_ms:
                return start
        for later in self._segments[number + 1 :]:
            for _ in self._intact(later, 0):
                if self._one_row[RecordColumn.STORE_TIMESTAMP] >= self.times.last_ms:
                    return file.size
        return -1

    def _intact(self, file: MappedFile, position: int) -> Iterator[int]:
        """Yields the positions of the intact records that start at or after ``position``. While the caller examines a
        record, the record's row is in ``_one_row``.
        """
        for first, last in file.map.data_ranges(position):
            # A record begins a few bytes before its magic code, so its first bytes may lie before the range.
            start = max(first - MAGIC_POSITION, position)
            while (start := find_record(file.map.buffer, start, last)) >= 0:
                following = start + 1
                if self._parse(file, start, CHECK_ALL):
                    following = start + self._one_row[RecordColumn.RECORD_SIZE]
                    yield start
                start = following

    # -- the end -------------------------------------------------------------------------------------------------------

    def _end_in(self, number: int, file: MappedFile, position: int) -> None:
        """Ends the log at ``position``. Unless the log is in use, also reports what lies after that position."""
        self._ended = True
        self.end = file.start + position
        if self._live_end >= 0:
            return
        stop = file.data_end(position)
        if stop > position:
            self._judge_tail(file, position, stop)
        for later in self._segments[number + 1 :]:
            if later.data_end(0):
                self.sound_tail = False
                self._found.add(FindingKind.TORN_TAIL, later.path, 0, "a segment that does not begin with a record")

    def _judge_tail(self, file: MappedFile, position: int, stop: int) -> None:
        head = bytes(file.map.view[position : position + RECORD_HEAD.size])
        own_offset = (file.start + position).to_bytes(8, "big")
        begun = (
            head[MAGIC_POSITION : MAGIC_POSITION + MAGIC_BYTES] in RECORD_MAGICS
            or own_offset == head[_PHYSICAL_OFFSET_AT:][:8]
        )
        old = sum(1 for _ in self._intact(file, position + 1))
        if old or not (begun or self._unclean):
            self._found.note(
                f"{file.path}, position {position}: {stop - position} old bytes after the end of the log, "
                f"including {old} whole records"
            )
            return
        what = "a truncated record" if begun else "no record"
        detail = f"{what}, {stop - position} bytes (physical offset {self.end})"
        self._found.add(FindingKind.TORN_TAIL, file.path, position, detail)
        self._damaged.append((self.end, file.start + stop))
        self.sound_tail = False
