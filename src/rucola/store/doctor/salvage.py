"""Saves the records of damaged logs, partial files and disk images into a new store.

Each file is searched for the magic numbers of records. What follows counts as a record if its lengths agree with each
other and its checksums are right. After anything else, the search begins again one byte further. In a file with the
name of a segment, a record must also lie where it says; otherwise a message that contains a stored record would be
taken for two. In other files, the records themselves say where they were.

The new log has every record at its old physical offset, so queue offsets and the progress of consumers stay valid.
Places without a record are filled as ``recovery.repair`` does, and listed as gaps. Records that no queue shows any more
come back: those of deleted topics, and those whose queues were lost. Queues and index are then made by a rebuild.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.errors import ConfigError, DiskError
from rucola.formats.checksum import crc32
from rucola.formats.message import BLANK, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_HEAD, walk_records
from rucola.formats.segment_name import segment_name, segment_start
from rucola.runtime.files import Files
from rucola.store.doctor.rebuild import Progress, Runner, rebuild, run_serially
from rucola.store.log.log_reader import CHECK_BODY_CRC, CHECK_CRC_NAME, CHECK_PHYSICAL_OFFSET, CHECK_RECORD_CRC, Gap
from rucola.store.log.mapped_file import MappedFile
from rucola.store.recovery.quarantine import Quarantine
from rucola.store.recovery.repair import FILLER_BYTES_MIN, filler
from rucola.store.verify.findings import Findings
from rucola.store.verify.log import readable_file

SEGMENT_BYTES = 1 << 30
_MAGICS = tuple(magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2))
_MAGIC_AT = RECORD_HEAD.position("magic")
_FILLER_TOPIC = b"%"
_FILLER_BYTES_MAX = 1 << 20
_ROWS_MAX = 512
_SEGMENTS_MAX = 4096
"""More segments than this between two records: one of the two offsets is wrong."""


class Found(NamedTuple):
    """A record that was found.

    Attributes:
        file: number of the file.
        position: position in that file.
    """

    physical_offset: int
    size: int
    store_timestamp_ms: int
    file: int
    position: int


@dataclass(frozen=True)
class SalvageReport:
    """The result of a salvage.

    Attributes:
        output: directory of the new store; empty if none was written.
        files: number of files searched.
        searched_bytes: their length.
        found: whole records found, each copy counted.
        copies: records found more than once.
        torn: places where a record begins that is not whole.
        misplaced: records left out, since another record is at their place, or no segment can hold them.
        saved: records in the new store.
        topics: number of their topics.
        gaps: places of the new log without messages.
        unreadable: parts that the disk could not read.
    """

    output: str
    files: int
    searched_bytes: int
    found: int
    copies: int
    torn: int
    misplaced: int
    saved: int
    topics: int
    gaps: int
    unreadable: int


def salvage(
    sources: Sequence[str],
    output: str,
    segment_bytes: int = 0,
    topics: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    run: Runner = run_serially,
    progress: Progress = lambda _phase, _done, _all: None,
    dry_run: bool = False,
    files: Files | None = None,
) -> SalvageReport:
    """Saves the records of ``sources`` into a new store.

    Args:
        sources: files, directories with files, or store directories.
        output: directory of the new store, which must not exist.
        segment_bytes: length of the new segments; 0 for the length of the segments among the sources, else 1 GiB.
        topics: only messages of these topics; empty for all.
        options: entries of the broker's configuration, for queues and index.
        run: runs the tasks of the rebuild.
        dry_run: only searches.

    Raises:
        ConfigError: the output exists, or there is no source.
        DiskError: a file cannot be read or written.
    """
    files = files if files is not None else Files()
    output = files.expand(output)
    if files.exists(output):
        raise ConfigError("output", output, "a directory that does not exist yet")
    search = _Search(files, _paths(files, [files.expand(source) for source in sources]), topics)
    for number in range(len(search.paths)):
        search.run(number)
        progress("search", number + 1, len(search.paths))
    length = segment_bytes or search.segment_bytes
    chosen, copies, misplaced = _chosen(search.found, length)
    gaps = 0
    if chosen and not dry_run:
        gaps = _NewLog(files, output, search, length).write(chosen)
        _copy_tables(files, [files.expand(source) for source in sources], output)
        kept = {key: value for key, value in (options or {}).items() if key != "storePathCommitLog"}
        rebuild(output, run, kept | {"mappedFileSizeCommitLog": str(length)}, progress=progress, files=files)
    search.close()
    return SalvageReport(
        output if chosen and not dry_run else "",
        len(search.paths),
        search.searched_bytes,
        len(search.found),
        copies,
        search.torn,
        misplaced,
        len(chosen),
        len(search.topics),
        gaps,
        search.unreadable,
    )


def _paths(files: Files, sources: Sequence[str]) -> list[str]:
    """The files to search: those named, and those in the directories named. Of a store, only its log and what recovery
    kept of it.
    """
    found: list[str] = []
    for source in sources:
        if not files.exists(source):
            raise ConfigError("source", source, "an existing file or directory")
        if _is_file(files, source):
            found.append(source)
            continue
        parts = [f"{source}/{part}" for part in ("commitlog", "quarantine") if files.exists(f"{source}/{part}")]
        for directory in parts or [source]:
            names = files.list_files(directory)
            found += [f"{directory}/{name}" for name in names if not name.endswith(".json")]
    return found


def _is_file(files: Files, path: str) -> bool:
    try:
        files.list_files(path)
    except DiskError as error:
        if isinstance(error.__cause__, NotADirectoryError):
            return True
        raise
    return False


class _Search:
    """The search through all files.

    Attributes:
        found: records found so far.
        topics: their topics.
        torn, searched_bytes, unreadable: see ``SalvageReport``.
    """

    def __init__(self, files: Files, paths: Sequence[str], topics: Sequence[str]) -> None:
        self.paths = [path for path in paths if files.size(path)]
        self.found: list[Found] = []
        self.topics: set[bytes] = set()
        self.torn = self.searched_bytes = self.unreadable = 0
        self._findings = Findings("")
        self._files = [readable_file(files, path, 0, files.size(path), self._findings) for path in self.paths]
        self._wanted = {topic.encode("utf-8", "surrogateescape") for topic in topics}
        self._table = new_table(_ROWS_MAX)

    @property
    def segment_bytes(self) -> int:
        """Length of most of the files that have names of segments; 1 GiB without any."""
        pairs = zip(self.paths, self._files, strict=True)
        sizes = Counter(file.size for path, file in pairs if segment_start(path.rpartition("/")[2]) is not None)
        return sizes.most_common(1)[0][0] if sizes else SEGMENT_BYTES

    def record(self, found: Found) -> memoryview:
        """The bytes of a record."""
        return self._files[found.file].segment.view[found.position : found.position + found.size]

    def run(self, number: int) -> None:
        """Searches one file; first for records that lie where they say, if its name is that of a segment."""
        file, start = self._files[number], segment_start(self.paths[number].rpartition("/")[2])
        check = CHECK_BODY_CRC | CHECK_RECORD_CRC | CHECK_CRC_NAME
        known, torn = len(self.found), self.torn
        if start is not None:
            self._search(number, file, start, check | CHECK_PHYSICAL_OFFSET)
        if len(self.found) == known:
            self.torn = torn
            self._search(number, file, 0, check)
        self.searched_bytes += file.size
        self.unreadable = sum(self._findings.counts.values())
        file.close()

    def close(self) -> None:
        """Unmaps all files."""
        for file in self._files:
            file.close()

    def _search(self, number: int, file: MappedFile, start: int, check: int) -> None:
        segment, position = file.segment, 0
        while position < file.size:
            rows, behind, stop = walk_records(
                segment.buffer, segment.view, position, file.size, start, self._table, _ROWS_MAX, crc32, check
            )
            self._take(number, segment.view, self._table, rows)
            if stop == WalkStop.TABLE_FULL:
                position = behind
                continue
            # A blank record says nothing about what follows it in an image.
            following = self._next_magic(file, behind + 1)
            head = segment.view[behind + _MAGIC_AT : behind + _MAGIC_AT + 4]
            self.torn += stop == WalkStop.TORN and bytes(head) in _MAGICS
            if following < 0:
                return
            position = following

    def _next_magic(self, file: MappedFile, position: int) -> int:
        """Position of the next record that may begin at ``position`` or after it; -1 if there is none."""
        hits = [file.segment.buffer.find(magic, position + _MAGIC_AT) for magic in _MAGICS]
        return min((hit for hit in hits if hit >= 0), default=_MAGIC_AT - 1) - _MAGIC_AT

    def _take(self, number: int, view: memoryview, table: array[int], rows: int) -> None:
        for row in range(0, rows * ROW_WIDTH, ROW_WIDTH):
            at = table[row + RecordColumn.TOPIC_POS]
            topic = bytes(view[at : at + table[row + RecordColumn.TOPIC_LEN]])
            offset = table[row + RecordColumn.PHYSICAL_OFFSET]
            if topic in (b"", _FILLER_TOPIC) or offset < 0 or (self._wanted and topic not in self._wanted):
                continue
            self.topics.add(topic)
            size, stored_ms = table[row + RecordColumn.RECORD_SIZE], table[row + RecordColumn.STORE_TIMESTAMP]
            self.found.append(Found(offset, size, stored_ms, number, table[row]))


def _chosen(found: list[Found], segment_bytes: int) -> tuple[list[Found], int, int]:
    """The records of the new log in order, the number of copies, and the number of records left out."""
    chosen: list[Found] = []
    copies = misplaced = 0
    # Of two records at one place, the later one was written when the log was cut and grew again.
    for one in sorted(found, key=lambda one: (one.physical_offset, -one.store_timestamp_ms)):
        last = chosen[-1] if chosen else None
        if last is not None and one[:3] == last[:3]:
            copies += 1
        elif _has_place(one, last, segment_bytes):
            chosen.append(one)
        else:
            misplaced += 1
    return chosen, copies, misplaced


def _has_place(one: Found, last: Found | None, segment_bytes: int) -> bool:
    """Whether a record can follow the last one at its offset: space before it is empty, or enough for a filler."""
    position = one.physical_offset % segment_bytes
    if position + one.size + BLANK.size > segment_bytes:
        return False
    end = one.physical_offset - position
    if last is not None:
        end = max(last.physical_offset + last.size, end)
        if one.physical_offset - last.physical_offset > _SEGMENTS_MAX * segment_bytes:
            return False
    return one.physical_offset == end or one.physical_offset - end >= FILLER_BYTES_MIN


class _NewLog:
    """Writes the log of the new store."""

    def __init__(self, files: Files, output: str, search: _Search, segment_bytes: int) -> None:
        self._files = files
        self._directory = f"{output}/commitlog"
        self._quarantine = Quarantine(files, output)
        self._search = search
        self._length = segment_bytes

    def write(self, chosen: list[Found]) -> int:
        """Writes the records, in order of their offsets; returns the number of gaps."""
        self._files.make_directory(self._directory)
        gaps: list[Gap] = []
        at = chosen[0].physical_offset - chosen[0].physical_offset % self._length
        stored_ms = chosen[0].store_timestamp_ms
        for start, records in self._segments(chosen, at):
            parts: list[bytes] = []
            at = start
            for one in records:
                if one.physical_offset > at:
                    gaps.append(Gap(at, one.physical_offset))
                    parts += _fillers(at, one.physical_offset, stored_ms)
                parts.append(bytes(self._search.record(one)))
                stored_ms = max(stored_ms, one.store_timestamp_ms)
                at = one.physical_offset + one.size
            last = start + self._length > chosen[-1].physical_offset
            self._write_segment(start, b"".join(parts), last)
            if not last and not records:
                gaps.append(Gap(start, start + self._length))
        for gap in gaps:
            self._quarantine.record_gap(gap)
        return len(gaps)

    def _segments(self, chosen: list[Found], start: int) -> Iterator[tuple[int, list[Found]]]:
        """Start and records of each segment, also of those without records."""
        end, first = chosen[-1].physical_offset, 0
        while start <= end:
            last = first
            while last < len(chosen) and chosen[last].physical_offset < start + self._length:
                last += 1
            yield start, chosen[first:last]
            start, first = start + self._length, last

    def _write_segment(self, start: int, content: bytes, last: bool) -> None:
        path = f"{self._directory}/{segment_name(start)}"
        self._files.create_segment(path, f"{self._directory}-new.tmp", self._length, len(content))
        blank = b"" if last else BLANK.pack(self._length - len(content), MAGIC_BLANK)
        self._files.write_at(path, 0, content + blank)


def _fillers(start: int, end: int, stored_ms: int) -> Iterator[bytes]:
    """Records that belong to no queue, from ``start`` up to ``end``."""
    while start < end:
        size = end - start
        if size > _FILLER_BYTES_MAX + FILLER_BYTES_MIN:
            size = _FILLER_BYTES_MAX
        yield filler(size, start, stored_ms)
        start += size


def _copy_tables(files: Files, sources: Sequence[str], output: str) -> None:
    """Copies the tables of the first store among the sources."""
    for source in (source for source in sources if not _is_file(files, source)):
        names = files.list_files(f"{source}/config")
        for name in names:
            files.make_directory(f"{output}/config")
            files.write_file(f"{output}/config/{name}", files.read_file(f"{source}/config/{name}") or b"")
        if names:
            return
