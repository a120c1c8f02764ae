"""Compares batch consume queues with the log: each record has its unit, in order, and there are no other units."""

from __future__ import annotations

from array import array

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.common.sysflag import PREPARED_BIT
from rucola.formats.batch_consume_queue import BATCH_UNIT_BYTES, BatchUnit, decode_batch_unit
from rucola.runtime.files import Files
from rucola.store.log.mapped_file import MappedFile
from rucola.store.queue.batch_consume_queue import batch_of
from rucola.store.queue.consume_queue import DispatchRequest
from rucola.store.verify.findings import FindingKind, Findings
from rucola.store.verify.identities import RecordIdentities
from rucola.store.verify.log import LogCheck, load_segments

_NO_UNIT = BatchUnit(0, 0, 0, 0, 0, 0)


class BatchQueueCheck:
    """One queue, and how many of its units the walk over the log has compared.

    Attributes:
        name: topic and queue id.
        number: number of the next unit to compare; the first unit in the files has number 0.
        next: queue offset after the newest record met; -1 if none was met yet.
    """

    def __init__(self, name: tuple[bytes, int], path: str, segments: list[MappedFile]) -> None:
        self.name = name
        self.path = path
        self.number = 0
        self.next = -1
        self._segments = segments
        self._per_file = segments[0].size // BATCH_UNIT_BYTES if segments else 1

    def unit(self, number: int) -> BatchUnit:
        """Returns the unit with number ``number``; zeros if there is no file."""
        file = self._file(number)
        if file is None:
            return _NO_UNIT
        return decode_batch_unit(file.map.view, number % self._per_file * BATCH_UNIT_BYTES)

    def place(self, number: int) -> tuple[str, int]:
        """Returns file and position of a unit; directory and position in the whole queue if there is no file."""
        file = self._file(number)
        if file is None:
            return self.path, number * BATCH_UNIT_BYTES
        return file.path, number % self._per_file * BATCH_UNIT_BYTES

    def leads_to(self, queue_offset: int, place: tuple[int, int]) -> bool:
        """Whether the unit whose first message has ``queue_offset`` points to ``place``."""
        low, high = 0, self._per_file * len(self._segments)
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            if unit.valid and unit.base_offset < queue_offset:
                low = middle + 1
            else:
                high = middle
        unit = self.unit(low)
        return unit.valid and unit.base_offset == queue_offset and (unit.physical_offset, unit.size) == place

    def skip_before(self, physical_offset: int) -> None:
        """Skips the units of records that lie before ``physical_offset``."""
        while (unit := self.unit(self.number)).valid and unit.physical_offset < physical_offset:
            self.number += 1

    def close(self) -> None:
        """Unmaps the files."""
        for file in self._segments:
            file.close()

    def _file(self, number: int) -> MappedFile | None:
        index = number // self._per_file
        return self._segments[index] if index < len(self._segments) else None


class BatchQueueChecks:
    """Checks all batch consume queues of a store.

    Attributes:
        queues: the queues met so far, by topic and queue id; after ``finish`` all queues.
        units: number of units that agree with their record.
        far: for units that point beyond the last segment, the physical offsets at which their records end.

    Args:
        path: the directory ``batchconsumequeue``.
        log: the log that is checked; the caller passes the records of BatchCQ topics to ``rows``, in order.
        identities: reconciles records with entries.
        live: whether the store is in use; some records may then lack their units.
        dispatched: in a live store, the physical offset below which records have their units.
    """

    def __init__(
        self,
        files: Files,
        path: str,
        found: Findings,
        log: LogCheck,
        identities: RecordIdentities,
        live: bool = False,
        dispatched: int = 0,
    ) -> None:
        self.queues: dict[tuple[bytes, int], BatchQueueCheck] = {}
        self.units = 0
        self.far: list[int] = []
        self.topics = frozenset(name.encode("utf-8", "surrogateescape") for name in files.list_directories(path))
        self._files = files
        self._path = path
        self._found = found
        self._log = log
        self._identities = identities
        self._live = live
        self._dispatched = dispatched

    def rows(self, topic: bytes, file: MappedFile, table: array[int], first: int, last: int) -> None:
        """Checks records of the same topic, in the order of the log."""
        view = file.map.view
        for row in range(first * ROW_WIDTH, last * ROW_WIDTH, ROW_WIDTH):
            if table[row + RecordColumn.SYS_FLAG] & PREPARED_BIT:
                continue
            start = table[row + RecordColumn.PROPERTIES_POS]
            request = DispatchRequest(
                table[row + RecordColumn.QUEUE_OFFSET],
                file.start + table[row],
                table[row + RecordColumn.RECORD_SIZE],
                table[row + RecordColumn.TAGS_CODE],
                table[row + RecordColumn.STORE_TIMESTAMP],
                bytes(view[start : start + table[row + RecordColumn.PROPERTIES_LEN]]),
            )
            base, count = batch_of(request)
            if base >= 0 and count > 0:
                unit = BatchUnit(*request[1:5], base, count)
                right = self._check(self._queue(topic, table[row + RecordColumn.QUEUE_ID]), unit)
                if right and request.queue_offset != base:
                    detail = f"the record states queue offset {request.queue_offset}, entry and properties state {base}"
                    self._found.add(FindingKind.QUEUE_OFFSET, file.path, table[row], detail)

    def finish(self) -> None:
        """Checks the units that belong to none of the walked records."""
        for topic in self.topics:
            name = topic.decode("utf-8", "surrogateescape")
            for queue_id in self._files.list_directories(f"{self._path}/{name}"):
                if queue_id.isascii() and queue_id.isdigit():
                    self._queue(topic, int(queue_id))
        for queue in self.queues.values():
            if queue.next < 0:
                queue.skip_before(self._log.start)
            while not self._live and queue.unit(queue.number) != _NO_UNIT:
                self._loose(queue)

    def leads_to(self, topic: bytes, queue_id: int, queue_offset: int, place: tuple[int, int]) -> bool:
        """See ``QueueChecks.leads_to``."""
        return self._queue(topic, queue_id).leads_to(queue_offset, place)

    @property
    def named_end(self) -> int:
        """See ``QueueChecks.named_end``."""
        return max(self.far) if len(self.far) > 1 else 0

    def close(self) -> None:
        """Unmaps all files."""
        for queue in self.queues.values():
            queue.close()

    def _queue(self, topic: bytes, queue_id: int) -> BatchQueueCheck:
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            directory = f"{self._path}/{topic.decode('utf-8', 'surrogateescape')}/{queue_id}"
            queue = BatchQueueCheck((topic, queue_id), directory, load_segments(self._files, directory, self._found))
            self.queues[topic, queue_id] = queue
        return queue

    def _check(self, queue: BatchQueueCheck, wanted: BatchUnit) -> bool:
        """Checks whether one record has its unit."""
        if queue.next < 0:
            queue.skip_before(min(wanted.physical_offset, self._log.start))
        queue.next = wanted.next_offset
        while (unit := queue.unit(queue.number)).valid and unit.physical_offset < wanted.physical_offset:
            self._loose(queue)
        if unit == wanted:
            self.units += 1
            queue.number += 1
            return True
        path, position = queue.place(queue.number)
        if unit.physical_offset == wanted.physical_offset and unit.valid:
            kind = FindingKind.UNIT_TAGS if unit._replace(tags_code=wanted.tags_code) == wanted else FindingKind.UNIT
            self._found.add(kind, path, position, f"the unit has {unit}, its record has {wanted}", BATCH_UNIT_BYTES)
            queue.number += 1
        elif not self._live or wanted.physical_offset < self._dispatched:
            detail = f"there is no unit for the record at physical offset {wanted.physical_offset}"
            kind = FindingKind.RECORD_WITHOUT_UNIT
            self._identities.wait(wanted.physical_offset, kind, (path, position), detail, BATCH_UNIT_BYTES)
        return False

    def _loose(self, queue: BatchQueueCheck) -> None:
        """Skips a unit that has no record."""
        unit, place = queue.unit(queue.number), queue.place(queue.number)
        queue.number += 1
        if self._log.damaged(unit.physical_offset):
            self._found.affected += 1
            return
        if self._identities.is_right(*queue.name, unit.base_offset, (unit.physical_offset, unit.size)):
            self.units += 1
            return
        if unit.valid and unit.physical_offset >= self._log.segments_end:
            self.far.append(unit.physical_offset + unit.size)
        detail = f"the unit of queue offset {unit.base_offset} states physical offset {unit.physical_offset}"
        self._found.add(FindingKind.UNIT_WITHOUT_RECORD, *place, detail, BATCH_UNIT_BYTES)
