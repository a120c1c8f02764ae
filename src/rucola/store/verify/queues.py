"""Compares consume queues with the log: every record must have its unit, every unit must have its record, and a queue
must have no holes. The texts of findings call a unit an entry.

For each batch of records, the Cython kernel that writes queues produces the expected units, queue by queue. These units
are compared with the file as bytes. If they differ, the records of this queue in the batch are examined one by one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.common.kernel_columns import (
    RECORD_QUEUE_ID,
    RECORD_QUEUE_OFFSET,
    RECORD_SAME_TOPIC,
    RECORD_SIZE,
    RECORD_SYS_FLAG,
    RECORD_TAGS_CODE,
    RECORD_TOPIC_LEN,
    RECORD_TOPIC_POS,
)
from rucola.common.key_builder import LMQ_PREFIX
from rucola.common.message_const import INNER_MULTI_DISPATCH
from rucola.common.sysflag import PREPARED_BIT
from rucola.formats.consume_queue import PRE_FILL_UNIT, UNIT, UNIT_BYTES, gather_units
from rucola.formats.consume_queue_ext import is_address
from rucola.formats.message import ROWS_MAX
from rucola.formats.properties import decode_properties
from rucola.runtime.files import Files
from rucola.store.dispatch import SCHEDULE_TOPIC
from rucola.store.log.mapped_file import MappedFile
from rucola.store.places import is_directory_name
from rucola.store.queue.consume_queue import PREFILL_SIZE
from rucola.store.verify.batch_queues import BatchQueueChecks
from rucola.store.verify.findings import FindingKind, Findings
from rucola.store.verify.identities import RecordIdentities
from rucola.store.verify.log import LogCheck, load_segments
from rucola.store.verify.queue_ext import ExtUnits

_OPEN_MAX = 256
"""Largest number of queues that are mapped at a time, because descriptors are limited."""

_EMPTY_MAX = 16
_ZERO_UNIT = bytes(UNIT_BYTES)


class QueueCheck:
    """The files of one queue, and how many of its units the walk over the log has compared.

    Attributes:
        path: path of the queue's directory.
        first: queue offset of the queue's first record in the log; -1 until the walk meets a record of the queue.
        next: queue offset after the queue's newest record that the walk has met; -1 as long as ``first`` is -1.
    """

    def __init__(self, path: str, segments: list[MappedFile]) -> None:
        self.path = path
        self.segments = segments
        self.first = -1
        self.next = -1
        self._mapped: MappedFile | None = None

    @property
    def start(self) -> int:
        """Queue offset of the first unit in the files."""
        return self.segments[0].start // UNIT_BYTES if self.segments else 0

    @property
    def end(self) -> int:
        """Queue offset after the last unit in the files."""
        return self.segments[-1].end // UNIT_BYTES if self.segments else 0

    def read(self, queue_offset: int, count: int) -> bytes:
        """Returns ``count`` units as bytes; zeros where there is no file."""
        position, end = queue_offset * UNIT_BYTES, (queue_offset + count) * UNIT_BYTES
        parts = []
        while position < end:
            file = self._file(position)
            stop = end
            if file is not None and position < file.end:
                stop = min(end, file.end)
                if file is not self._mapped:
                    self.close()
                    self._mapped = file
                parts.append(bytes(file.map.view[position - file.start : stop - file.start]))
            else:
                stop = min([end, *(other.start for other in self.segments if position < other.start < end)])
                parts.append(bytes(stop - position))
            position = stop
        return b"".join(parts)

    def place_of(self, queue_offset: int) -> tuple[int, int]:
        """Returns the physical offset and the size that a unit holds; zeros where there is no file."""
        if not self.start <= queue_offset < self.end:
            return 0, 0
        physical_offset, size, _ = UNIT.unpack(self.read(queue_offset, 1))
        return physical_offset, size

    def find(self, place: tuple[int, int]) -> int:
        """Returns the queue offset of the unit that points to a record; -1 if there is no such unit."""
        if self.next >= 0 and self.place_of(self.next) == place:
            return self.next
        low, high = self.start, self.end
        while low < high:
            middle = (low + high) // 2
            physical_offset, size = self.place_of(middle)
            behind = middle
            while size in (0, PREFILL_SIZE) and behind + 1 < min(high, middle + _EMPTY_MAX):
                behind += 1
                physical_offset, size = self.place_of(behind)
            if size not in (0, PREFILL_SIZE) and physical_offset < place[0]:
                low = behind + 1
            else:
                high = middle
        return low if self.place_of(low) == place else -1

    def close(self) -> None:
        """Unmaps the file. Only one file is mapped at a time; files are mapped again when needed."""
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None

    def spans(self, first: int, last: int) -> Iterator[tuple[int, int, bool]]:
        """Splits a range of queue offsets at the borders of files. Yields for each part its first queue offset, its
        last queue offset plus 1, and whether a file holds the part.
        """
        at = first
        for file in self.segments:
            begin, end = file.start // UNIT_BYTES, min(file.end // UNIT_BYTES, last)
            if end <= at:
                continue
            if begin > at:
                yield at, min(begin, last), False
            if begin >= last:
                return
            yield max(begin, at), end, True
            at = end
        if at < last:
            yield at, last, False

    def place(self, queue_offset: int) -> tuple[str, int]:
        """Returns file and position of a unit; directory and position in the whole queue if there is no file."""
        position = queue_offset * UNIT_BYTES
        file = self._file(position)
        return (file.path, position - file.start) if file is not None and position < file.end else (self.path, position)

    def _file(self, position: int) -> MappedFile | None:
        at = bisect_right(self.segments, position, key=lambda file: file.start) - 1
        return self.segments[at] if at >= 0 else None


class QueueChecks:
    """Checks all consume queues of a store.

    Attributes:
        queues: the queues met so far, by topic and queue id; after ``finish`` all queues.
        units: number of units that agree with their record.
        far: for each unit that points beyond the last segment, the physical offset at which its record would end.

    Args:
        path: the directory ``consumequeue``.
        log: the walk that passes its batches to ``rows``.
        identities: reconciles records with entries.
        live: whether the store is in use; some records may then lack their units.
        dispatched: in a live store, the physical offset below which records have their units.
        batch: checks the records of topics of type BatchCQ.
        ext: the extensions of the queues.
        deleted: for each deleted topic, the physical offset below which its records belong to no queue.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        found: Findings,
        log: LogCheck,
        identities: RecordIdentities,
        segment_bytes: int,
        batch: BatchQueueChecks,
        ext: ExtUnits,
        live: bool = False,
        dispatched: int = 0,
        deleted: Mapping[bytes, int] | None = None,
    ) -> None:
        self.queues: dict[tuple[bytes, int], QueueCheck] = {}
        self.units = 0
        self.far: list[int] = []
        self._files = files
        self._path = path
        self._found = found
        self._log = log
        self._identities = identities
        self._segment_bytes = segment_bytes
        self._batch = batch
        self._ext = ext
        self._live = live
        self._dispatched = dispatched
        self._deleted = deleted or {}
        self._expected = bytearray(ROWS_MAX * UNIT_BYTES)
        self._open: set[QueueCheck] = set()

    def rows(self, file: MappedFile, table: array[int], rows: int) -> None:
        """Checks records of the log, in order."""
        same_topic = table[RECORD_SAME_TOPIC : rows * ROW_WIDTH : ROW_WIDTH]
        view, first = file.map.view, 0
        while first < rows:
            try:
                last = same_topic.index(0, first + 1)
            except ValueError:
                last = rows
            position = table[first * ROW_WIDTH + RECORD_TOPIC_POS]
            topic = bytes(view[position : position + table[first * ROW_WIDTH + RECORD_TOPIC_LEN]])
            deleted_to = self._deleted.get(topic, 0)
            while first < last and file.start + table[first * ROW_WIDTH] < deleted_to:
                first += 1
            if topic in self._batch.topics:
                self._batch.rows(topic, file, table, first, last)
            else:
                for queue_id in set(table[first * ROW_WIDTH + RECORD_QUEUE_ID : last * ROW_WIDTH : ROW_WIDTH]):
                    self._take(topic, queue_id, file, table, first, last)
            first = last

    def finish(self, names: list[tuple[bytes, int]]) -> None:
        """Checks the units that belong to none of the records that the walk has met.

        Args:
            names: topic and queue id of every queue directory.
        """
        for topic, queue_id in names:
            queue = self._queue(topic, queue_id)
            if topic.startswith(LMQ_PREFIX.encode()):
                self._check_light_queue(topic.decode("utf-8", "surrogateescape"), queue)
                continue
            first = queue.first if queue.first >= 0 else queue.end
            self._loose_units(topic, queue_id, queue, queue.start, first, inside=False)
            if not self._live:
                self._loose_units(topic, queue_id, queue, max(queue.next, first), queue.end, inside=False)

    @property
    def named_end(self) -> int:
        """Physical offset up to which the log formerly extended, according to the units that point beyond its last
        segment; 0 if there are fewer than two such units.
        """
        return max(self.far) if len(self.far) > 1 else 0

    def close(self) -> None:
        """Unmaps all files."""
        for queue in self._open:
            queue.close()

    # -- records -------------------------------------------------------------------------------------------------------

    def _queue(self, topic: bytes, queue_id: int) -> QueueCheck:
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            directory = f"{self._path}/{topic.decode('utf-8', 'surrogateescape')}/{queue_id}"
            # The name comes from a record, which may be damaged.
            segments = []
            if is_directory_name(topic.decode("utf-8", "surrogateescape")) and queue_id >= 0:
                segments = load_segments(self._files, directory, self._found, self._segment_bytes)
            queue = self.queues[topic, queue_id] = QueueCheck(directory, segments)
        if queue not in self._open:
            if len(self._open) >= _OPEN_MAX:
                for other in self._open:
                    other.close()
                self._open.clear()
            self._open.add(queue)
        return queue

    def _take(self, topic: bytes, queue_id: int, file: MappedFile, table: array[int], first: int, last: int) -> None:
        """Checks the records of one queue. ``table`` holds consecutive records of the same topic."""
        queue = self._queue(topic, queue_id)
        if queue.next >= 0:
            count, _, _ = gather_units(table, first, last, queue_id, queue.next, file.start, self._expected)
            if count >= 0 and queue.read(queue.next, count) == self._expected[: count * UNIT_BYTES]:
                queue.next += count
                self.units += count
                return
        for row in range(first * ROW_WIDTH, last * ROW_WIDTH, ROW_WIDTH):
            if table[row + RECORD_QUEUE_ID] == queue_id and not table[row + RECORD_SYS_FLAG] & PREPARED_BIT:
                self._check_unit(topic, queue, file, table, row)

    def _check_unit(self, topic: bytes, queue: QueueCheck, file: MappedFile, table: array[int], row: int) -> None:
        """Checks the unit of one record."""
        said, physical_offset = table[row + RECORD_QUEUE_OFFSET], file.start + table[row]
        place = (physical_offset, table[row + RECORD_SIZE])
        # The unit is read only once, because a broker that uses the store may write it between two reads.
        unit = queue.read(said, 1) if said >= 0 else _ZERO_UNIT
        queue_offset = said if UNIT.unpack(unit)[:2] == place else queue.find(place)
        if queue_offset < 0:
            self._without_unit(topic, queue, file, table, row, unit)
            return
        if queue_offset != said:
            detail = (
                f"the record states that it is entry {said} of {_name(queue)}, but entry {queue_offset} points to it"
            )
            self._found.add(FindingKind.QUEUE_OFFSET, file.path, table[row], detail)
        if queue.next < 0:
            queue.first = queue.next = queue_offset
        if queue_offset < queue.next:
            return
        if queue_offset > queue.next:
            self._loose_units(topic, table[row + RECORD_QUEUE_ID], queue, queue.next, queue_offset, inside=True)
        queue.next = queue_offset + 1
        self.units += 1
        tags_code = UNIT.unpack(queue.read(queue_offset, 1))[2]
        if tags_code != table[row + RECORD_TAGS_CODE] and not self._other_code(topic, tags_code, table, row):
            detail = f"entry {queue_offset} has tags code {tags_code}, its record has {table[row + RECORD_TAGS_CODE]}"
            self._found.add(FindingKind.UNIT_TAGS, *queue.place(queue_offset), detail, UNIT_BYTES)

    def _without_unit(
        self, topic: bytes, queue: QueueCheck, file: MappedFile, table: array[int], row: int, unit: bytes
    ) -> None:
        """Handles a record to which no unit of its queue points. Either the unit at the record's queue offset is wrong
        or missing, or the record states a wrong queue or queue offset.

        Args:
            unit: the unit at the record's queue offset.
        """
        queue_id, queue_offset, physical_offset = (
            table[row + RECORD_QUEUE_ID],
            table[row + RECORD_QUEUE_OFFSET],
            file.start + table[row],
        )
        unit_offset, size, _ = UNIT.unpack(unit)
        taken = unit not in (_ZERO_UNIT, PRE_FILL_UNIT) and self._log.is_entry(
            (unit_offset, size), topic, queue_id, queue_offset
        )
        follows = queue.next < 0 or queue_offset == queue.next
        if 0 <= queue_offset < queue.next or taken:
            detail = (
                f"the record at physical offset {physical_offset} states that it is entry {queue_offset} of "
                f"{_name(queue)}, but this entry belongs to another record"
            )
            self._identities.wait(physical_offset, FindingKind.QUEUE_OFFSET, (file.path, table[row]), detail, -1)
            return
        if follows and queue.segments:
            if queue.next < 0:
                queue.first = queue_offset
            queue.next = queue_offset + 1
        place = queue.place(queue_offset)
        if unit in (_ZERO_UNIT, PRE_FILL_UNIT):
            if not self._live or physical_offset < self._dispatched:
                detail = f"there is no entry {queue_offset} for the record at physical offset {physical_offset}"
                self._identities.wait(physical_offset, FindingKind.RECORD_WITHOUT_UNIT, place, detail, UNIT_BYTES)
        else:
            detail = (
                f"entry {queue_offset} states physical offset {unit_offset}, size {size}; its record is at "
                f"{physical_offset}, size {table[row + RECORD_SIZE]}"
            )
            self._identities.wait(physical_offset, FindingKind.UNIT, place, detail, UNIT_BYTES)

    def _other_code(self, topic: bytes, tags_code: int, table: array[int], row: int) -> bool:
        """Whether a tags code may be something other than a hash: a due time, or the address of an extension's unit."""
        stored_ms = table[row + RecordColumn.STORE_TIMESTAMP]
        if is_address(tags_code):
            unit = self._ext.read(topic, table[row + RECORD_QUEUE_ID], tags_code)
            if unit is None or unit.store_timestamp_ms != stored_ms:
                return False
            tags_code = unit.tags_code
        return tags_code == table[row + RECORD_TAGS_CODE] or (topic == SCHEDULE_TOPIC and tags_code >= stored_ms)

    # -- units ---------------------------------------------------------------------------------------------------------

    def _loose_units(self, topic: bytes, queue_id: int, queue: QueueCheck, first: int, last: int, inside: bool) -> None:
        """Checks the units from ``first`` to ``last`` (excluded), for which the walk over the log found no record.

        Args:
            inside: whether the units lie between two units whose records the walk found.
        """
        for begin, end, there in queue.spans(first, last):
            if not there:
                if inside:
                    detail = f"entries {begin} to {end - 1} have no file"
                    self._found.add(FindingKind.QUEUE_HOLE, *queue.place(begin), detail)
                continue
            for start in range(begin, end, ROWS_MAX):
                units = queue.read(start, min(ROWS_MAX, end - start))
                if not inside and units.count(0) == len(units):
                    continue
                for at, (physical_offset, size, _) in enumerate(UNIT.struct.iter_unpack(units)):
                    unit = units[at * UNIT_BYTES : (at + 1) * UNIT_BYTES]
                    if unit not in (_ZERO_UNIT, PRE_FILL_UNIT):
                        if self._identities.is_right(topic, queue_id, start + at, (physical_offset, size)):
                            self.units += 1
                            continue
                        self._judge_loose(queue, start + at, physical_offset, size, inside)
                    elif inside:
                        detail = f"entry {start + at} points to nothing"
                        self._found.add(FindingKind.QUEUE_HOLE, *queue.place(start + at), detail, UNIT_BYTES)

    def leads_to(self, topic: bytes, queue_id: int, queue_offset: int, place: tuple[int, int]) -> bool:
        """Whether a unit points to the record with this physical offset and size."""
        return self._queue(topic, queue_id).place_of(queue_offset) == place

    def _judge_loose(self, queue: QueueCheck, queue_offset: int, physical_offset: int, size: int, inside: bool) -> None:
        log = self._log
        if physical_offset < log.start and not inside and (queue.first < 0 or queue_offset < queue.first):
            return  # the record's segment has expired
        if log.damaged(physical_offset):
            self._found.affected += 1
            return
        stale = not inside and queue_offset >= queue.next >= 0 and physical_offset < log.end
        kind = FindingKind.STALE_UNIT if stale else FindingKind.UNIT_WITHOUT_RECORD
        if physical_offset >= log.segments_end:
            self.far.append(physical_offset + size)
        where = "" if physical_offset < log.end else f"; the log ends at {log.end}"
        detail = f"entry {queue_offset} states physical offset {physical_offset}, size {size}{where}"
        self._found.add(kind, *queue.place(queue_offset), detail, UNIT_BYTES)

    def _check_light_queue(self, topic: str, queue: QueueCheck) -> None:
        """Checks the units of a light queue: they point to records of other topics that name the light queue
        (``INNER_MULTI_DISPATCH``).
        """
        for begin, end, there in queue.spans(queue.start, queue.end):
            for start in range(begin, end if there else begin, ROWS_MAX):
                units = queue.read(start, min(ROWS_MAX, end - start))
                if units.count(0) < len(units):
                    self._check_light_units(topic, queue, start, units)

    def _check_light_units(self, topic: str, queue: QueueCheck, start: int, units: bytes) -> None:
        for at, (physical_offset, size, _) in enumerate(UNIT.struct.iter_unpack(units)):
            blank = units[at * UNIT_BYTES : (at + 1) * UNIT_BYTES] in (_ZERO_UNIT, PRE_FILL_UNIT)
            if blank or physical_offset < self._log.start:
                continue
            if self._dispatched_to(topic, physical_offset, size):
                self.units += 1
            elif not (self._live and physical_offset >= self._log.end):
                self._judge_loose(queue, start + at, physical_offset, size, inside=False)

    def _dispatched_to(self, topic: str, physical_offset: int, size: int) -> bool:
        hit = self._log.row_at(physical_offset)
        if hit is None or hit[1][RECORD_SIZE] != size:
            return False
        file, row = hit
        start = row[RecordColumn.PROPERTIES_POS]
        text = file.map.view[start : start + row[RecordColumn.PROPERTIES_LEN]]
        return topic in decode_properties(text).get(INNER_MULTI_DISPATCH, "").split(",")


def _name(queue: QueueCheck) -> str:
    topic, _, queue_id = queue.path.rpartition("/")
    return f"{topic.rpartition('/')[2]}/{queue_id}"
