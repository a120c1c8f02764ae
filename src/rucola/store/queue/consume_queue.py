"""One consume queue: an array of units of 20 bytes that point into the commit log (``formats.consume_queue``).

Unit ``n`` lies at byte ``20 * n`` counted over all segments. Units are valid from ``min_offset`` up to ``max_offset``.
Both offsets are determined when the queue is opened, without relying on a saved position: a unit is an entry if the
record to which it points states this queue and this queue offset. Holes are not entries, nor are stale units, which
RocketMQ 5.3.3 leaves when it truncates a queue.

The event loop's thread puts and reads entries; the maintenance thread syncs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

from rucola.formats.consume_queue import PRE_FILL_UNIT, UNIT, UNIT_BYTES, PullLimits, select_units
from rucola.runtime.file_map import PAGE_BYTES
from rucola.runtime.files import Files
from rucola.store.log.log_reader import LogReader
from rucola.store.log.mapped_file import MappedFile, readable
from rucola.store.log.segment_list import SegmentList
from rucola.store.queue.placement import NOWHERE, Placement
from rucola.store.results import Boundary

_put = UNIT.struct.pack_into
_pack = UNIT.struct.pack
_unit = UNIT.struct.unpack_from
_physical_offset = Struct(">q").unpack_from
"""Reads the physical offset, with which units of all kinds begin."""
PREFILL_SIZE = UNIT.unpack(PRE_FILL_UNIT)[1]
"""Value of the size field in units before the first entry of a queue that does not begin at offset 0."""
_PREFILL = PRE_FILL_UNIT * 3000
_ZERO_UNIT = bytes(UNIT_BYTES)
_PLACE_BYTES = 12
"""Length in bytes of the first two fields of a unit: physical offset and size."""


class DispatchRequest(NamedTuple):
    """A record to be put into its queue; used by queues that need more of the record's fields than are passed to
    ``ConsumeQueue.put``.
    """

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    store_timestamp_ms: int
    properties: bytes


class ConsumeQueue:
    """The queue ``queue_id`` of ``topic``.

    Args:
        on_map: called with this queue whenever one of its segments has been mapped.

    Attributes:
        min_offset: queue offset of the oldest entry whose record is still in the log.
        max_offset: queue offset after the newest entry.
        found_offset: ``max_offset`` when the queue was opened; units below this offset were already on disk.
        counted: number of this queue's files that ``ConsumeQueueStore`` has included in its counts.
        placement: decides what happens when a record and its unit do not agree.
    """

    __slots__ = (
        "_allocated",
        "_buffer",
        "_file",
        "_log",
        "_on_map",
        "_position",
        "_seen_end",
        "_synced",
        "counted",
        "found_offset",
        "max_offset",
        "min_offset",
        "placement",
        "queue_id",
        "segments",
        "topic",
    )

    unit_bytes = UNIT_BYTES
    """Length of a unit in bytes."""

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
        on_map: Callable[[ConsumeQueue], None] | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.segments = SegmentList(files, path, segment_bytes, writable=writable, scattered=True, on_map=self._mapped)
        self.min_offset = 0
        self.max_offset = 0
        self.found_offset = 0
        self.counted = 0
        self._on_map = on_map
        self.placement = placement
        self._log = log
        self._file: MappedFile | None = None
        self._buffer: Any = None
        self._position = 0
        self._seen_end = 0
        self._allocated = 0
        self._synced = 0

    # -- opening -------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Opens the segments and determines ``min_offset`` and ``max_offset``.

        Raises:
            StoreDamagedError: a file of the queue is not a segment.
        """
        self.segments.load()
        self.counted = len(self.segments.files)
        with readable():
            self.max_offset = self.found_offset = end = self._find_end()
            self._synced = end * UNIT_BYTES
            self.correct_min_offset()

    def _find_end(self) -> int:
        """Returns the unit number that follows the last entry.

        A binary search ends early at a damaged unit, or at a unit whose record is damaged. The queue offsets of that
        unit and of the units after it are in use nevertheless. Therefore units after the end found by the search are
        checked, newest first. Usually only zeros follow that end.
        """
        low, high = self.segments.start // self.unit_bytes, self.segments.end // self.unit_bytes
        while low < high:
            middle = (low + high) // 2
            if self._is_entry(middle):
                low = middle + 1
            else:
                high = middle
        end, newer = low, self._data_end(low)
        self._seen_end = newer
        # If the store is read while it is being written, very many units may point beyond the end of the log.
        while end < newer:
            middle = (end + newer) // 2
            if self._place(middle) < self._log.max_offset:
                end = middle + 1
            else:
                newer = middle
        while end > low and not self._is_entry(end - 1):
            end -= 1
        return end

    def _place(self, number: int) -> int:
        """Returns the physical offset in a unit; -1 if there is no segment."""
        position = number * self.unit_bytes
        file = self.segments.find(position)
        if file is None:
            return -1
        file.ensure(position - file.start, self.unit_bytes)
        return _physical_offset(file.map.buffer, position - file.start)[0]  # type: ignore[no-any-return]

    def _data_end(self, number: int) -> int:
        """Returns the unit number that follows the last unit that is not all zeros; ``number`` if all units from
        ``number`` on are zeros.
        """
        position = number * self.unit_bytes
        for file in reversed(self.segments.files):
            if file.end <= position:
                break
            begin = max(position - file.start, 0)
            end = file.data_end(begin)
            if end > begin:
                return -(-(file.start + end) // self.unit_bytes)
        return number

    def correct_min_offset(self) -> None:
        """Raises ``min_offset`` to the first entry whose record has not expired."""
        low, high, log_min = self.segments.start // UNIT_BYTES, self.max_offset, self._log.min_offset
        while low < high:
            middle = (low + high) // 2
            known = self._next_known(middle, high)
            if known < high and self.unit(known)[0] < log_min:
                low = known + 1
            else:
                high = middle
        self.min_offset = self._next_known(low, self.max_offset)

    def _next_known(self, number: int, end: int) -> int:
        """Returns the number of the first unit, at or after unit ``number``, that points to a record, even an expired
        one; ``end`` if there is none.

        Units that point to nothing lie before the first entry, and wherever messages were lost together with a part of
        the log.
        """
        while number < end:
            physical_offset, size, _ = self.unit(number)
            if physical_offset >= 0 and 0 < size != PREFILL_SIZE:
                return number
            file = self.segments.find(number * UNIT_BYTES)
            if file is None:
                break
            position = number * UNIT_BYTES - file.start
            stop = min(position + len(_PREFILL), end * UNIT_BYTES - file.start, file.size)
            file.ensure(position, stop - position)
            units = bytes(file.map.view[position:stop])
            # There may be very many units that point to nothing, so they are skipped in blocks.
            number += len(units) // UNIT_BYTES if units == _PREFILL[: len(units)] else 1
        return end

    def rewind(self, physical_offset: int) -> None:
        """Begins recovery, in which the records from ``physical_offset`` on are put again."""

    def detach_expired(self) -> list[MappedFile]:
        """Removes and returns the oldest segments in ``files``: each one whose last entry points to an expired record,
        but never the last segment.

        The files stay on disk. The caller must have corrected ``min_offset``.
        """
        segments, count = self.segments.files, 0
        while count < len(segments) - 1:
            file = segments[count]
            file.ensure(file.size - self.unit_bytes, self.unit_bytes)
            if _physical_offset(file.map.buffer, file.size - self.unit_bytes)[0] >= self._log.min_offset:
                break
            count += 1
        self.segments.files = segments[count:]
        return segments[:count]

    def cut(self, physical_end: int) -> bool:
        """Overwrites everything after ``max_offset`` with zeros and removes later segments; returns whether any byte
        was nonzero.

        RocketMQ leaves those bytes, and treats them as entries again when the log has grown past their physical
        offsets.

        Args:
            physical_end: end of the log; entries that point to this offset or beyond are dropped first.
        """
        while self.max_offset > self.min_offset and self.unit(self.max_offset - 1)[0] >= physical_end:
            self.max_offset -= 1
        self._file = None
        self._position = self._allocated = 0
        end = self.max_offset * UNIT_BYTES
        # An empty queue keeps no file: RocketMQ would treat the zeros in a new file as an entry.
        changed = bool(self.segments.remove_after(end - 1 if end == 0 else end))
        file = self.segments.find(end)
        if file is not None and file.zero(end - file.start):
            file.sync()
            changed = True
        return changed

    def _is_entry(self, queue_offset: int) -> bool:
        """Whether the unit is an entry of this queue, an entry whose record has expired, or a unit before the first
        entry.
        """
        physical_offset, size, _ = self.unit(queue_offset)
        if size <= 0 or physical_offset < 0:
            return False
        if size == PREFILL_SIZE and physical_offset == 0:
            return True
        if physical_offset < self._log.min_offset:
            return True
        if self._log.holds(physical_offset, size, self.topic, self.queue_id, queue_offset):
            return True
        return self.placement.stands(self, queue_offset, physical_offset, size)

    def leads_to(self, physical_offset: int, size: int) -> bool:
        """Whether the entry for a record is right although the record states a different topic, queue or offset."""
        number = self.number_from(physical_offset)
        if number >= self.max_offset or self.unit(number)[:2] != (physical_offset, size):
            return False
        return self.placement.stands(self, number, physical_offset, size)

    @property
    def begins_at(self) -> int:
        """Queue offset of the first unit in the files, whether it is an entry or not."""
        return self.segments.start // self.unit_bytes

    def place_at(self, queue_offset: int) -> tuple[int, int]:
        """Returns the physical offset and the size in the unit at ``queue_offset``, which may lie after the last entry.
        Returns zeros if no segment holds the unit.
        """
        return self.unit(queue_offset)[:2]

    def number_from(self, physical_offset: int) -> int:
        """Returns the number of the first unit that points to ``physical_offset`` or beyond. The search also covers
        what the files hold after the last entry.
        """
        low = self.segments.start // UNIT_BYTES
        high = max(self.max_offset, self._seen_end)
        while low < high:
            middle = (low + high) // 2
            known = self._next_known(middle, high)
            if known < high and self.unit(known)[0] < physical_offset:
                low = known + 1
            else:
                high = middle
        return self._next_known(low, max(self.max_offset, self._seen_end))

    # -- writing -------------------------------------------------------------------------------------------------------

    def put(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Writes the unit of a record that states ``queue_offset``.

        If this is not the queue's next offset, ``placement`` decides whether and where the unit is written. An existing
        unit is overwritten. A gap is filled with units that point to nothing; RocketMQ would put the unit at a wrong
        place.

        Raises:
            DiskFullError: no space; the entry was not written, but part of a gap before it may be filled.
        """
        if queue_offset != self.max_offset:
            self._put_aside(queue_offset, physical_offset, size, tags_code)
            return
        position = self._position
        if position >= self._allocated:
            position = self._extend()
        _put(self._buffer, position, physical_offset, size, tags_code)
        self._position = position + UNIT_BYTES
        self.max_offset = queue_offset + 1

    def put_units(self, units: bytearray, count: int, first: int = 0) -> None:
        """Writes the units of the next ``count`` entries, which are the units from number ``first`` on of ``units``.

        Raises:
            DiskFullError: there is space for only some of the units; these units are written.
        """
        done = 0
        while done < count:
            position = self._position
            if position >= self._allocated:
                position = self._extend()
            take = min(count - done, (self._allocated - position) // UNIT_BYTES)
            end = position + take * UNIT_BYTES
            begin = (first + done) * UNIT_BYTES
            self._buffer[position:end] = units[begin : begin + take * UNIT_BYTES]
            self._position = end
            self.max_offset += take
            done += take

    def put_units_again(self, queue_offset: int, units: bytearray, count: int, first: int = 0) -> bool:
        """Writes the units of ``count`` entries, beginning at ``queue_offset``, which must be at most ``max_offset``.
        They are the units from number ``first`` on of ``units``.

        Existing units are overwritten. Returns False if one of them is the entry of a different record; the records
        must then be put one by one.

        Raises:
            DiskFullError: there is space for only some of the units; these units are written.
        """
        done, there = 0, min(count, self.max_offset - queue_offset)
        while done < there:
            position = (queue_offset + done) * UNIT_BYTES
            room = self.segments.segment_bytes - position % self.segments.segment_bytes
            take = min(there - done, room // UNIT_BYTES)
            begin = (first + done) * UNIT_BYTES
            again = units[begin : begin + take * UNIT_BYTES]
            if not self._may_replace(position, again):
                return False
            self._write_again(position, again)
            done += take
        self.put_units(units, count - there, first + there)
        return True

    def _may_replace(self, start: int, units: bytearray) -> bool:
        """True if the units from byte ``start`` on may be overwritten, because none of them is the entry of a different
        record. All these units must lie in the same segment.
        """
        file = self.segments.find(start)
        if file is None:
            return True
        at = start - file.start
        known = bytes(file.map.view[at : at + len(units)])
        if known == units:
            return True
        return not any(
            known[place : place + _PLACE_BYTES] != units[place : place + _PLACE_BYTES]
            and known[place : place + UNIT_BYTES] not in (PRE_FILL_UNIT, _ZERO_UNIT)
            and self._is_entry((start + place) // UNIT_BYTES)
            for place in range(0, len(units), UNIT_BYTES)
        )

    def mend(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> bool:
        """Writes the entry of a record during recovery; returns whether the entry was written.

        The new entry must follow the last entry of the queue, or replace a wrong entry (``_has_record``). The record
        must have no other entry, and must lie between the records of the neighbouring entries. Otherwise nothing is
        written. The queue must be opened again afterwards.

        Args:
            queue_offset: the queue offset that the record states; topic and queue id of the record are those of this
                queue.
            physical_offset, size, tags_code: values of the record, which has passed all checks.
        """
        place = physical_offset, size
        if not self.begins_at <= queue_offset <= self.max_offset or self._has_record(queue_offset):
            return False
        if self.place_at(self.number_from(physical_offset)) == place:
            return False
        before, after = queue_offset - 1, queue_offset + 1
        if before >= self.begins_at and self._has_record(before) and self.unit(before)[0] >= physical_offset:
            return False
        if after < self.max_offset and self._has_record(after) and self.unit(after)[0] <= physical_offset:
            return False
        if self.placement.find_claim(self.topic, self.queue_id, queue_offset, place):
            return False
        if queue_offset == self.max_offset:
            self.put(queue_offset, physical_offset, size, tags_code)
        else:
            self._write_again(queue_offset * UNIT_BYTES, _pack(physical_offset, size, tags_code))
        return True

    def _has_record(self, queue_offset: int) -> bool:
        """True if the record of an entry matches the entry, contradicts it only by a damaged field
        (``Placement.stands``), or was lost in a gap of the log.
        """
        physical_offset, size, _ = self.unit(queue_offset)
        return size > 0 and (
            self._log.holds(physical_offset, size, self.topic, self.queue_id, queue_offset)
            or self.placement.stands(self, queue_offset, physical_offset, size)
        )

    def put_record(self, request: DispatchRequest) -> None:
        """Writes the unit of a record; see ``put``."""
        self.put(request.queue_offset, request.physical_offset, request.size, request.tags_code)

    def _put_aside(self, queue_offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        queue_offset = self.placement.entry_of(self, queue_offset, physical_offset, size)
        if queue_offset == NOWHERE:
            return
        if queue_offset < self.max_offset:
            self._write_again(queue_offset * UNIT_BYTES, _pack(physical_offset, size, tags_code))
            self.min_offset = min(self.min_offset, queue_offset)
            return
        if self.max_offset == self.min_offset and queue_offset != self.max_offset:
            self.begin_at(queue_offset)
        while self.max_offset < queue_offset:
            self._pass(physical_offset)
        self.put(queue_offset, physical_offset, size, tags_code)

    def _pass(self, physical_end: int) -> None:
        """Skips one queue offset, whose record is lost or states a different queue offset. Keeps the unit there if
        it points to a record before ``physical_end``; otherwise writes a unit that points to nothing.
        """
        queue_offset = self.max_offset
        physical_offset, size, tags_code = self.unit(queue_offset)
        if not 0 < size < PREFILL_SIZE or not 0 < physical_offset < physical_end:
            physical_offset, size, tags_code = 0, PREFILL_SIZE, 0
        self.put(queue_offset, physical_offset, size, tags_code)

    def _write_again(self, start: int, units: bytes | bytearray) -> None:
        """Overwrites existing units, beginning at byte ``start`` of the queue, unless their segment has expired. All
        units must lie in the same segment.

        Unchanged units are written, too. An earlier process may have been killed before it synced them, and after a
        failed sync the system may treat unsynced pages as written.
        """
        file = self.segments.find(start)
        if file is not None:
            file.map.rewrite(start - file.start, units)
            self._synced = min(self._synced, start)

    def begin_at(self, queue_offset: int) -> None:
        """Makes an empty queue begin at ``queue_offset``. Earlier units in the same segment point to nothing.

        RocketMQ 5.3.3, ``ConsumeQueue#putMessagePositionInfo``.
        """
        start = queue_offset * UNIT_BYTES
        segment_start = start - start % self.segments.segment_bytes
        if self.segments.find(segment_start) is None:
            self.segments.remove_after(-1)
            self.segments.append(segment_start)
        self._file = None
        self._position = self._allocated = 0
        self.max_offset = segment_start // UNIT_BYTES
        while self.max_offset < queue_offset:
            self.put(self.max_offset, 0, PREFILL_SIZE, 0)
        self.min_offset = queue_offset

    def _extend(self) -> int:
        """Makes room for one unit after ``max_offset``; returns its position in the segment."""
        end = self.max_offset * UNIT_BYTES
        file = self.segments.find(end)
        if file is None:
            file = self.segments.append(end - end % self.segments.segment_bytes)
        position = end - file.start
        if self._file is not file:
            file.allocated = max(file.allocated, position)
        file.allocate_to(position + UNIT_BYTES)
        self._file = file
        self._buffer = file.map.buffer
        self._allocated = file.allocated - file.allocated % UNIT_BYTES
        return position

    def sync(self) -> None:
        """Syncs the segments written since the last call. Only one thread at a time may call it."""
        self._sync_to(self.max_offset * UNIT_BYTES)

    def _sync_to(self, end: int) -> None:
        # ``_synced`` is set before the sync, because a put during the sync may lower ``_synced``; the next sync then
        # covers that put.
        first, self._synced = self._synced, end
        for file in list(self.segments.files):
            if file.end > first and file.start < end:
                file.sync()

    @property
    def unsynced(self) -> bool:
        """Whether units were put since the last ``sync`` began. Must not be read during a ``sync``."""
        return self._synced < self.max_offset * UNIT_BYTES

    def park(self, keep_unsynced: bool) -> int:
        """Unmaps the segments; each is mapped again when it is next used. Must not be called during a ``sync``.

        Args:
            keep_unsynced: whether a sync will follow; if True, descriptors of unsynced segments are kept for this sync.

        Returns:
            The number of descriptors kept for the next ``sync``.
        """
        self._file = None
        self._buffer = None
        self._position = self._allocated = 0
        unsynced = keep_unsynced and self.unsynced
        return sum(file.park(unsynced) for file in self.segments.files)

    def _mapped(self) -> None:
        if self._on_map is not None:
            self._on_map(self)

    def close(self) -> None:
        """Unmaps the segments."""
        self._file = None
        self._buffer = None
        self._position = self._allocated = 0
        self.segments.close()

    # -- reading -------------------------------------------------------------------------------------------------------

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """Returns physical offset, size and tags code of a unit; (0, 0, 0) if there is no segment."""
        position = queue_offset * UNIT_BYTES
        file = self.segments.find(position)
        if file is None:
            return 0, 0, 0
        file.ensure(position - file.start, UNIT_BYTES)
        return _unit(file.map.buffer, position - file.start)

    def read_units(self, queue_offset: int, count: int) -> bytes:
        """The bytes of ``count`` units; fewer at the end of a segment, none without a segment."""
        position = queue_offset * UNIT_BYTES
        file = self.segments.find(position)
        if file is None:
            return b""
        at, size = position - file.start, min(count * UNIT_BYTES, file.end - position)
        file.ensure(at, size)
        return bytes(file.map.view[at : at + size])

    def entry(self, queue_offset: int) -> tuple[int, int, int]:
        """Like ``unit``, but returns the hash of the tags even if the queue stores this hash in its extension."""
        return self.unit(queue_offset)

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
        """Chooses the units of one pull from the segment that holds ``queue_offset``; see ``select_units``.

        Returns:
            The number of chosen units, the distance from ``queue_offset`` to the next pull's offset, and the number of
            units without a record; None if there is no such segment.
        """
        position = queue_offset * UNIT_BYTES
        file = self.segments.find(position)
        if file is None:
            return None
        start = file.start
        limit = min(self.max_offset * UNIT_BYTES, file.end) - start
        if queue_offset < self.found_offset:
            file.ensure(position - start, min(limit - (position - start), scan_bytes_max))
        return select_units(
            file.map.buffer,
            position - start,
            limit,
            chosen,
            max_messages,
            max_bytes,
            scan_bytes_max,
            tag_codes,
            limits,
        )

    def offset_after(self, path: str, position: int) -> int:
        """Returns the queue offset of the first unit behind the page of the file at ``path`` that has byte
        ``position``; 0 if it is no file of the queue.
        """
        for file in self.segments.files:
            if file.path == path:
                return (file.start + position - position % PAGE_BYTES + PAGE_BYTES) // self.unit_bytes + 1
        return 0

    def messages_in(self, chosen: array[int], count: int) -> int:
        """Returns the number of messages in the ``count`` chosen records."""
        return count

    def offset_by_time(
        self, timestamp_ms: int, boundary: Boundary, store_time: Callable[[int], int] | None = None
    ) -> int:
        """Returns the queue offset of the entry at a store time.

        LOWER: the first entry stored at or after the time; ``max_offset`` if all are older. UPPER: the last entry
        stored at or before the time; ``min_offset`` if all are younger. Store times never decrease along a queue.
        Entries without a record have no store time.

        Args:
            store_time: returns the store time of the record at a physical offset; None uses the log's own method.
        """
        store_time = store_time or self._log.store_timestamp
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            known = self._next_known(middle, high)
            while known < high and self._log.in_gap(self.unit(known)[0]):
                known = self._next_known(known + 1, high)
            at = store_time(self.unit(known)[0]) if known < high else timestamp_ms + 1
            before = at < timestamp_ms if boundary is Boundary.LOWER else at <= timestamp_ms
            if before:
                low = known + 1
            else:
                high = middle
        if boundary is Boundary.UPPER:
            return max(low - 1, self.min_offset)
        return low
