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
from rucola.formats.lite import LITE_UNIT_BYTES, QUEUE_OFFSET_MAX, decode_unit
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
        self._check_units(names, head, units, first)
        if not self._live and self._log.intact and self._wanted != self._there:
            detail = f"{self._there[0]} units for {self._wanted[0]} messages of the log, or units of other messages"
            self._found.add(FindingKind.LITE_TOPICS, f"{self._path}/units", 0, detail)

    def _check_units(self, names: LiteNames, head: TableHead, synced: int, first: int) -> None:
        path = f"{self._path}/units"
        sizes = self._files.list_sizes(path, is_segment_name)
        following = int(next(iter(sizes), "0"))
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
                    if unit is None or unit.name_id >= len(names) or unit.physical_offset < newest:
                        if int(name) + position + at < needed:
                            detail = "a unit is damaged"
                            self._found.add(FindingKind.LITE_TOPICS, f"{path}/{name}", position + at, detail)
                        continue
                    newest = unit.physical_offset
                    if unit.size > 0 and self._log.start <= newest < min(self._dispatched, self._log.end):
                        place = _PLACE.pack(unit.queue_offset, newest, unit.size)
                        self.units += 1
                        self._there[0] += 1
                        self._there[1] += crc32(names.name(unit.name_id) + place)
        if following < needed:
            self._found.add(FindingKind.LITE_TOPICS, f"{path}/{following:020d}", 0, "the newest units are missing")
