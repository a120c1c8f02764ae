"""Checks the lite topics of a store (``store.lite``): each message of the log that names one must have its unit, and
nothing else may have one.

Sums of checksums are compared, so that the check needs no memory for each unit.
"""

from __future__ import annotations

from array import array
from struct import Struct

from rucola.errors import StoreDamagedError
from rucola.formats.checksum import crc32
from rucola.formats.light_queue import is_lite, lite_name
from rucola.formats.lite import DISTANCE_MAX, LITE_UNIT_BYTES, QUEUE_OFFSET_MAX, LiteUnit, decode_unit
from rucola.formats.segment_name import is_segment_name
from rucola.runtime.files import Files
from rucola.store.lite.lite_names import LiteNames
from rucola.store.lite.lite_table import LiteColumns, LiteSyncedFile, TableHead, read_table
from rucola.store.lite.lite_topics import DIRECTORY
from rucola.store.log.mapped_file import MappedFile
from rucola.store.queue.multi_dispatch import light_entries
from rucola.store.verify.findings import FindingKind, Findings
from rucola.store.verify.log import LogCheck

_PLACE = Struct(">qqi")
_READ_BYTES = LITE_UNIT_BYTES * 25_000


class LiteCheck:
    """The check of one directory; does nothing if the store has none.

    Args:
        dispatched: physical offset below which all units must be there.
        live: whether a broker uses the store; then units are not compared with records.

    Attributes:
        units: number of units of messages.
    """

    def __init__(self, files: Files, root: str, found: Findings, log: LogCheck, dispatched: int, live: bool) -> None:
        self.units = 0
        self._path = f"{root}/{DIRECTORY}"
        self._files = files
        self._found = found
        self._log = log
        self._dispatched = dispatched
        self._live = live
        self._is_there = files.exists(f"{self._path}/table")
        self._wanted = [0, 0]
        self._there = [0, 0]

    def rows(self, file: MappedFile, table: array[int], rows: int) -> None:
        """Takes note of records of the log."""
        if not self._is_there:
            return
        seen: set[tuple[bytes, int]] = set()
        for entry in light_entries(file, table, rows, {}):
            if entry is None or not is_lite(entry.name) or entry.queue_offset > QUEUE_OFFSET_MAX:
                continue
            if (entry.name, entry.physical_offset) not in seen and entry.physical_offset < self._dispatched:
                seen.add((entry.name, entry.physical_offset))
                place = _PLACE.pack(entry.queue_offset, entry.physical_offset, entry.size)
                self._wanted[0] += 1
                self._wanted[1] += crc32(lite_name(entry.name) + place)

    def finish(self) -> None:
        """Checks the files."""
        if not self._is_there:
            return
        columns, names = LiteColumns(), LiteNames(self._files, f"{self._path}/names", 0)
        try:
            names.load()
            head = read_table(self._files, f"{self._path}/table", columns)
        except StoreDamagedError as error:
            self._found.add(FindingKind.LITE_TOPICS, error.path, error.position, error.problem)
            return
        units, names_bytes, first = LiteSyncedFile(self._files, f"{self._path}/synced").read()
        if len(names) < head.names or len(names.blob) < max(names_bytes, head.names_bytes):
            self._found.add(FindingKind.LITE_TOPICS, f"{self._path}/names", len(names.blob), "names are missing")
            return
        walk = _Chains(len(names), head)
        self._check_units(names, head, units, first, walk)
        if walk.whole and (wrong := walk.wrong_rows(columns)):
            detail = f"{len(wrong)} rows do not fit the units, the first is that of {_shown(names.name(wrong[0]))}"
            self._found.add(FindingKind.LITE_TOPICS, f"{self._path}/table", 0, detail)
        if not self._live and self._log.intact and self._wanted != self._there:
            detail = f"{self._there[0]} units for {self._wanted[0]} messages of the log, or units of other messages"
            self._found.add(FindingKind.LITE_TOPICS, f"{self._path}/units", 0, detail)

    def _check_units(self, names: LiteNames, head: TableHead, synced: int, first: int, walk: _Chains) -> None:
        path = f"{self._path}/units"
        sizes = self._files.list_sizes(path, is_segment_name)
        following = int(next(iter(sizes), "0"))
        walk.first = following // LITE_UNIT_BYTES
        if following > min(head.from_unit, first) * LITE_UNIT_BYTES:
            self._found.add(FindingKind.LITE_TOPICS, path, 0, "the oldest units are missing")
        needed, newest = max(head.to_unit, synced) * LITE_UNIT_BYTES, 0
        for name, size in sizes.items():
            if int(name) != following:
                self._found.add(FindingKind.LITE_TOPICS, f"{path}/{following:020d}", 0, "a segment is missing")
            following = int(name) + size
            for position in range(0, size, _READ_BYTES):
                content = self._files.read_at(f"{path}/{name}", position, min(_READ_BYTES, size - position))
                for at in range(0, len(content) - len(content) % LITE_UNIT_BYTES, LITE_UNIT_BYTES):
                    unit = decode_unit(content[at : at + LITE_UNIT_BYTES])
                    place = int(name) + position + at
                    if unit is None or unit.name_id >= len(names) or unit.physical_offset < newest:
                        walk.linked = False
                        if place < needed:
                            walk.whole = False
                            detail = "a unit is damaged"
                            self._found.add(FindingKind.LITE_TOPICS, f"{path}/{name}", position + at, detail)
                        continue
                    newest = unit.physical_offset
                    if not walk.takes(place // LITE_UNIT_BYTES, unit):
                        detail = "a unit does not lead to the unit before it of its lite topic"
                        self._found.add(FindingKind.LITE_TOPICS, f"{path}/{name}", position + at, detail)
                    if unit.size > 0 and self._log.start <= newest < min(self._dispatched, self._log.end):
                        packed = _PLACE.pack(unit.queue_offset, newest, unit.size)
                        self.units += 1
                        self._there[0] += 1
                        self._there[1] += crc32(names.name(unit.name_id) + packed)
        if following < needed:
            self._found.add(FindingKind.LITE_TOPICS, f"{path}/{following:020d}", 0, "the newest units are missing")


class _Chains:
    """The units of each name as they follow each other, and what the rows of the table must say of them.

    Attributes:
        first: number of the oldest unit.
        whole: whether no synced unit was damaged.
        linked: whether no unit was damaged so far; after one that was, nothing is known of the links.
    """

    def __init__(self, names: int, head: TableHead) -> None:
        self.first = 0
        self.whole = self.linked = True
        self._head = head
        self._lasts = array("q", bytes(8 * names))
        self._lasts_in_table = array("q", bytes(8 * names))
        self._nexts_in_table = array("q", bytes(8 * names))

    def takes(self, cell: int, unit: LiteUnit) -> bool:
        """Takes the next unit; returns whether it leads to the one before it of its name."""
        last, name_id = self._lasts[unit.name_id], unit.name_id
        in_table = cell < self._head.from_unit
        if unit.size < 0:
            self._lasts[name_id] = 0
            if in_table:
                self._lasts_in_table[name_id] = self._nexts_in_table[name_id] = 0
            return True
        if unit.size == 0:
            return True
        leads = not self.linked or unit.begins or (unit.back == 0 and last == 0)
        leads = leads or (cell - unit.back == last - 1 if last else cell - unit.back < self.first)
        self._lasts[name_id] = cell + 1
        if in_table:
            self._lasts_in_table[name_id], self._nexts_in_table[name_id] = cell + 1, unit.queue_offset + 1
        return leads or (unit.back == 0 and cell - last >= DISTANCE_MAX)

    def wrong_rows(self, columns: LiteColumns) -> list[int]:
        """Returns the ids of rows that cannot be: the table has at least the units before its ``from_unit``, and none
        from its ``to_unit`` on.
        """
        rows = zip(
            columns.lasts, columns.nexts, columns.starts, self._lasts_in_table, self._nexts_in_table, strict=False
        )
        return [
            name_id
            for name_id, (last, following, start, last_min, following_min) in enumerate(rows)
            if last < last_min
            or last > self._head.to_unit
            or not 0 <= start <= following
            or (last == last_min > 0 and following < following_min)
        ]


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "replace")
