"""First step of a rebuild: reads one segment of the log once, and writes the units and the index keys of its records
into two files, and the entries of lite topics into a third.

The units are written in parts; a part is sorted by queue, and within a queue by the order of the log. The keys have the
order of the log. The content of both files depends only on the segment and the job. So if a task runs more than once,
any of the results may be used.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.errors import StoreDamagedError
from rucola.formats.consume_queue import UNIT, UNIT_BYTES, CollectedColumn, QueueColumn, collect_units, sort_units
from rucola.formats.index_file import KEY, gather_keys
from rucola.formats.light_queue import is_lite
from rucola.formats.message import RECORD_BYTES_MIN, ROWS_MAX
from rucola.runtime.files import Files
from rucola.store.config import delay_levels_ms
from rucola.store.dispatch import SCHEDULE_TOPIC, set_due_times
from rucola.store.doctor.rebuild_job import RebuildJob
from rucola.store.doctor.rebuild_lite import encode_entry
from rucola.store.log.checked_walk import CheckedWalk
from rucola.store.log.mapped_file import MappedFile
from rucola.store.queue.multi_dispatch import LightEntry, is_possible, light_entries

UNITS_MAX = 512 * 1024
"""Largest number of units in a part; a part of this size takes 20 MiB of memory."""
_QUEUES_MAX = 64 * 1024
_KEYS_BYTES = 1 << 20
_LITE_BYTES = 1 << 20
_DAMAGED = "restore the file from a copy, salvage the store, or start the broker with --quarantine to serve the rest"

Run = tuple[int, int, int]
"""Consecutive units: queue offset of the first, number of units, and position of the first in the file."""


@dataclass
class QueuePart:
    """Units that the records of one segment add to one queue.

    Attributes:
        light: whether this is a light queue, whose entries point to records of other topics.
        runs: units of the queue, in the order of the log.
    """

    topic: str
    queue_id: int
    light: bool
    runs: list[Run] = field(default_factory=list)


@dataclass
class ScanResult:
    """The result of one scan.

    Attributes:
        records: number of records.
        first_ms: store time of the first record; -1 without records.
        units, keys: names of the two files.
        key_count: number of keys.
        skipped: number of entries of light queues that are left out, because their name or queue offset is impossible.
        lite: name of the file with the entries of lite topics; empty without one.
    """

    records: int
    first_ms: int
    units: str
    keys: str
    key_count: int
    skipped: int
    queues: list[QueuePart]
    lite: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> ScanResult:
        """Creates the object from the result of ``to_dict``."""
        parts = fields.pop("queues")
        queues = [QueuePart(**part | {"runs": [tuple(run) for run in part["runs"]]}) for part in parts]
        return cls(queues=queues, **fields)


class SegmentScan:
    """One scan.

    Args:
        path: prefix of the paths of the two files.
    """

    def __init__(self, files: Files, job: RebuildJob, number: int, path: str) -> None:
        config = job.config
        self._files = files
        self._file = MappedFile(files, *job.segments[number], False, 0)
        self._limit = min(job.end, self._file.end) - self._file.start
        self._units = _Sink(files, f"{path}.units")
        self._keys = _Sink(files, f"{path}.keys")
        self._lite = _Sink(files, f"{path}.lite") if job.lite else None
        self._lite_waiting = bytearray()
        self._indexed = config.message_index_enable
        self._multi = config.enable_multi_dispatch and config.enable_lmq
        self._levels_ms = delay_levels_ms(config.message_delay_level)
        self._deleted = job.deleted_to()
        self._parts: dict[tuple[bytes, int, bool], QueuePart] = {}
        self._light: dict[bytes, list[LightEntry]] = {}
        self._skipped = 0
        records_max = self._limit // RECORD_BYTES_MIN + 1
        queues_max = min(_QUEUES_MAX, 1 << records_max.bit_length())
        self._key_buffer = bytearray(_KEYS_BYTES)
        self._key_end = 0
        self._collected = array("q", bytes(8 * len(CollectedColumn) * min(UNITS_MAX, records_max)))
        self._queues = array("q", bytes(8 * len(QueueColumn) * queues_max))
        self._slots = array("q", bytes(8 * 2 * queues_max))
        self._queue_count = self._count = 0

    def run(self) -> ScanResult:
        """Reads the segment and writes the files.

        Raises:
            StoreDamagedError: a record cannot be read.
            DiskError: a file cannot be written.
        """
        records, first_ms = 0, -1
        for table, rows in self._batches():
            if not records:
                first_ms = table[RecordColumn.STORE_TIMESTAMP]
            records += rows
            self._collect(table, rows)
            if self._multi:
                self._collect_light(table, rows)
            if self._indexed:
                self._collect_keys(table, rows)
        self._flush()
        if self._lite is not None:
            self._lite.write(self._lite_waiting)
        self._keys.write(memoryview(self._key_buffer)[: self._key_end])
        self._file.close()
        return ScanResult(
            records,
            first_ms,
            self._units.close(),
            self._keys.close(),
            self._keys.size // KEY.size,
            self._skipped,
            list(self._parts.values()),
            "" if self._lite is None else self._lite.close(),
        )

    def _batches(self) -> Iterator[tuple[array[int], int]]:
        table, file, position = new_table(ROWS_MAX), self._file, 0
        walk = CheckedWalk(table)
        while position < self._limit:
            rows, behind, stop = walk.walk(file, position, 0)
            # Bytes after the end of the log may look like records.
            while rows and table[(rows - 1) * ROW_WIDTH] >= self._limit:
                rows -= 1
            if rows:
                yield table, rows
            if stop == WalkStop.BLANK and behind < self._limit:
                if self._limit < file.size:
                    raise StoreDamagedError(file.path, behind, "the log does not end here", _DAMAGED)
                return
            if behind < self._limit and (stop == WalkStop.TORN or behind <= position):
                problem = "the disk cannot read the record" if walk.unreadable else "a record cannot be read"
                raise StoreDamagedError(file.path, behind, problem, _DAMAGED)
            position = behind

    # -- units ---------------------------------------------------------------------------------------------------------

    def _collect(self, table: array[int], rows: int) -> None:
        segment, start, first = self._file.map, self._file.start, 0
        while first < rows:
            done, self._queue_count, self._count = collect_units(
                segment.buffer,
                memoryview(table)[first * ROW_WIDTH :],
                rows - first,
                start,
                self._slots,
                self._queues,
                self._queue_count,
                self._collected,
                self._count,
            )
            first += done
            if first < rows:
                self._flush()

    def _collect_light(self, table: array[int], rows: int) -> None:
        for entry in light_entries(self._file, table, rows, self._deleted):
            if self._lite is not None and entry is not None and is_lite(entry.name):
                self._lite_waiting += encode_entry(entry)
            elif entry is None or not is_possible(entry):
                self._skipped += 1
            else:
                self._light.setdefault(entry.name, []).append(entry)
        if self._lite is not None and len(self._lite_waiting) >= _LITE_BYTES:
            self._lite.write(self._lite_waiting)
            self._lite_waiting.clear()

    def _flush(self) -> None:
        """Writes a part."""
        units, offsets = bytearray(UNIT_BYTES * self._count), array("q", bytes(8 * self._count))
        ends = array("q", bytes(8 * max(self._queue_count, 1)))
        sort_units(self._collected, self._count, self._queues, self._queue_count, ends, units, offsets)
        begin = 0
        for number in range(self._queue_count):
            row = number * len(QueueColumn)
            self._add_queue(self._queues[row : row + len(QueueColumn)], units, offsets, begin, ends[number])
            begin = ends[number]
        self._units.write(units)
        for name, entries in self._light.items():
            runs = _runs([entry.queue_offset for entry in entries], self._units.size)
            self._part(name, 0, True).runs += runs
            self._units.write(b"".join(UNIT.pack(*entry[2:5]) for entry in entries))
        self._light.clear()
        self._slots = array("q", bytes(8 * len(self._slots)))
        self._queue_count = self._count = 0

    def _add_queue(self, queue: array[int], units: bytearray, offsets: array[int], begin: int, end: int) -> None:
        """Adds the runs of consecutive units of one queue. Its units have the indices ``begin`` to ``end`` (excluded)
        in ``units``.
        """
        at = queue[QueueColumn.TOPIC_POS]
        topic = bytes(self._file.map.view[at : at + queue[QueueColumn.TOPIC_LEN]])
        deleted_to = self._deleted.get(topic, 0)
        while begin < end and UNIT.unpack(units, begin * UNIT_BYTES)[0] < deleted_to:
            begin += 1
        if begin == end:
            return
        if topic == SCHEDULE_TOPIC:
            set_due_times(self._file, units, begin, end, self._levels_ms)
        position = self._units.size + begin * UNIT_BYTES
        part = self._part(topic, queue[QueueColumn.QUEUE_ID], False)
        if not queue[QueueColumn.BREAKS]:
            part.runs.append((offsets[begin], end - begin, position))
        else:
            part.runs += _runs(offsets[begin:end], position)

    def _part(self, topic: bytes, queue_id: int, light: bool) -> QueuePart:
        part = self._parts.get((topic, queue_id, light))
        if part is None:
            part = QueuePart(topic.decode("utf-8", "surrogateescape"), queue_id, light)
            self._parts[topic, queue_id, light] = part
        return part

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _collect_keys(self, table: array[int], rows: int) -> None:
        first, file = 0, self._file
        while True:
            first, self._key_end = gather_keys(
                file.map.buffer, table, first, rows, file.start, self._key_buffer, self._key_end
            )
            if first == rows:
                return
            self._keys.write(memoryview(self._key_buffer)[: self._key_end])
            self._key_end = 0


def _runs(offsets: Sequence[int], position: int) -> list[Run]:
    """Splits units into runs with consecutive queue offsets. The first unit lies at ``position`` of the file."""
    runs: list[Run] = []
    begin = 0
    for at in range(1, len(offsets) + 1):
        if at == len(offsets) or offsets[at] != offsets[at - 1] + 1:
            runs.append((offsets[begin], at - begin, position + begin * UNIT_BYTES))
            begin = at
    return runs


class _Sink:
    """A file to which bytes are appended. If the file exists, it is emptied first.

    Attributes:
        size: number of bytes written.
    """

    def __init__(self, files: Files, path: str) -> None:
        self.size = 0
        self._files = files
        self._path = path
        files.write_file(path, b"")

    def write(self, content: bytes | bytearray | memoryview) -> None:
        """Appends to the file and syncs it."""
        if content:
            self._files.write_at(self._path, self.size, bytes(content))
            self.size += len(content)

    def close(self) -> str:
        """Returns the name of the file; ``write`` has already synced the content."""
        return self._path.rpartition("/")[2]
