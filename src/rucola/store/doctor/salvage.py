"""Saves the records of damaged logs, partial files and disk images into a new store.

Each file is searched for the magic numbers of records. The bytes around such a number count as a record if its lengths
agree with each other and its checksums are right. Otherwise the search continues one byte further. In a file with the
name of a segment, a record must also lie at the physical offset that it states; otherwise a message that contains a
stored record would count as two. In other files, the offset that a record states is used.

The new log has every record at its old physical offset, so queue offsets and the progress of consumers stay valid.
Ranges without messages are filled as ``recovery.repair`` fills them, and are listed as gaps. Records of deleted topics
and of lost queues reappear. A rebuild then creates queues and index.

====== ========================= ===========================================================
phase  one task for each         writes
====== ========================= ===========================================================
search file of the sources       the places of the records that it found
fill   segment of the new log    the segment
====== ========================= ===========================================================

Everything is written below ``OUTPUT.salvage`` (``staged``). A salvage that is started again skips finished tasks. At
the end, the directory of the new store gets its final name.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.errors import ConfigError, MissingFileError
from rucola.formats.checksum import crc32
from rucola.formats.message import (
    BLANK,
    CHECK_BODY_CRC,
    CHECK_CRC_NAME,
    CHECK_PHYSICAL_OFFSET,
    CHECK_RECORD_CRC,
    MAGIC_BLANK,
    ROWS_MAX,
    walk_records,
)
from rucola.formats.record_search import MAGIC_BYTES, MAGIC_POSITION, RECORD_MAGICS, Searchable, find_record
from rucola.formats.segment_name import segment_name, segment_start
from rucola.runtime.files import FILE_BYTES_MAX, Files
from rucola.store.config import in_todays_words
from rucola.store.doctor.publish import LITE, PARTS
from rucola.store.doctor.rebuild import build_first
from rucola.store.doctor.rebuild_job import options_of_files
from rucola.store.doctor.salvage_choice import FoundRecord, chosen_records
from rucola.store.doctor.staged import Progress, Runner, Staged, run_serially
from rucola.store.log.log_reader import Gap
from rucola.store.log.mapped_file import MappedFile
from rucola.store.places import hold_store
from rucola.store.recovery.checksum_stretches import as_pairs, known_stretches
from rucola.store.recovery.quarantine import Quarantine
from rucola.store.recovery.repair import FILLER_BYTES_MIN, filler
from rucola.store.recovery.watermark import WatermarkFile
from rucola.store.verify.findings import Findings
from rucola.store.verify.log import load_segments, readable_file

SEARCH, FILL = "search", "fill"
SEGMENT_BYTES = 1 << 30
STAGING = ".salvage"
_COLUMNS = 4
"""Number of integers per record in the result of a search; the number of the searched file is not one of them."""
_TEXT_ERRORS = "surrogateescape"
_WRITE_BYTES = 16 << 20
_FILLER_TOPIC = b"%"
_FILLER_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class SalvageReport:
    """The result of a salvage.

    Attributes:
        output: directory of the new store; empty if none was written.
        files: number of files searched.
        searched_bytes: total length of these files.
        found: number of whole records found; every copy counts.
        copies: number of additional copies of records.
        torn: number of places where an incomplete or damaged record begins.
        misplaced: number of records left out, because they overlap another record or do not fit into the new log.
        saved: number of records in the new store.
        topics: number of topics found.
        gaps: number of ranges of the new log without messages.
        unreadable: number of parts that the disk could not read.
        resumed: number of tasks whose results came from an interrupted salvage.
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
    resumed: int


@dataclass(frozen=True)
class SalvageJob:
    """What to salvage. Stored as JSON in the staging directory, where tasks on other machines read it.

    Attributes:
        paths: paths of the files to be searched.
        sizes: lengths of the files in bytes.
        modified_ms: times of the files' last changes.
        topics: the wanted topics; empty for all.
        segment_bytes: length of the new segments.
        stretches: for each file, the physical offsets between which a record without checksum has lost its end
            (``LogReader.stretches``).
    """

    paths: list[str]
    sizes: list[int]
    modified_ms: list[int]
    topics: list[str]
    segment_bytes: int
    stretches: list[list[int]]


@dataclass(frozen=True)
class SegmentWork:
    """A segment of the new log.

    Attributes:
        start: physical offset of its first byte.
        is_last: whether this is the last segment.
        stored_ms: latest store time of the records in earlier segments.
        rows: name of the file that lists the segment's records, below the staging directory.
    """

    start: int
    is_last: bool
    stored_ms: int
    rows: str


def salvage(
    sources: Sequence[str],
    output: str,
    segment_bytes: int = 0,
    *,
    topics: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    run: Runner = run_serially,
    progress: Progress = lambda _phase, _done, _all: None,
    dry_run: bool = False,
) -> SalvageReport:
    """Saves the records of ``sources`` into a new store.

    Args:
        sources: files, directories with files, or store directories.
        output: directory of the new store, which must not exist.
        segment_bytes: length of the new segments; 0 for the length of the segments among the sources, or for 1 GiB if
            there are none.
        topics: only messages of these topics; empty for all.
        options: entries of the broker's configuration, for queues and index.
        run: runs the tasks.
        dry_run: whether to search only.

    Raises:
        ConfigError: the output exists, or there is no source.
        DiskError: a file cannot be read or written.
    """
    files = Files()
    expanded = [files.expand(source) for source in sources]
    for source in expanded:
        if files.exists(source) and not files.is_file(source):
            if not files.is_directory(source):
                raise ConfigError("source", source, "a store, a directory, a segment or an image in a file")
            hold_store(files, source)
    output = files.expand(output)
    _check_output(files, output, expanded)
    job = _job(files, expanded, segment_bytes, topics)
    staged = Staged(files, output + STAGING, task, run, progress)
    staged.prepare(json.dumps(asdict(job)))
    with staged.trusting_results():
        searches = staged.run_phase(SEARCH, len(job.paths))
        found = _found(files, job, staged.path, searches)
        chosen, copies, misplaced = chosen_records(found, job.segment_bytes)
        torn, unreadable = (sum(int(search[name]) for search in searches) for name in ("torn", "unreadable"))
        topic_names = {str(topic) for search in searches for topic in search["topics"]}
        gaps = 0
        if chosen and not dry_run:
            new = f"{staged.path}/new"
            gaps = _write_log(files, staged, job.segment_bytes, chosen, new)
            _copy_tables(files, expanded, new)
            given = in_todays_words(options or {})
            kept = _sizes(files, expanded) | {key: value for key, value in given.items() if key != "storePathCommitLog"}
            kept |= {"mappedFileSizeCommitLog": str(job.segment_bytes)}
            stores = [source for source in expanded if not files.is_file(source)]
            build_first(files, new, run, kept, progress, stores)
            if not all(map(files.is_open_to_others, expanded)):
                files.close_to_others(new)
            files.rename(new, output)
            files.sync_parent(output)
    staged.clear()
    return SalvageReport(
        output if chosen and not dry_run else "",
        len(job.paths),
        sum(job.sizes),
        len(found),
        copies,
        torn,
        misplaced,
        len(chosen),
        len(topic_names),
        gaps,
        unreadable,
        staged.resumed,
    )


def _check_output(files: Files, output: str, sources: Sequence[str]) -> None:
    """Opens the directory of the output.

    Raises:
        ConfigError: there is something already, or the output would lie in a source.
    """
    try:
        output.encode()
    except UnicodeEncodeError:
        raise ConfigError("output", output, "a path in UTF-8") from None
    files.hold(output.rpartition("/")[0] or "/")
    if files.exists(output):
        raise ConfigError("output", output, "a directory that does not exist yet")
    for source in sources:
        if files.exists(source) and not files.is_file(source) and files.lies_in(output, source):
            raise ConfigError("output", output, f"a directory outside of the source {source}")


def task(files: Files, phase: str, staging: str, number: int, name: str) -> dict[str, Any]:
    """Runs one task of a salvage; writes below ``staging`` under ``name``, and describes in its result what it found or
    wrote.

    Raises:
        DiskError: a file cannot be read or written.
    """
    job = SalvageJob(**json.loads(files.read_file(f"{staging}/job.json") or b""))
    if phase == SEARCH:
        search = _Search(files, job, number)
        search.run()
        files.write_file(f"{staging}/{name}.rows", search.rows.tobytes())
        topics = sorted(topic.decode("utf-8", _TEXT_ERRORS) for topic in search.topics)
        return {"torn": search.torn, "unreadable": search.unreadable, "topics": topics, "rows": f"{name}.rows"}
    work = SegmentWork(**json.loads(files.read_file(f"{staging}/{phase}.work") or b"")[number])
    files.remove_tree(f"{staging}/{name}")  # an interrupted attempt may have had the same name
    files.make_directory(f"{staging}/{name}")
    path = f"{name}/{segment_name(work.start)}"
    gaps = _NewSegment(files, job, work, f"{staging}/{path}").write(
        _rows(files, f"{staging}/{work.rows}", job.segment_bytes)
    )
    return {"path": path, "gaps": gaps}


def _job(files: Files, sources: Sequence[str], segment_bytes: int, topics: Sequence[str]) -> SalvageJob:
    """Determines the files to search, and the length of new segments (by default, the most common segment length)."""
    paths = [path for path in _paths(files, sources) if files.size(path)]
    sizes = [files.size(path) for path in paths]
    named = Counter(
        size for path, size in zip(paths, sizes, strict=True) if segment_start(path.rpartition("/")[2]) is not None
    )
    length = segment_bytes or (named.most_common(1)[0][0] if named else SEGMENT_BYTES)
    known = {source: _stretches(files, source) for source in sources}
    stretches = [
        next((known[source] for source in sources if path.startswith(f"{source}/commitlog/")), []) for path in paths
    ]
    return SalvageJob(paths, sizes, [files.modified_ms(path) for path in paths], sorted(topics), length, stretches)


def _stretches(files: Files, source: str) -> list[int]:
    """Returns the physical offsets between which every record of the store ``source`` was written with a checksum."""
    watermark = None if files.is_file(source) else WatermarkFile(files, source).read()
    if watermark is None:
        return []
    segments = load_segments(files, f"{source}/commitlog", Findings(""))
    pairs = as_pairs(known_stretches(segments, watermark))
    for segment in segments:
        segment.close()
    return list(pairs or ())


def _found(files: Files, job: SalvageJob, staging: str, searches: Sequence[Mapping[str, Any]]) -> list[FoundRecord]:
    """Returns the records that all searches found."""
    found: list[FoundRecord] = []
    for number, search in enumerate(searches):
        rows = array("q")
        # A record is longer than its row, so no right list of rows is longer than the file that was searched.
        content = files.read_file(f"{staging}/{search['rows']}", max(job.sizes[number], FILE_BYTES_MAX))
        rows.frombytes(content or b"")
        columns = (rows[column::_COLUMNS] for column in range(_COLUMNS))
        found += [FoundRecord(at, size, ms, number, position) for at, size, ms, position in zip(*columns, strict=True)]
    return found


def _paths(files: Files, sources: Sequence[str]) -> list[str]:
    """Returns the files to search: the given files, and the files in the given directories. In a store, only the log
    and the parts of it that recovery moved to ``quarantine`` are searched.
    """
    found: list[str] = []
    for source in sources:
        if not files.exists(source):
            raise MissingFileError("source", source, "no such file or directory")
        if files.is_file(source):
            found.append(source)
            continue
        parts = [f"{source}/{part}" for part in ("commitlog", "quarantine") if files.exists(f"{source}/{part}")]
        for directory in parts or [source]:
            names = files.list_files(directory)
            found += [f"{directory}/{name}" for name in names if not name.endswith(".json")]
    return found


class _Search:
    """The search through one file.

    Attributes:
        rows: physical offset, length, store time and position of the records found so far.
        topics: topics of these records.
        torn, unreadable: see ``SalvageReport``.
    """

    def __init__(self, files: Files, job: SalvageJob, number: int) -> None:
        self.rows = array("q")
        self.topics: set[bytes] = set()
        self.torn = self.unreadable = 0
        self._path = job.paths[number]
        files.hold(self._path.rpartition("/")[0])
        self._findings = Findings("")
        self._file = readable_file(files, self._path, 0, job.sizes[number], self._findings)
        self._wanted = {topic.encode("utf-8", _TEXT_ERRORS) for topic in job.topics}
        self._table = new_table(ROWS_MAX)
        self._stretches = array("q", job.stretches[number])

    def run(self) -> None:
        """Searches the file. If the file has the name of a segment, a record counts only if it lies at the offset that
        it states; if there is no such record, all records count.
        """
        start, check = segment_start(self._path.rpartition("/")[2]), CHECK_BODY_CRC | CHECK_RECORD_CRC | CHECK_CRC_NAME
        if start is not None:
            self._search(start, check | CHECK_PHYSICAL_OFFSET, self._stretches or None)
        if not self.rows:
            self.torn = 0
            self._search(0, check, None)
        self.unreadable = sum(self._findings.counts.values())
        self._file.close()

    def _search(self, start: int, check: int, stretches: array[int] | None) -> None:
        file, segment, position = self._file, self._file.map, 0
        parts = segment.data_ranges(0)
        while position < file.size:
            rows, behind, stop = walk_records(
                segment.buffer,
                segment.view,
                position,
                file.size,
                start,
                self._table,
                ROWS_MAX,
                crc32,
                check,
                stretches,
            )
            self._take(segment.view, self._table, rows)
            if stop == WalkStop.TABLE_FULL:
                position = behind
                continue
            # In a disk image, anything may follow a blank record. The search therefore continues one byte after the
            # place where the walk stopped.
            following = _next_record(segment.buffer, behind + 1, parts)
            at = behind + MAGIC_POSITION
            self.torn += stop == WalkStop.TORN and bytes(segment.view[at : at + MAGIC_BYTES]) in RECORD_MAGICS
            if following < 0:
                return
            position = following

    def _take(self, view: memoryview, table: array[int], rows: int) -> None:
        for row in range(0, rows * ROW_WIDTH, ROW_WIDTH):
            at = table[row + RecordColumn.TOPIC_POS]
            topic = bytes(view[at : at + table[row + RecordColumn.TOPIC_LEN]])
            offset = table[row + RecordColumn.PHYSICAL_OFFSET]
            if topic in (b"", _FILLER_TOPIC) or offset < 0 or (self._wanted and topic not in self._wanted):
                continue
            self.topics.add(topic)
            size, stored_ms = table[row + RecordColumn.RECORD_SIZE], table[row + RecordColumn.STORE_TIMESTAMP]
            self.rows.extend((offset, size, stored_ms, table[row]))


def _next_record(buffer: Searchable, position: int, parts: list[tuple[int, int]]) -> int:
    """Returns the first position from ``position`` on at which a record may begin; -1 if there is none.

    Args:
        parts: the rest of the file without its holes; parts that end before ``position`` are dropped. An image of a
            disk is mostly holes.
    """
    while parts:
        start, end = parts[0]
        # The first byte of a record may be the last of a hole, where its head is zeros: no magic code begins in one.
        found = find_record(buffer, max(position, start - MAGIC_POSITION, 0), end) if position < end else -1
        if found >= 0:
            return found
        del parts[0]
    return -1


def _write_log(files: Files, staged: Staged, length: int, chosen: list[FoundRecord], new: str) -> int:
    """Writes the records in ``chosen``, which are in order of their offsets, into the log of the new store; returns the
    number of gaps.
    """
    works = [asdict(one) for one in _segment_works(files, staged.path, length, chosen)]
    files.make_directory(f"{new}/commitlog")
    results = staged.run_items(FILL, works, f"{new}/commitlog")
    gaps = [Gap(*gap) for result in results for gap in result["gaps"]]
    for result in results:
        path = f"{staged.path}/{result['path']}"
        if files.exists(path):  # an interrupted salvage may already have moved the file
            files.rename(path, f"{new}/commitlog/{path.rpartition('/')[2]}")
    files.sync_directory(f"{new}/commitlog")
    for gap in gaps:
        Quarantine(files, new).record_gap(gap)
    return len(gaps)


def _segment_works(files: Files, staging: str, length: int, chosen: list[FoundRecord]) -> Iterator[SegmentWork]:
    """Yields all segments of the new log, including those without records. For each segment, writes a file that lists
    its records.
    """
    start, end, first = chosen[0].physical_offset // length * length, chosen[-1].physical_offset, 0
    stored_ms = chosen[0].store_timestamp_ms
    while start <= end:
        last = first
        while last < len(chosen) and chosen[last].physical_offset < start + length:
            last += 1
        name = f"segment-{start}.rows"
        content = array("q", (number for one in chosen[first:last] for number in one)).tobytes()
        files.write_file(f"{staging}/{name}", content)
        yield SegmentWork(start, start + length > end, stored_ms, name)
        stored_ms = max(stored_ms, *(one.store_timestamp_ms for one in chosen[first:last]), 0)
        start, first = start + length, last


def _rows(files: Files, path: str, segment_bytes: int) -> list[FoundRecord]:
    rows = array("q")
    rows.frombytes(files.read_file(path, max(segment_bytes, FILE_BYTES_MAX)) or b"")
    width = len(FoundRecord._fields)
    return [FoundRecord(*rows[at : at + width]) for at in range(0, len(rows), width)]


class _NewSegment:
    """Writes a segment of the new log."""

    def __init__(self, files: Files, job: SalvageJob, work: SegmentWork, path: str) -> None:
        self._files = files
        self._job = job
        self._work = work
        self._path = path
        self._sources: dict[int, MappedFile] = {}

    def write(self, records: list[FoundRecord]) -> list[Gap]:
        """Writes the records in order of their offsets, and fillers into the gaps before them; returns the gaps."""
        start, gaps = self._work.start, self._gaps(records)
        size = records[-1].physical_offset + records[-1].size - start if records else 0
        self._files.create_segment(self._path, f"{self._path}.tmp", self._job.segment_bytes, size)
        at, waiting, waiting_bytes = 0, list[bytes](), 0
        for part in self._parts(records):
            waiting.append(part)
            waiting_bytes += len(part)
            if waiting_bytes >= _WRITE_BYTES:
                self._files.write_at(self._path, at, b"".join(waiting))
                at, waiting, waiting_bytes = at + waiting_bytes, [], 0
        blank = b"" if self._work.is_last else BLANK.pack(self._job.segment_bytes - size, MAGIC_BLANK)
        self._files.write_at(self._path, at, b"".join((*waiting, blank)))
        for file in self._sources.values():
            file.close()
        return gaps

    def _gaps(self, records: list[FoundRecord]) -> list[Gap]:
        if not records and not self._work.is_last:
            return [Gap(self._work.start, self._work.start + self._job.segment_bytes)]
        ends = [self._work.start, *(one.physical_offset + one.size for one in records)]
        pairs = zip(ends, records, strict=False)
        return [Gap(end, one.physical_offset) for end, one in pairs if one.physical_offset > end]

    def _parts(self, records: Iterable[FoundRecord]) -> Iterator[bytes]:
        """Yields the bytes of the segment in parts."""
        at, stored_ms = self._work.start, self._work.stored_ms
        for one in records:
            yield from _fillers(at, one.physical_offset, stored_ms)
            yield self._record(one)
            stored_ms = max(stored_ms, one.store_timestamp_ms)
            at = one.physical_offset + one.size

    def _record(self, one: FoundRecord) -> bytes:
        file = self._sources.get(one.file)
        if file is None:
            path, size = self._job.paths[one.file], self._job.sizes[one.file]
            self._files.hold(path.rpartition("/")[0])
            file = self._sources[one.file] = readable_file(self._files, path, 0, size, Findings(""))
        return bytes(file.map.view[one.position : one.position + one.size])


def _fillers(start: int, end: int, stored_ms: int) -> Iterator[bytes]:
    """Yields filler records, which belong to no queue, for the bytes from ``start`` up to ``end``."""
    while start < end:
        size = end - start
        if size > _FILLER_BYTES_MAX + FILLER_BYTES_MIN:
            size = _FILLER_BYTES_MAX
        yield filler(size, start, stored_ms)
        start += size


def _sizes(files: Files, sources: Sequence[str]) -> dict[str, str]:
    """Returns the options that follow from the queues and index of the first source that has any."""
    for source in (source for source in sources if not files.is_file(source)):
        if any(files.exists(f"{source}/{part}") for part in (*PARTS, LITE)):
            return options_of_files(files, source)
    return {}


def _copy_tables(files: Files, sources: Sequence[str], output: str) -> None:
    """Copies the directory ``config`` of the first source that has one."""
    for source in (source for source in sources if not files.is_file(source)):
        names = files.list_files(f"{source}/config")
        for name in names:
            files.make_directory(f"{output}/config")
            private = files.is_private(f"{source}/config/{name}")
            files.write_file(f"{output}/config/{name}", files.read_file(f"{source}/config/{name}") or b"", private)
        if names:
            return
