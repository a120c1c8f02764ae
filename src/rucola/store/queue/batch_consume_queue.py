"""The queue of a topic of type BatchCQ: one unit per record; a record may hold several messages
(``formats.batch_consume_queue``).

Units are addressed by number, counted over all segments from the start of the first one. A search finds the unit for a
queue offset. After a crash, the records from some physical offset on are put again. The existing unit of such a record
is not valid until the record has been put. The unit is kept if it equals the unit computed from the record, or if it
fits its neighbours better than the computed unit; otherwise, it and all later units are replaced. The rules for threads
are those of ``ConsumeQueue``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from rucola.common.message_const import INNER_BASE, INNER_NUM
from rucola.common.numbers import INT64_MAX, number_in
from rucola.formats.batch_consume_queue import (
    BATCH_SIZE_MAX,
    BATCH_UNIT_BYTES,
    BatchUnit,
    decode_batch_unit,
    encode_batch_unit,
)
from rucola.formats.consume_queue import PullLimits
from rucola.formats.properties import decode_properties
from rucola.runtime.files import Files
from rucola.store.log.log_reader import LogReader
from rucola.store.log.mapped_file import MappedFile, readable
from rucola.store.queue.consume_queue import ConsumeQueue, DispatchRequest
from rucola.store.queue.placement import Placement
from rucola.store.results import Boundary

_NO_UNIT = BatchUnit(0, 0, 0, 0, 0, 0)
_LOW_32 = 0xFFFFFFFF


class BatchConsumeQueue(ConsumeQueue):
    """The queue ``queue_id`` of ``topic``. ``max_offset`` and ``min_offset`` are as in ``ConsumeQueue``."""

    __slots__ = ("_checked", "_end", "_last_physical_offset")

    unit_bytes = BATCH_UNIT_BYTES

    def __init__(
        self,
        files: Files,
        path: str,
        segment_bytes: int,
        topic: bytes,
        queue_id: int,
        log: LogReader,
        placement: Placement,
        writable: bool = True,
    ) -> None:
        super().__init__(files, path, segment_bytes, topic, queue_id, log, placement, writable)
        self._end = 0
        self._checked = 0
        self._last_physical_offset = -1

    # -- opening -------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Opens the segments and determines ``min_offset`` and ``max_offset``.

        Raises:
            StoreDamagedError: a file of the queue is not a segment.
        """
        self.segments.load()
        self.counted = len(self.segments.files)
        with readable():
            end = self._find_end()
            self._synced = end * BATCH_UNIT_BYTES
            self._end_at(end)
            self.correct_min_offset()
        self.found_offset = self.max_offset

    def correct_min_offset(self) -> None:
        """Raises ``min_offset`` to the first message whose record has not expired."""
        first = self._next_valid(self._first_from(self._log.min_offset))
        self.min_offset = self.unit_at(first).base_offset if first < self._end else self.max_offset

    def rewind(self, physical_offset: int) -> None:
        """Begins recovery: units of records from ``physical_offset`` on are not valid until these records have been
        put again.
        """
        self._checked = self._first_from(physical_offset)
        self._last_physical_offset = (
            self.unit_at(self._checked - 1).physical_offset if self._checked > self._first else -1
        )

    def cut(self, physical_end: int) -> bool:
        """See ``ConsumeQueue.cut``."""
        end = self._checked
        while end > self._first and self.unit_at(end - 1).physical_offset >= physical_end:
            end -= 1
        self._end_at(end)
        position = end * BATCH_UNIT_BYTES
        changed = bool(self.segments.remove_after(position - 1 if position == 0 else position))
        file = self.segments.find(position)
        if file is not None and file.zero(position - file.start):
            file.sync()
            changed = True
        return changed

    def _is_entry(self, number: int) -> bool:
        """Like ``ConsumeQueue._is_entry``, for the unit with number ``number``."""
        unit = self.unit_at(number)
        if not unit.valid:
            return False
        if unit.physical_offset < self._log.min_offset:
            return True
        return self._is_of(unit)

    def _is_of(self, unit: BatchUnit) -> bool:
        """Whether the record of a unit belongs to this queue."""
        place = unit.physical_offset, unit.size
        return self._log.holds(*place, self.topic, self.queue_id, unit.base_offset) or self.placement.stands(
            self, unit.base_offset, *place
        )

    def leads_to(self, physical_offset: int, size: int) -> bool:
        """See ``ConsumeQueue.leads_to``."""
        unit = self.unit_at(self._first_from(physical_offset))
        if (unit.physical_offset, unit.size) != (physical_offset, size):
            return False
        return self.placement.stands(self, unit.base_offset, physical_offset, size)

    @property
    def begins_at(self) -> int:
        """Queue offset of the first entry. Damaged units before this entry have no known queue offset, because each of
        them may stand for any number of messages.
        """
        return self.min_offset

    def place_at(self, queue_offset: int) -> tuple[int, int]:
        """Like ``ConsumeQueue.place_at``, for the record whose first message has ``queue_offset``."""
        unit = self.unit_at(self.number_of(queue_offset))
        return (unit.physical_offset, unit.size) if unit.base_offset == queue_offset else (0, 0)

    def _end_at(self, number: int) -> None:
        """Sets the end of the queue: the units before number ``number`` are valid."""
        self._end = self._checked = number
        last = self.unit_at(number - 1) if number > self._first else _NO_UNIT
        self.max_offset = last.next_offset
        self._last_physical_offset = last.physical_offset if last.valid else -1

    # -- writing -------------------------------------------------------------------------------------------------------

    def put_record(self, request: DispatchRequest) -> None:
        """Writes the unit of a record, unless the record was put before.

        Raises:
            DiskFullError: no space; the unit was not written.
        """
        physical_offset = request.physical_offset
        if physical_offset <= self._last_physical_offset:
            return
        queue_offset, batch_size = batch_of(request)
        if queue_offset < 0 or batch_size <= 0:
            return  # RocketMQ does not put such a record, either
        unit = BatchUnit(
            physical_offset, request.size, request.tags_code, request.store_timestamp_ms, queue_offset, batch_size
        )
        number = self._checked
        while number < self._end and 0 < (known := self.unit_at(number)).physical_offset < physical_offset:
            if not (known.valid and self._is_of(known)):
                break
            # Dispatch has passed this unit's record without putting it into this queue: the record names a different
            # queue, or was skipped.
            number = self._checked = number + 1
        if number < self._end:
            known = self.unit_at(number)
            if known != unit:
                if known.valid and known.physical_offset > physical_offset and self._is_of(known):
                    return  # ``known`` is right, so the record being put belongs to a different queue
                if self._follows_better(number, known, unit):
                    unit = known
                else:
                    self._end = number
        if number >= self._end:
            if number > self._first:
                self.max_offset = self.unit_at(number - 1).next_offset
            said = (queue_offset, request.queue_offset)
            queue_offset = self.placement.base_of(self, said, batch_size, physical_offset)
            unit = unit._replace(base_offset=queue_offset)
        position = number * BATCH_UNIT_BYTES
        if number < self._end:
            # An unchanged unit is written, too: a killed process may not have synced it.
            file = self.segments.find(position)
            assert file is not None
            file.map.rewrite(position - file.start, encode_batch_unit(unit))
        else:
            file = self._file_with_room(position)
            at = position - file.start
            file.map.view[at : at + BATCH_UNIT_BYTES] = encode_batch_unit(unit)
            self._end = number + 1
            if self.min_offset == self.max_offset:
                self.min_offset = queue_offset
        self._synced = min(self._synced, position)
        self._checked = number + 1
        self._last_physical_offset = physical_offset
        self.max_offset = unit.next_offset

    def _follows_better(self, number: int, known: BatchUnit, unit: BatchUnit) -> bool:
        """Whether the existing unit fits its neighbours better than the unit computed from the record."""
        if not known.valid or (known.physical_offset, known.size) != (unit.physical_offset, unit.size):
            return False
        if (known.base_offset, known.batch_size) == (unit.base_offset, unit.batch_size):
            return False
        before = self.unit_at(number - 1) if number > self._first else _NO_UNIT
        behind = self.unit_at(number + 1) if number + 1 < self._end else _NO_UNIT

        def agreements(one: BatchUnit) -> int:
            return (before.valid and before.next_offset == one.base_offset) + (
                behind.valid and one.next_offset == behind.base_offset
            )

        return agreements(known) > agreements(unit)

    def sync(self) -> None:
        """Syncs the segments written since the last call. Only one thread at a time may call it."""
        self._sync_to(self._end * BATCH_UNIT_BYTES)

    def _file_with_room(self, position: int) -> MappedFile:
        file = self.segments.find(position)
        if file is None:
            file = self.segments.append(position)
        at = position - file.start
        file.allocated = max(file.allocated, at)
        file.allocate_to(at + BATCH_UNIT_BYTES)
        return file

    # -- reading -------------------------------------------------------------------------------------------------------

    def unit_at(self, number: int) -> BatchUnit:
        """Returns the unit with number ``number``; zeros if there is no segment."""
        position = number * BATCH_UNIT_BYTES
        file = self.segments.find(position)
        if file is None:
            return _NO_UNIT
        file.ensure(position - file.start, BATCH_UNIT_BYTES)
        return decode_batch_unit(file.map.view, position - file.start)

    def number_of(self, queue_offset: int) -> int:
        """Returns the number of the last unit whose batch begins at or before ``queue_offset``; the number of the first
        unit if all batches begin after ``queue_offset``.
        """
        low, high = self._first, self._end
        while low < high:
            middle = (low + high) // 2
            if self.unit_at(middle).base_offset <= queue_offset:
                low = middle + 1
            else:
                high = middle
        return max(low - 1, self._first)

    def units(self, first: int, last: int) -> list[BatchUnit]:
        """Returns the units of the records that hold messages with queue offsets from ``first`` up to ``last``
        (excluded).
        """
        found = []
        for number in range(self.number_of(first), self._end):
            unit = self.unit_at(number)
            if unit.base_offset >= last:
                break
            if unit.next_offset > first:
                found.append(unit)
        return found

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Returns physical offset, size and tags code from the unit that ``number_of`` finds; zeros if the queue has no
        units.
        """
        unit = self.unit_at(self.number_of(queue_offset)) if self._end > self._first else _NO_UNIT
        return unit.physical_offset, unit.size, unit.tags_code

    def select(
        self,
        queue_offset: int,
        chosen: array[int],
        tag_codes: array[int],
        max_messages: int,
        max_bytes: int,
        scan_bytes_max: int,
        limits: PullLimits,
    ) -> tuple[int, int, int] | None:
        """Chooses the records of one pull from one segment, by the rules of ``select_units``.

        A record counts as the number of messages that it holds. A record larger than the limits is chosen only if it is
        the first.
        """
        number = self.number_of(queue_offset)
        if self.unit_at(number).next_offset <= queue_offset:
            number += 1  # ``queue_offset`` lies after the last message of this unit
        file = self.segments.find(number * BATCH_UNIT_BYTES)
        if file is None:
            return None
        codes = {code & _LOW_32 for code in tag_codes}
        count = messages = collected = missing = 0
        next_offset = queue_offset
        for at in range(number, min(self._end, file.end // BATCH_UNIT_BYTES)):
            unit = self.unit_at(at)
            if at > number and (unit.base_offset - queue_offset) * BATCH_UNIT_BYTES >= scan_bytes_max:
                break
            if count:
                in_memory = unit.physical_offset >= limits.memory_from
                bytes_max = min(max_bytes, limits.memory_bytes_max if in_memory else limits.disk_bytes_max)
                count_max = limits.memory_count_max if in_memory else limits.disk_count_max
                full = messages + unit.batch_size > max_messages or messages >= count_max
                if full or collected + unit.size > bytes_max or 2 * count >= len(chosen):
                    break
            next_offset = unit.next_offset
            if codes and unit.tags_code & _LOW_32 not in codes:
                continue
            if not limits.physical_min <= unit.physical_offset <= limits.physical_max - unit.size:
                missing += 1
                continue
            chosen[2 * count], chosen[2 * count + 1] = unit.physical_offset, unit.size
            count, messages, collected = count + 1, messages + unit.batch_size, collected + unit.size
        return count, next_offset - queue_offset, missing

    def messages_in(self, chosen: array[int], count: int) -> int:
        """See ``ConsumeQueue.messages_in``."""
        return sum(self.unit_at(self._first_from(chosen[2 * at])).batch_size for at in range(count))

    def offset_by_time(
        self, timestamp_ms: int, boundary: Boundary, store_time: Callable[[int], int] | None = None
    ) -> int:
        """Returns the queue offset of the first message of a record, found by the store times in the units.

        For the time of the newest record and for later times, both boundaries lead to that record.
        LOWER: the first record stored at or after the time.
        UPPER: the last record stored exactly at the time. For a time between two records, UPPER usually leads to
        ``min_offset``, as in RocketMQ 5.3.3 (``BatchConsumeQueue#getOffsetInQueueByTime``). The argument ``store_time``
        is not used.
        """
        if self._end == self._first:
            return 0
        number = self._search_time(timestamp_ms, boundary)
        found = self.unit_at(number).base_offset if number >= 0 else -1
        return min(max(found, self.min_offset), self.max_offset)

    def _search_time(self, timestamp_ms: int, boundary: Boundary) -> int:
        """Returns the number of the unit that RocketMQ's search by time would find; -1 if it would find none."""
        left, right = self._segment_at_time(timestamp_ms)
        if timestamp_ms >= self.unit_at(right).store_timestamp_ms:
            return right
        while left <= right:
            middle = (left + right) // 2
            at = self.unit_at(middle).store_timestamp_ms
            if middle in (left, right):
                if at >= timestamp_ms:
                    return middle
                if middle == right:
                    return -1
                left = middle + 1
            elif boundary is Boundary.LOWER:
                left, right = (middle + 1, right) if at < timestamp_ms else (left, middle)
            else:
                left, right = (middle, right) if at <= timestamp_ms else (left, middle - 1)
        return -1

    def _segment_at_time(self, timestamp_ms: int) -> tuple[int, int]:
        """Returns the numbers of the first and the last unit of one segment. This is the newest segment whose first
        record was stored at or before the time; if there is none, it is the first segment.
        """
        starts = [file.start // BATCH_UNIT_BYTES for file in self.segments.files]
        starts = [start for start in starts if start < self._end]
        chosen = starts[0]
        for start in reversed(starts):
            if self.unit_at(start).store_timestamp_ms <= timestamp_ms:
                chosen = start
                break
        return chosen, min(self._end, chosen + self.segments.segment_bytes // BATCH_UNIT_BYTES) - 1

    @property
    def _first(self) -> int:
        """Number of the first unit."""
        return self.segments.start // BATCH_UNIT_BYTES

    def _first_from(self, physical_offset: int) -> int:
        """Returns the number of the first unit whose record starts at or after ``physical_offset``; the end of the
        queue if there is none.
        """
        low, high = self._first, self._end
        while low < high:
            middle = (low + high) // 2
            known = self._next_valid(middle)
            if known < high and self.unit_at(known).physical_offset < physical_offset:
                low = known + 1
            else:
                high = middle
        return low

    def _next_valid(self, number: int) -> int:
        """Returns the number of the first undamaged unit from ``number`` on; the end of the queue if there is none."""
        while number < self._end and not self.unit_at(number).valid:
            number += 1
        return number


def batch_of(request: DispatchRequest) -> tuple[int, int]:
    """Returns the queue offset of the first message of a record, and the number of its messages.

    RocketMQ 5.3.3, ``CommitLog#checkMessageAndReturnSize``: the values come from the properties ``INNER_BASE`` and
    ``INNER_NUM``. If one of these is missing, the record is a single message with its own queue offset. If one is not a
    number or out of range, both values are -1.
    """
    if INNER_BASE.encode() not in request.properties:
        return request.queue_offset, 1
    properties = decode_properties(request.properties)
    base, count = properties.get(INNER_BASE, ""), properties.get(INNER_NUM, "")
    if not base or not count:
        return request.queue_offset, 1
    first, number = number_in(base, 0, INT64_MAX), number_in(count, 0, BATCH_SIZE_MAX)
    return (-1, -1) if first is None or number is None else (first, number)
