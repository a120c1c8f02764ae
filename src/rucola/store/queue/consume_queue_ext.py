"""The extension of consume queues (``formats.consume_queue_ext``), and the queue that has one.

The content of the extension is derived from the log and, for the bit maps, from the filters that were known at
dispatch. Each sync of a queue also writes the queue's extension to the disk. After a crash, a unit of the extension is
valid only once dispatch has put the unit's record again.
"""

from __future__ import annotations

from array import array

from rucola.formats.consume_queue import UNIT, UNIT_BYTES, PullLimits, select_units
from rucola.formats.consume_queue_ext import (
    END_BYTES,
    END_MARK,
    EXT_UNIT_BYTES_MAX,
    ExtUnit,
    address_of,
    decode_ext_unit,
    encode_ext_unit,
    is_address,
    position_of,
)
from rucola.runtime.files import Files
from rucola.store.log.log_reader import LogReader
from rucola.store.log.mapped_file import MappedFile, readable
from rucola.store.log.segment_list import SegmentList
from rucola.store.queue.consume_queue import ConsumeQueue, DispatchRequest
from rucola.store.queue.placement import NOWHERE, Placement


class ConsumeQueueExt:
    """The segments of one extension.

    Attributes:
        segments: the segments.
        end: position after the last unit.
        unit_bytes_max: length in bytes of the longest possible unit.
    """

    def __init__(self, files: Files, path: str, segment_bytes: int, writable: bool = True) -> None:
        self.segments = SegmentList(files, path, segment_bytes, writable=writable, scattered=True)
        self.end = 0
        self.unit_bytes_max = min(EXT_UNIT_BYTES_MAX, segment_bytes - END_BYTES)
        self._files = files

    def read(self, address: int) -> ExtUnit | None:
        """Returns the unit at ``address``; None if no unit is there.

        Raises:
            DiskError: the disk cannot read the unit.
        """
        position = position_of(address)
        file = self.segments.find(position)
        return None if file is None else self._unit(file, position - file.start)

    def _unit(self, file: MappedFile, at: int) -> ExtUnit | None:
        file.ensure(at, min(self.unit_bytes_max, file.size - at))
        return decode_ext_unit(file.map.view, at)

    def append(self, unit: ExtUnit) -> int:
        """Writes a unit after the last one; returns its address.

        Raises:
            DiskFullError: no space; nothing was changed.
        """
        data = encode_ext_unit(unit)
        position = self.end
        file = self.segments.find(position)
        if file is not None and len(data) > file.end - position - END_BYTES:
            at = position - file.start
            file.allocate_to(file.size)
            file.map.view[at : at + len(END_MARK)] = END_MARK
            position = file.end
            file = self.segments.find(position)
        if file is None:
            file = self.segments.append(position)
        at = position - file.start
        file.allocated = max(file.allocated, at)
        file.allocate_to(at + len(data))
        file.map.view[at : at + len(data)] = data
        self.end = position + len(data)
        return address_of(position)

    def rewrite(self, address: int, size: int) -> None:
        """Writes the unit at ``address`` again, unchanged, so that the next sync includes this unit."""
        position = position_of(address)
        file = self.segments.find(position)
        if file is not None:
            at = position - file.start
            file.ensure(at, size)
            file.map.rewrite(at, bytes(file.map.view[at : at + size]))

    def find_end(self) -> None:
        """Determines ``end`` from the sizes of the units in the last segment. Raises ``DiskError`` as ``read`` does."""
        self.end = self.segments.start
        if self.segments.files:
            file = self.segments.files[-1]
            at = 0
            while (unit := self._unit(file, at)) is not None:
                at += unit.size
            self.end = file.start + at

    def cut(self) -> bool:
        """Overwrites everything after ``end`` with zeros and removes later segments; returns whether any byte was
        nonzero.
        """
        changed = bool(self.segments.remove_after(self.end))
        file = self.segments.find(self.end)
        if file is not None:
            at = self.end - file.start
            if bytes(file.map.view[at : at + len(END_MARK)]) == END_MARK:
                at += len(END_MARK)
            if file.zero(at):
                file.sync()
                changed = True
        return changed

    def remove_before(self, position: int) -> None:
        """Removes the segments that end before ``position``, oldest first."""
        segments = self.segments.files
        while segments and segments[0].end < position:
            file = segments[0]
            self.segments.files = segments = segments[1:]
            file.close()
            self._files.remove(file.path)
            self._files.sync_directory(self.segments.path)

    def sync(self) -> None:
        """Syncs all mapped segments; segments that are not mapped were not written."""
        for file in list(self.segments.files):
            file.sync()


class ExtendedConsumeQueue(ConsumeQueue):
    """A consume queue with an extension; see ``ConsumeQueue``.

    Args:
        ext: the extension, which is not loaded yet.
        extending: whether new records get a unit in the extension; if False, the extension is only read.
    """

    __slots__ = ("_ext", "_extending", "_opened")

    def __init__(
        self,
        files: Files,
        path: str,
        segment_bytes: int,
        topic: bytes,
        queue_id: int,
        log: LogReader,
        placement: Placement,
        writable: bool,
        ext: ConsumeQueueExt,
        extending: bool,
    ) -> None:
        super().__init__(files, path, segment_bytes, topic, queue_id, log, placement, writable)
        self._ext = ext
        self._extending = extending
        self._opened = False

    # -- opening -------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """See ``ConsumeQueue.open``."""
        self._ext.segments.load()
        super().open()
        with readable():
            self._find_ext_end()
        self._opened = True

    def correct_min_offset(self) -> None:
        """See ``ConsumeQueue.correct_min_offset``; also removes the segments of the extension that lie before the unit
        of the first entry.
        """
        super().correct_min_offset()
        if self._opened and self.min_offset < self.max_offset:
            address = self.unit(self.min_offset)[2]
            if is_address(address):
                self._ext.remove_before(position_of(address))

    def cut(self, physical_end: int) -> bool:
        """See ``ConsumeQueue.cut``; the extension ends after the unit of the last entry."""
        changed = super().cut(physical_end)
        self._find_ext_end()
        return self._ext.cut() or changed

    def _find_ext_end(self) -> None:
        end = self._ext_end_before(self.max_offset)
        if end is None:
            # The last entry has no extension unit, perhaps because the entry was put while the extension was disabled.
            self._ext.find_end()
        else:
            self._ext.end = end

    def _ext_end_before(self, queue_offset: int) -> int | None:
        """Returns the position after the unit of the entry before ``queue_offset``; None if that entry has no readable
        unit.
        """
        if queue_offset <= self.min_offset:
            return self._ext.segments.start
        address = self.unit(queue_offset - 1)[2]
        unit = self._ext.read(address) if is_address(address) else None
        return None if unit is None else position_of(address) + unit.size

    # -- writing -------------------------------------------------------------------------------------------------------

    def put_record(self, request: DispatchRequest) -> None:
        """Writes the unit of a record into the extension, then the address of this unit into the queue.

        Raises:
            DiskFullError: no space; earlier entries and their extension units are unchanged.
        """
        if not self._extending:
            super().put_record(request)
            return
        if request.queue_offset != self.max_offset:
            found = self.placement.entry_of(self, request.queue_offset, request.physical_offset, request.size)
            if found == NOWHERE:
                return
            request = request._replace(queue_offset=found)
        if request.queue_offset < self.max_offset:
            if self._put_again(request):
                return
            self._take_back(request.queue_offset)
        unit = ExtUnit(request.tags_code, request.store_timestamp_ms, b"")
        end = self._ext.end
        address = self._ext.append(unit)
        try:
            self.put(request.queue_offset, request.physical_offset, request.size, address)
        except BaseException:
            self._ext.end = end
            raise

    def _put_again(self, request: DispatchRequest) -> bool:
        """Writes the entry of a record and its extension unit again if the queue already has them; returns whether it
        has.
        """
        physical_offset, size, address = self.unit(request.queue_offset)
        if (physical_offset, size) != (request.physical_offset, request.size):
            return False
        if is_address(address):
            unit = self._ext.read(address)
            if unit is None or unit[:2] != (request.tags_code, request.store_timestamp_ms):
                return False
            self._ext.rewrite(address, unit.size)
        elif address != request.tags_code:
            return False
        self.put(request.queue_offset, physical_offset, size, address)
        return True

    def _take_back(self, queue_offset: int) -> None:
        """Invalidates the entries from ``queue_offset`` on and their units in the extension."""
        end = self._ext_end_before(queue_offset)
        if end is not None:
            self._ext.end = end
        self.max_offset = max(queue_offset, self.min_offset)
        self._file = None
        self._position = self._allocated = 0
        self._synced = min(self._synced, self.max_offset * UNIT_BYTES)

    def sync(self) -> None:
        """Syncs the extension, then the queue; see ``ConsumeQueue.sync``."""
        self._ext.sync()
        super().sync()

    def close(self) -> None:
        """Unmaps the segments."""
        self._ext.segments.close()
        super().close()

    # -- reading -------------------------------------------------------------------------------------------------------

    def entry(self, queue_offset: int) -> tuple[int, int, int]:
        """See ``ConsumeQueue.entry``. If the extension has no unit at the address in the entry, the address is returned
        in place of the hash of the tags.
        """
        physical_offset, size, tags_code = self.unit(queue_offset)
        unit = self._ext.read(tags_code) if is_address(tags_code) else None
        return physical_offset, size, tags_code if unit is None else unit.tags_code

    def ext_unit(self, queue_offset: int) -> ExtUnit | None:
        """Returns the extension unit of an entry; None if the entry has none."""
        address = self.unit(queue_offset)[2]
        return self._ext.read(address) if is_address(address) else None

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
        """See ``ConsumeQueue.select``. An entry whose extension unit is missing counts as a match."""
        if not len(tag_codes):
            return super().select(queue_offset, chosen, tag_codes, max_messages, max_bytes, scan_bytes_max, limits)
        file = self.segments.find(queue_offset * UNIT_BYTES)
        if file is None:
            return None
        last = min(self.max_offset, file.end // UNIT_BYTES, queue_offset + -(-scan_bytes_max // UNIT_BYTES))
        units = bytearray()
        for at in range(queue_offset, last):
            physical_offset, size, tags_code = self.entry(at)
            units += UNIT.pack(physical_offset, size, tag_codes[0] if is_address(tags_code) else tags_code)
        return select_units(units, 0, len(units), chosen, max_messages, max_bytes, scan_bytes_max, tag_codes, limits)
