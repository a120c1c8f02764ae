"""Second step of a rebuild: writes the files of some queues, or one index file, from the files of the scans.

The broker's own queue objects write the queues: many entries at once while queue offsets are consecutive, and one entry
at a time where a record's queue offset is not the expected one. So the files equal those that the broker's dispatch
writes: for all kinds of queues, and even if records are damaged or queue offsets are missing. Every file is synced
before a task ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rucola.common.columns import RecordColumn
from rucola.errors import StoreDamagedError
from rucola.formats.consume_queue import UNIT, UNIT_BYTES
from rucola.formats.index_file import KEY, put_keys
from rucola.runtime.files import Files
from rucola.store.doctor.rebuild_job import RebuildJob
from rucola.store.index.index_service import IndexFile
from rucola.store.log.log_reader import Gap, LogReader
from rucola.store.log.multi_path import MultiPathSegmentList
from rucola.store.queue.consume_queue import ConsumeQueue, DispatchRequest
from rucola.store.queue.multi_dispatch import LightEntry, put_light_entry
from rucola.store.queue.placement import Placement
from rucola.store.queue.queue_factory import QueueFactory

_UNITS_MAX = 64 * 1024
_KEYS_MAX = 64 * 1024
_QUEUE_OFFSET_MAX = 1 << 48
INDEX_NAME = "file"


@dataclass(frozen=True)
class FileRun:
    """Consecutive units in a file that a scan wrote; see ``rebuild_scan.Run``."""

    path: str
    queue_offset: int
    count: int
    position: int


@dataclass(frozen=True)
class QueueWork:
    """A queue whose files are to be written.

    Attributes:
        light: see ``rebuild_scan.QueuePart``.
        runs: units of the queue, in the order of the log.
    """

    topic: str
    queue_id: int
    light: bool
    runs: list[FileRun]

    @property
    def count(self) -> int:
        """Number of units."""
        return sum(run.count for run in self.runs)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> QueueWork:
        """Creates the object from the result of ``dataclasses.asdict``."""
        return cls(**fields | {"runs": [FileRun(**run) for run in fields["runs"]]})


@dataclass(frozen=True)
class IndexWork:
    """An index file to be made.

    Attributes:
        pieces: the key files of the scans that hold the keys, in the order of the log; for each key file, its path, the
            index of the first key to take, and the index after the last key to take.
        previous_end_ms, previous_end_offset: store time and physical offset of the last key of the previous index file;
            -1 for the first index file.
        first_ms: store time of the record for which the broker creates this index file; determines the file's name.
    """

    pieces: list[tuple[str, int, int]]
    previous_end_ms: int
    previous_end_offset: int
    first_ms: int


@dataclass(frozen=True)
class LayoutResult:
    """The result of one task: the directory with its files, and what they contain.

    Attributes:
        directory: name of the directory that holds the files, arranged as in a store.
        queues, units, keys: number of queues, units and keys in these files.
    """

    directory: str
    queues: int
    units: int
    keys: int

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as values for JSON."""
        return asdict(self)


class QueueLayout:
    """Writes the files of queues below one directory.

    Args:
        path: the directory, which must be new.
    """

    def __init__(self, files: Files, job: RebuildJob, path: str) -> None:
        length = job.segments[0][2]
        self._files = files
        self._path = path
        self._log = log = LogReader(MultiPathSegmentList(files, job.directories, (), length, writable=False))
        log.segments.load(remove_empty=False)
        log.max_offset = job.end
        log.gaps = [Gap(*gap) for gap in job.gaps]
        self._factory = QueueFactory(files, path, log, job.queue_options(), writable=True)
        # Each record is dispatched for the first time here, so no other queue has an entry that points to it.
        self._factory.placement = Placement(log, lambda *_: (0, 0), lambda *_: iter(()))
        self._factory.placement.trusted_to = job.trusted_to

    def run(self, work: list[QueueWork]) -> LayoutResult:
        """Makes the queues.

        Raises:
            DiskError: a file cannot be written; a retry begins with a new directory.
        """
        self._files.make_directory(self._path)
        queues = units = 0
        for one in work:
            topic = one.topic.encode("utf-8", "surrogateescape")
            if not self._factory.can_hold(topic, one.queue_id):
                continue  # An invalid topic or queue id has no queue, as in recovery (``recovery.screen``).
            queue = self._factory.make(topic, one.queue_id)
            queue.open()
            for run in one.runs:
                self._put_run(queue, one, run)
            queue.sync()
            queue.close()
            queues += 1
            units += one.count
        self._log.segments.close()
        return LayoutResult(self._path.rpartition("/")[2], queues, units, 0)

    def _put_run(self, queue: ConsumeQueue, work: QueueWork, run: FileRun) -> None:
        plain = not work.light and not self._factory.by_record(queue.topic)
        fresh = queue.max_offset == queue.min_offset == 0 and not queue.segments.files
        if plain and fresh and run.count > 1 and 0 < run.queue_offset < _QUEUE_OFFSET_MAX:
            # The run's second record has the next queue offset, which confirms the first record's queue offset.
            queue.begin_at(run.queue_offset)
        for first, units in self._parts(run):
            if plain and first == queue.max_offset:
                queue.put_units(units, len(units) // UNIT_BYTES)
                continue
            for number, unit in enumerate(UNIT.struct.iter_unpack(units)):
                self._put_one(queue, work.light, plain, first + number, unit)

    def _put_one(
        self, queue: ConsumeQueue, light: bool, plain: bool, queue_offset: int, unit: tuple[int, int, int]
    ) -> None:
        physical_offset, size, tags_code = unit
        if light:
            put_light_entry(queue, LightEntry(queue.topic, queue_offset, *unit))
        elif plain:
            queue.put(queue_offset, physical_offset, size, tags_code)
        else:
            row = self._log.row_at(physical_offset, 0)
            if row is None:
                raise StoreDamagedError(self._log.segments.path, physical_offset, "the record is gone", "start again")
            properties = self._log.properties_of(physical_offset, row)
            stored_ms = row[RecordColumn.STORE_TIMESTAMP]
            queue.put_record(DispatchRequest(queue_offset, physical_offset, size, tags_code, stored_ms, properties))

    def _parts(self, run: FileRun) -> Iterator[tuple[int, bytearray]]:
        """Yields the units of a run in parts, each with the queue offset of its first unit."""
        for first in range(0, run.count, _UNITS_MAX):
            count = min(_UNITS_MAX, run.count - first)
            position = run.position + first * UNIT_BYTES
            units = self._files.read_at(run.path, position, count * UNIT_BYTES)
            if len(units) < count * UNIT_BYTES:
                raise StoreDamagedError(
                    run.path, position, "units written by the scan are missing", "remove the store's directory rebuild/"
                )
            yield run.queue_offset + first, bytearray(units)


def lay_out_index(files: Files, job: RebuildJob, work: IndexWork, path: str) -> LayoutResult:
    """Writes one index file into the new directory ``path``.

    Raises:
        DiskError: the file cannot be written; a retry begins with a new directory.
    """
    config, directory = job.config, f"{path}/index"
    files.make_directory(directory)
    file = IndexFile(files, directory, INDEX_NAME, config)
    length = file.entries_at + config.max_index_num * UNIT_BYTES
    files.create_segment(file.path, f"{path}/{INDEX_NAME}.tmp", length, file.entries_at)
    file.begin()
    if work.previous_end_ms >= 0:
        file.follow(work.previous_end_ms, work.previous_end_offset)
    total = 0
    for key_path, first, last in work.pieces:
        for start in range(first, last, _KEYS_MAX):
            count = min(_KEYS_MAX, last - start)
            keys = bytearray(files.read_at(key_path, start * KEY.size, count * KEY.size))
            if put_keys(file.buffer, config.max_hash_slot_num, file.room(count), keys, 0, count) != count:
                raise StoreDamagedError(
                    file.path,
                    0,
                    f"the file has no room for the next {count} keys",
                    "remove the store's directory rebuild/",
                )
            total += count
    file.sync()
    file.close()
    return LayoutResult(path.rpartition("/")[2], 0, 0, total)
