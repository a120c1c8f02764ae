"""The units of all lite topics, in the order of dispatch (``formats.lite``). A unit's number, counted from the first
unit ever, is its cell.

The event loop's thread appends and reads; the maintenance thread syncs.
"""

from __future__ import annotations

from rucola.formats.checksum import crc32
from rucola.formats.lite import DISTANCE_MAX, LITE_UNIT_BYTES, LiteUnit, decode_unit, read_links, write_unit
from rucola.formats.segment_name import is_segment_name
from rucola.runtime.files import Files
from rucola.store.log.mapped_file import MappedFile
from rucola.store.log.segment_list import SegmentList


class LiteUnits:
    """The segments of units.

    Attributes:
        segments: the segments.
        end: cell after the last unit.
        synced: cell up to which ``sync`` has made the units durable.

    Args:
        path: the directory, which need not exist.
        segment_units, writable: see ``LiteTopics``.
    """

    def __init__(self, files: Files, path: str, segment_units: int, writable: bool = True) -> None:
        self.segments = SegmentList(files, path, segment_units * LITE_UNIT_BYTES, writable=writable, scattered=True)
        self.end = 0
        self.synced = 0
        self._files = files
        self._file: MappedFile | None = None
        self._limit = 0

    def load(self) -> None:
        """Opens the segments; the caller must find the end of the units and set ``end``.

        Raises:
            StoreDamagedError: a file is not a segment.
        """
        lengths = set(self._files.list_sizes(self.segments.path, is_segment_name).values()) - {0}
        length = min(lengths, default=self.segments.segment_bytes)
        if length % LITE_UNIT_BYTES == 0:
            self.segments.segment_bytes = length
        self.segments.load()

    @property
    def first(self) -> int:
        """Cell of the first unit that is still there."""
        return self.segments.start // LITE_UNIT_BYTES

    def unit(self, cell: int) -> LiteUnit | None:
        """Returns a unit; None if it is not there any more, or damaged.

        Raises:
            DiskError: the disk cannot read it.
        """
        position = cell * LITE_UNIT_BYTES
        file = self.segments.find(position)
        if file is None or not 0 <= cell < self.end:
            return None
        at = position - file.start
        file.ensure(at, LITE_UNIT_BYTES)
        return decode_unit(bytes(file.map.view[at : at + LITE_UNIT_BYTES]))

    def reserve(self) -> None:
        """Makes room for one unit.

        Raises:
            DiskFullError: no space.
        """
        position = self.end * LITE_UNIT_BYTES
        if position >= self._limit:
            self._extend(position)

    def append(self, unit: bytes) -> None:
        """Appends the bytes of a unit, for which ``reserve`` has made room. Waits for no disk."""
        position = self.end * LITE_UNIT_BYTES
        file = self._file
        assert file is not None
        at = position - file.start
        file.map.view[at : at + LITE_UNIT_BYTES] = unit
        self.end += 1

    def append_fields(
        self, name_id: int, size: int, place: tuple[int, int], tags_code: int, store_time_s: int, links: tuple[int, int]
    ) -> None:
        """Does what ``append`` does.

        Args:
            place: physical offset and queue offset.
            links: the fields ``back`` and ``jump``.
        """
        file = self._file
        assert file is not None
        at, segment = self.end * LITE_UNIT_BYTES - file.start, file.map
        write_unit(segment.buffer, segment.view, at, name_id, size, *place, tags_code, store_time_s, *links, crc32)
        self.end += 1

    def next_links(self, cell: int) -> tuple[int, int, int, int] | None:
        """Returns the physical offset and the queue offset of the unit at ``cell``, and the fields ``back`` and
        ``jump`` of the next unit if that is of the same name; None if it is not there any more, or damaged.

        Raises:
            DiskError: the disk cannot read a unit.
        """
        before = self.links_at(cell)
        if before is None:
            return None
        physical_offset, queue_offset, _, jump = before
        end, target = self.end, cell
        if jump:
            one = self.links_at(cell - jump)
            other = self.links_at(cell - jump - one[3]) if one is not None and one[3] else one
            if one is not None and other is not None and queue_offset - one[1] == one[1] - other[1]:
                target = cell - jump - one[3]
        back = _distance(end, cell)
        return physical_offset, queue_offset, back, _distance(end, target) if back else 0

    def links_at(self, cell: int) -> tuple[int, int, int, int] | None:
        """Returns physical offset, queue offset, ``back`` and ``jump`` of a unit; None if it is not there any more, or
        damaged.

        Raises:
            DiskError: the disk cannot read it.
        """
        position = cell * LITE_UNIT_BYTES
        file = self.segments.find(position)
        if file is None or not 0 <= cell < self.end:
            return None
        at = position - file.start
        file.ensure(at, LITE_UNIT_BYTES)
        segment = file.map
        found = read_links(segment.buffer, segment.view, at, crc32)
        return found if found[0] >= 0 else None

    def _extend(self, position: int) -> None:
        """Makes room for one unit at ``position``."""
        file = self.segments.find(position)
        if file is None:
            file = self.segments.append(position - position % self.segments.segment_bytes)
            file.set_readable()
        at = position - file.start
        if self._file is not file:
            file.allocated = max(file.allocated, at)
        file.allocate_to(at + LITE_UNIT_BYTES)
        self._file = file
        self._limit = file.start + file.allocated - file.allocated % LITE_UNIT_BYTES

    def cut(self, cell: int) -> None:
        """Removes all units from ``cell`` on, and syncs that."""
        position = cell * LITE_UNIT_BYTES
        self._file, self._limit = None, 0
        self.segments.remove_after(position)
        file = self.segments.find(position)
        if file is not None and file.zero(position - file.start):
            file.sync()
        self.end = cell
        self.synced = min(self.synced, cell)

    def sync(self, end: int) -> None:
        """Syncs the units before cell ``end``. Called by the maintenance thread.

        Raises:
            DiskError: units may be missing on the disk, even if a later sync succeeds.
        """
        first, last = self.synced * LITE_UNIT_BYTES, end * LITE_UNIT_BYTES
        for file in list(self.segments.files):
            if file.end > first and file.start < last:
                file.sync()
        self.synced = max(self.synced, end)

    def detach_before(self, physical_offset: int, end: int) -> tuple[list[MappedFile], bool]:
        """Takes the oldest segments out of the list if all their records lie before ``physical_offset``. Their files
        stay. The last segment is kept.

        Args:
            end: cell; a segment with later units stays.

        Returns:
            The segments, and whether others stay only because of ``end``.
        """
        gone, later = 0, False
        for file in self.segments.files[:-1]:
            last = self.unit(file.end // LITE_UNIT_BYTES - 1)
            if last is None or last.physical_offset >= physical_offset:
                break
            later = file.end > end * LITE_UNIT_BYTES
            if later:
                break
            gone = file.end
        return self.segments.detach_before(gone), later

    def close(self) -> None:
        """Unmaps all segments."""
        self._file, self._limit = None, 0
        self.segments.close()


def _distance(cell: int, earlier: int) -> int:
    """Returns how many units back the one at ``earlier`` is; 0 if it is too far away for a link."""
    units = cell - earlier
    return units if 0 < units <= DISTANCE_MAX else 0
