"""The lite topics of a store: their queues, counters and deletion.

What counts of a lite topic is one row of numbers (``LiteColumns``). Its *start* is the first queue offset that is not
deleted; units below it belong to nobody. Its next queue offset outlives messages, deletion and the expiry of the log,
so no offset is given twice.

Messages of a log that RocketMQ wrote may begin a topic again at a lower offset. Then the later messages count: the
start goes down to theirs. A unit whose record is not newer than the topic's last one is a repetition.

The event loop's thread calls everything but ``sync``, ``keep`` and ``finish``, which belong to the maintenance thread.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rucola.common.numbers import INT64_MAX
from rucola.formats.checksum import crc32
from rucola.formats.light_queue import lite_name, lite_topic
from rucola.formats.lite import BEGINS, PHYSICAL_OFFSET_MAX, QUEUE_OFFSET_MAX, LiteUnit, encode_unit, find_rows
from rucola.runtime.files import Files
from rucola.store.lite.lite_names import LiteNames
from rucola.store.lite.lite_queue import LiteQueue
from rucola.store.lite.lite_table import LiteColumns, LiteSyncedFile, TableHead, encode_parts, write_table
from rucola.store.lite.lite_units import LiteUnits
from rucola.store.log.log_reader import LogReader
from rucola.store.log.mapped_file import MappedFile

DIRECTORY = "rucola-lite"
_UNITS_BETWEEN_TABLES_MIN = 4096
_FOUND_MAX = 1024


class LiteSlice(NamedTuple):
    """A part of the names.

    Attributes:
        names: names ``<parent>$<lite>``.
        following: where the next part begins; None after the last one.
    """

    names: list[bytes]
    following: int | None


class _Mark(NamedTuple):
    """A mark at ``cell`` that takes effect when it is synced: all offsets of a name below ``start`` go; with
    ``_FORGET``, the name itself goes.
    """

    cell: int
    name_id: int
    start: int


_FORGET = -1


class LiteTopics:
    """The lite topics of one store.

    Attributes:
        path: their directory.
        names, columns, units: what the files hold.
        live: for each parent, by number, how many lite topics have messages above their start. Messages that expired
            with the log count until the topic is deleted.
        newest_physical: physical offset of the newest unit.
        gone_to: cell; the log has no record of the units before it, not even after a power cut.
        repeated_to: see ``LITE_TABLE``.
        dead: ids that no name has any more, each with a cell; once the table is as of this cell or a later one, the id
            may be given again.
        is_complete: whether the directory holds all messages of the log; False during a rebuild.

    Args:
        root: the store's directory.
        segment_units: number of units in a segment of a new store; a store keeps the length that its segments have.
        log: the log to which the units point.
        writable: False opens for reading: no file is created or changed.
    """

    def __init__(self, files: Files, root: str, segment_units: int, log: LogReader, writable: bool = True) -> None:
        self.path = f"{root}/{DIRECTORY}"
        self._files = files
        self._log = log
        self._segment_units = segment_units
        self._writable = writable
        self.synced_file = LiteSyncedFile(files, f"{self.path}/synced")
        self.clear()

    def clear(self) -> None:
        """Forgets everything in memory."""
        self.names = LiteNames(self._files, f"{self.path}/names", hash(self.path))
        self.columns = LiteColumns()
        self.units = LiteUnits(self._files, f"{self.path}/units", self._segment_units, self._writable)
        self.live = array("q")
        self.newest_physical = self.repeated_to = 0
        self.is_complete = False
        self.table_from = self.gone_to = 0
        self._table_due = False
        self._dropped_to = 0
        self._ahead: dict[bytes, int] = {}
        self._arrived: dict[int, int | None] = {}
        self._marks: deque[_Mark] = deque()
        self.dead: deque[tuple[int, int]] = deque()

    @property
    def table_path(self) -> str:
        """Path of the table."""
        return f"{self.path}/table"

    # -- counters ------------------------------------------------------------------------------------------------------

    def next_offset(self, topic: bytes) -> int:
        """Returns the offset that the next message in the light queue ``topic`` gets."""
        name = lite_name(topic)
        ahead = self._ahead.get(name)
        if ahead is not None:
            return ahead
        name_id = self.names.find(name)
        return 0 if name_id < 0 else self.columns.nexts[name_id]

    def appended(self, topic: bytes) -> None:
        """Notes that a message with ``next_offset`` was appended; its unit follows later."""
        self._ahead[lite_name(topic)] = self.next_offset(topic) + 1

    def next_offsets(self, names: list[bytes]) -> array[int]:
        """Returns the offsets that messages of the lite topics ``<parent>$<lite>`` get, one after the other."""
        find, ahead, nexts = self.names.find, self._ahead, self.columns.nexts
        given: dict[bytes, int] = {}
        offsets = array("q")
        for name in names:
            offset = given.get(name)
            if offset is None:
                offset = ahead.get(name)
                if offset is None:
                    name_id = find(name)
                    offset = 0 if name_id < 0 else nexts[name_id]
            offsets.append(offset)
            given[name] = offset + 1
        return offsets

    def appended_at(self, names: Sequence[bytes], queue_offsets: Sequence[int], places: Sequence[int]) -> None:
        """Does what ``appended`` does for messages of the lite topics ``<parent>$<lite>``, whose offsets are those of
        ``next_offsets``.

        Args:
            places: their physical offsets; -1 for a message that was not stored.
        """
        ahead = self._ahead
        for name, queue_offset, place in zip(names, queue_offsets, places, strict=True):
            if place >= 0:
                ahead[name] = queue_offset + 1

    def raise_next(self, name: bytes, next_offset: int) -> None:
        """Raises the next offset of a lite topic to at least ``next_offset``. Without messages of its own, the topic
        begins there.
        """
        name_id = self.names.find(name)
        if name_id < 0:
            name_id = self._add(name)
        columns = self.columns
        if columns.lasts[name_id] == 0:
            columns.starts[name_id] = max(columns.starts[name_id], next_offset)
        columns.nexts[name_id] = max(columns.nexts[name_id], next_offset)

    def keep_counters(self, name: bytes, start: int, next_offset: int) -> None:
        """Raises start and next offset of a lite topic to at least these, which another directory had for it. For a
        rebuild, after all units.
        """
        name_id = self.names.find(name)
        if name_id < 0:
            name_id = self._add(name)
        columns = self.columns
        columns.starts[name_id] = max(columns.starts[name_id], start)
        columns.nexts[name_id] = max(columns.nexts[name_id], next_offset)

    # -- dispatch ------------------------------------------------------------------------------------------------------

    def put(self, topic: bytes, place: tuple[int, int, int], tags_code: int, store_time_ms: int) -> bool:
        """Adds the unit of a message; returns False if the light queue cannot have it, or has it already.

        Args:
            place: queue offset, physical offset and size of the record.

        Raises:
            DiskFullError: no space; nothing was changed but the names.
        """
        name = lite_name(topic)
        queue_offset, physical_offset, size = place
        if queue_offset > QUEUE_OFFSET_MAX or physical_offset > PHYSICAL_OFFSET_MAX:
            return False
        name_id = self.names.find(name)
        if name_id < 0:
            if self.names.is_full:
                return False
            name_id = self._add(name)
        columns = self.columns
        following, last = columns.nexts[name_id], columns.lasts[name_id]
        was_live = following > columns.starts[name_id]
        before = self.units.next_links(last - 1) if last else None
        if before is not None and before[0] >= physical_offset:
            return False
        begins = last == 0 and following == 0 and queue_offset > 0
        if queue_offset < following and physical_offset > self.repeated_to:
            begins = before is None or queue_offset <= before[1]
        links = (0, 0) if before is None else before[2:]
        seconds = max(store_time_ms // 1000, 0) & 0xFFFFFFFF
        code = (tags_code & 0xFFFFFFFF ^ 0x80000000) - 0x80000000
        self.units.reserve()
        with columns.lock:
            self.units.append_fields(
                name_id, size, (physical_offset, queue_offset), code, seconds, (0, BEGINS) if begins else links
            )
            if begins:
                columns.starts[name_id] = queue_offset
                following = queue_offset
            columns.nexts[name_id] = max(following, queue_offset + 1)
            columns.lasts[name_id] = self.units.end
            columns.times[name_id] = seconds
        self.live[self.names.parents[name_id]] += (columns.nexts[name_id] > columns.starts[name_id]) - was_live
        self.newest_physical = max(self.newest_physical, physical_offset)
        if self._ahead.get(name, INT64_MAX) <= queue_offset + 1:
            del self._ahead[name]
        if self._arrived.setdefault(name_id, code) != code:
            self._arrived[name_id] = None
        return True

    def _add(self, name: bytes) -> int:
        # The row comes first: the maintenance thread copies the rows of all names.
        while self.dead and self.dead[0][0] <= self.table_from:
            self.names.free.append(self.dead.popleft()[1])
        if not self.names.free:
            self.columns.resize(len(self.names) + 1)
        name_id = self.names.add(name)
        if len(self.live) < len(self.names.parent_names):
            self.live.append(0)
        return name_id

    def arrived(self) -> list[int]:
        """Returns the ids of the names with new messages since the last ``take_arrivals``."""
        return list(self._arrived)

    def take_arrivals(self) -> list[tuple[bytes, int, int, int | None]]:
        """See ``Dispatcher.take_arrivals``."""
        arrived, self._arrived = self._arrived, {}
        nexts = self.columns.nexts
        return [(lite_topic(self.names.name(i)), 0, nexts[i], code) for i, code in arrived.items()]

    # -- reading -------------------------------------------------------------------------------------------------------

    def queue(self, topic: bytes) -> LiteQueue | None:
        """Returns the queue of a lite topic; None if it never had a message. Creates nothing."""
        name_id = self.names.find(lite_name(topic))
        return None if name_id < 0 else LiteQueue(self, topic, name_id)

    def min_offset(self, name_id: int, start: int | None = None) -> int:
        """Returns the offset of the oldest message that is neither deleted nor expired; the next offset if there is
        none.

        Args:
            start: first offset that counts as not deleted; None for that of the topic.
        """
        return self._oldest(name_id, self.columns.starts[name_id] if start is None else start, self._log.min_offset)

    def _oldest(self, name_id: int, start: int, physical_min: int) -> int:
        """Returns the offset of the oldest message at ``start`` or later whose record is at ``physical_min`` or later;
        the next offset if there is none.
        """
        columns, links_at = self.columns, self.units.links_at
        cell = columns.lasts[name_id] - 1
        unit = links_at(cell) if cell >= 0 else None
        if unit is None or unit[1] < start or unit[0] < physical_min:
            return columns.nexts[name_id]
        while True:
            _, queue_offset, back, jump = unit
            for distance in (jump, back):
                earlier = links_at(cell - distance) if distance else None
                if earlier is not None and earlier[1] >= start and earlier[0] >= physical_min:
                    cell, unit = cell - distance, earlier
                    break
            else:
                return queue_offset

    def cell_at(self, name_id: int, queue_offset: int) -> int:
        """Returns the cell of the newest unit at or before ``queue_offset``; -1 if there is none."""
        links_at = self.units.links_at
        cell = self.columns.lasts[name_id] - 1
        unit = links_at(cell) if cell >= 0 else None
        while unit is not None and unit[1] > queue_offset:
            _, _, back, jump = unit
            further = links_at(cell - jump) if jump else None
            if further is not None and further[1] >= queue_offset:
                cell, unit = cell - jump, further
            elif back:
                cell -= back
                unit = links_at(cell)
            else:
                return -1
        return -1 if unit is None else cell

    def store_time(self, physical_offset: int) -> int:
        """Returns the store time in ms of the record at ``physical_offset``."""
        return self._log.store_timestamp(physical_offset)

    # -- names ---------------------------------------------------------------------------------------------------------

    def parents(self) -> dict[bytes, int]:
        """Returns for each parent topic how many lite topics with messages it has."""
        return dict(zip(self.names.parent_names, self.live, strict=False))

    @property
    def live_count(self) -> int:
        """Number of lite topics with messages."""
        return sum(self.live)

    def is_live(self, topic: bytes) -> bool:
        """Whether the lite topic with the light queue ``topic`` has messages, or has one whose unit follows later."""
        name = lite_name(topic)
        return name in self._ahead or self._has_messages(name)

    def has_waiting(self, name: bytes) -> bool:
        """Whether the log has a message of the lite topic whose unit follows later."""
        return name in self._ahead

    def are_there(self, count: int) -> bool:
        """Whether at least ``count`` lite topics are live, as ``is_live`` says."""
        live = self.live_count
        if live >= count or live + len(self._ahead) < count:
            return live >= count
        return live + sum(not self._has_messages(name) for name in self._ahead) >= count

    def _has_messages(self, name: bytes) -> bool:
        name_id = self.names.find(name)
        return name_id >= 0 and self.columns.nexts[name_id] > self.columns.starts[name_id]

    def names_of(self, parent: bytes, first: int = 0, rows_max: int = 65_536) -> LiteSlice:
        """Returns lite topics of ``parent`` that have messages.

        Args:
            first: 0, or ``following`` of the part before.
            rows_max: number of names to look at; 65,536 take less than a millisecond.
        """
        number = self.names.find_parent(parent)
        limits = array("q", bytes(8 * len(self.names.parent_names)))
        if number >= 0:
            limits[number] = INT64_MAX
        return self._find(limits, first, rows_max)

    def expired(
        self, ttl_minutes: Mapping[bytes, int], ttl_min_ms: int, now_ms: int, first: int = 0, rows_max: int = 65_536
    ) -> LiteSlice:
        """Returns lite topics whose newest message is older than the time to live of their parent.

        Args:
            ttl_minutes: for each parent topic; at most 0, or none, is for ever.
            ttl_min_ms: a message younger than this keeps its topic in any case.
            now_ms: the store time now.
            first, rows_max: see ``names_of``.
        """
        limits = array("q", bytes(8 * len(self.names.parent_names)))
        for parent, minutes in ttl_minutes.items():
            number = self.names.find_parent(parent)
            if number >= 0 and minutes > 0:
                limits[number] = max((now_ms - max(minutes * 60_000, ttl_min_ms)) // 1000, 0)
        return self._find(limits, first, rows_max)

    def _find(self, limits: array[int], first: int, rows_max: int) -> LiteSlice:
        found = array("I", bytes(4 * _FOUND_MAX))
        columns, last = self.columns, min(first + rows_max, len(self.names))
        row, count = find_rows(
            columns.nexts, columns.starts, columns.times, self.names.parents, limits, first, last, found
        )
        names = [self.names.name(name_id) for name_id in found[:count]]
        return LiteSlice(names, row if row < len(self.names) else None)

    # -- deletion ------------------------------------------------------------------------------------------------------

    def delete(self, names: Iterable[bytes]) -> int:
        """Deletes the messages of lite topics up to now; later messages go on at the next offset. Takes effect once it
        is synced (``settle``). Unknown names are passed over.

        Returns:
            The number of topics that will be deleted.

        Raises:
            DiskFullError: no space; some of the names may be deleted.
        """
        done, columns = 0, self.columns
        for name in names:
            name_id = self.names.find(name)
            if name_id < 0 or columns.nexts[name_id] <= columns.starts[name_id]:
                continue
            self._mark(name, name_id, columns.nexts[name_id], 0)
            done += 1
        return done

    def delete_newest(self, topic: bytes, physical_offset: int) -> None:
        """Deletes the messages of a lite topic up to its newest one, if that is at ``physical_offset``, because its
        parent was deleted after it was stored. That is on the disk, and also what dispatches it again will find it:
        so the messages go at once. The mark tells those who read the units.

        Raises:
            DiskFullError: no space; the call can be repeated.
        """
        name_id = self.names.find(lite_name(topic))
        cell = -1 if name_id < 0 else self.columns.lasts[name_id] - 1
        unit = self.units.unit(cell) if cell >= 0 else None
        if unit is None or unit.physical_offset != physical_offset or self.columns.starts[name_id] > unit.queue_offset:
            return
        start = self.columns.nexts[name_id]
        self._mark(lite_name(topic), name_id, start, 0)
        with self.columns.lock:
            self.columns.starts[name_id] = start
        self.live[self.names.parents[name_id]] -= 1
        self._arrived.pop(name_id, None)

    def delete_to(self, name: bytes, start: int) -> None:
        """Deletes the messages of a lite topic below ``start``, at most its next offset; like ``delete`` otherwise."""
        name_id = self.names.find(name)
        if name_id >= 0 and self.columns.starts[name_id] < start <= self.columns.nexts[name_id]:
            self._mark(name, name_id, start, 0)

    def delete_before(self, name: bytes, physical_end: int) -> bool:
        """Deletes the messages of a lite topic whose records are before ``physical_end``; like ``delete`` otherwise.
        Returns whether messages remain.
        """
        name_id = self.names.find(name)
        if name_id < 0 or not self._has_messages(name):
            return False
        start, columns = self._oldest(name_id, self.columns.starts[name_id], physical_end), self.columns
        if self._oldest(name_id, columns.starts[name_id], 0) < start:
            self._mark(name, name_id, start, 0)
        return start < columns.nexts[name_id]

    def forgettable(self, first: int = 0, rows_max: int = 4096) -> LiteSlice:
        """Returns lite topics that ``forget`` would drop: deleted ones of which the log has no record any more.

        Args:
            first, rows_max: see ``names_of``.
        """
        columns, last = self.columns, min(first + rows_max, len(self.names))
        found = [
            self.names.name(name_id)
            for name_id in range(first, last)
            if 0 < columns.nexts[name_id] <= columns.starts[name_id] and self._has_no_record(name_id)
        ]
        return LiteSlice(found, last if last < len(self.names) else None)

    def forget(self, names: Iterable[bytes]) -> int:
        """Drops lite topics and their counters: a new topic of the same name begins at offset 0. Passes over topics
        that have messages, or whose records the log may have. Takes effect once it is synced. The caller must know that
        no group has an offset in them.

        Returns:
            The number of topics that will be dropped, unless a message arrives before.

        Raises:
            DiskFullError: no space; some of the topics may be dropped.
        """
        done, columns = 0, self.columns
        for name in names:
            name_id = self.names.find(name)
            if name_id < 0 or columns.nexts[name_id] > columns.starts[name_id]:
                continue
            if self._has_no_record(name_id):
                self._mark(name, name_id, _FORGET, -1)
                done += 1
        return done

    def _has_no_record(self, name_id: int) -> bool:
        # Records that expired may come back after a power cut, until their segments are removed for certain.
        return self.columns.lasts[name_id] <= self.gone_to

    def _mark(self, name: bytes, name_id: int, start: int, size: int) -> None:
        code = (crc32(name) ^ 0x80000000) - 0x80000000
        mark = encode_unit(LiteUnit(name_id, size, self.newest_physical, max(start, 0), code, 0))
        self.units.reserve()
        with self.columns.lock:
            self._marks.append(_Mark(self.units.end, name_id, start))
            self.units.append(mark)

    def settle(self) -> None:
        """Makes marks effective that are synced."""
        columns, marks = self.columns, self._marks
        while marks and marks[0].cell < self.units.synced:
            cell, name_id, start = marks[0]
            was_live = columns.nexts[name_id] > columns.starts[name_id]
            goes = start == _FORGET and columns.lasts[name_id] <= cell
            with columns.lock:
                if goes:
                    columns.starts[name_id] = columns.nexts[name_id] = columns.lasts[name_id] = 0
                    columns.times[name_id] = 0
                elif start != _FORGET:
                    columns.starts[name_id] = max(columns.starts[name_id], start)
                    columns.nexts[name_id] = max(columns.nexts[name_id], start)
                marks.popleft()
            if goes:
                self.names.remove(name_id)
                self._arrived.pop(name_id, None)
                self.dead.append((cell + 1, name_id))
            elif was_live and columns.nexts[name_id] <= columns.starts[name_id]:
                self.live[self.names.parents[name_id]] -= 1

    @property
    def wants_sync(self) -> bool:
        """Whether marks wait for a sync. Any thread may ask."""
        return bool(self._marks)

    # -- the end of old segments ---------------------------------------------------------------------------------------

    def detach_expired(self) -> list[MappedFile]:
        """Takes segments out of the list whose records have all expired and whose rows are in the table. The
        maintenance thread then calls ``note_dropped`` and removes their files. If the table is not far enough yet, that
        thread writes one soon.
        """
        log_min = self._log.min_offset
        if log_min <= self._dropped_to:
            return []
        gone, later = self.units.detach_before(log_min, self.table_from)
        if later:
            self._table_due = True
        else:
            self._dropped_to = log_min
        return gone

    # -- the maintenance thread ----------------------------------------------------------------------------------------

    def write_names(self) -> None:
        """Writes the names, without which the units mean nothing.

        Raises:
            DiskFullError: no space; a later call writes them.
        """
        self.names.write()

    def sync(self) -> None:
        """Syncs everything that was put before the call.

        Raises:
            DiskError: units or names may be missing on the disk.
        """
        end = self.units.end
        self.names.write()
        self.units.sync(end)
        if self.is_complete:
            self.synced_file.write(end, self.names.written, self.units.first)

    def keep(self) -> None:
        """Writes the table if it is due: after as many units as there are names, or before old segments go.

        Raises:
            DiskError: the old table remains.
        """
        waiting = self.units.end - self.table_from
        if self._table_due or waiting >= max(len(self.names), _UNITS_BETWEEN_TABLES_MIN):
            self._table_due = False
            self.write_table()

    def finish(self) -> None:
        """Writes the table at a clean stop, or at the end of a rebuild, if it is not current.

        Raises:
            DiskError: the old table remains.
        """
        if not self.is_complete or self.table_from != self.units.end:
            self.write_table()
            self.is_complete = True
            self.synced_file.write(self.units.synced, self.names.written, self.units.first)

    def note_dropped(self, first: int) -> None:
        """Notes which units are there no more, before their segments are removed. The segments of the log with their
        records have been removed by then.

        Args:
            first: cell of the first unit that stays.

        Raises:
            DiskError: the segments must stay.
        """
        self.synced_file.write(self.units.synced, self.names.written, self.units.first)
        self.gone_to = first

    def write_table(self) -> None:
        """Writes the table, after a sync of everything in it."""
        columns, units = self.columns, self.units
        with columns.lock:
            count = len(self.names)
            from_unit = self._marks[0].cell if self._marks else units.end
            names_bytes = len(self.names.blob)
        parts = encode_parts(columns, count)
        to_unit = units.end
        self.names.write()
        units.sync(to_unit)
        write_table(
            self._files,
            self.table_path,
            TableHead(count, names_bytes, from_unit, to_unit, self.repeated_to),
            parts,
        )
        self.table_from = from_unit

    def close(self) -> None:
        """Closes the files."""
        self.units.close()

    def memory_bytes(self) -> int:
        """Returns how much memory the names and their rows take."""
        return self.names.memory_bytes() + self.columns.memory_bytes()
