"""Opens the lite topics of a store, or begins to build them again.

All units of records below the dispatch position were synced with it, so the units are cut at that position, and
dispatch adds the rest again. Rows of the table that are ahead of the cut go back along the units' links. Start marks
that were written behind the cut still count: with their effect, the table is written before the cut.

If a part is missing or damaged, the directory is moved into quarantine and built again from the log. Counters are then
what the log tells, and what consume queues of RocketMQ's own kind tell if there are some: deletions are forgotten.
"""

from __future__ import annotations

import logging
from array import array

from rucola.common.numbers import INT64_MAX
from rucola.errors import StoreDamagedError
from rucola.formats.checksum import crc32
from rucola.formats.light_queue import is_lite, lite_name
from rucola.formats.lite import LITE_UNIT_BYTES, apply_units, check_units, checksum_names, count_live, rows_above
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.lite.lite_table import TableHead, encode_parts, read_table, write_table
from rucola.store.lite.lite_topics import LiteTopics
from rucola.store.log.mapped_file import readable
from rucola.store.queue.consume_queue_store import ConsumeQueueStore
from rucola.store.recovery.quarantine import Quarantine

logger = logging.getLogger(__name__)
_ADVICE = "the queues of lite topics are built again from the log"
_ROWS_AT_ONCE = 4096
_SPARE_ENTRIES = 4096


def open_lite(topics: LiteTopics, files: Files, quarantine: Quarantine, dispatched_to: int, log_min: int) -> int:
    """Opens the lite topics.

    Args:
        topics: where nothing is loaded yet.
        dispatched_to: physical offset below which all units were synced.
        log_min: where the log begins.

    Returns:
        The physical offset from which records must be dispatched to lite topics.

    Raises:
        DiskError: a call of the operating system failed.
    """
    topics.clear()
    if files.exists(topics.path):
        if files.exists(topics.table_path) or files.exists(topics.synced_file.path):
            try:
                load_lite(topics, files, dispatched_to)
                return dispatched_to
            except StoreDamagedError as error:
                topics.close()
                topics.clear()
                event(
                    logger,
                    logging.ERROR,
                    "lite topics are built again from the log, their deletions are forgotten",
                    path=error.path,
                    position=error.position,
                    reason=error.problem,
                )
                quarantine.move(topics.path, topics.path.rpartition("/")[2], error.problem)
        else:
            files.remove_tree(topics.path)  # left by a rebuild that was interrupted
            files.sync_directory(topics.path.rpartition("/")[0])
    elif log_min < dispatched_to:
        event(
            logger,
            logging.WARNING,
            "lite topics are built from the log, the store had none",
            path=topics.path,
            start_offset=log_min,
        )
    files.make_directory(f"{topics.path}/units")
    files.replace_file(f"{topics.path}/names", b"")
    return log_min


def load_lite(topics: LiteTopics, files: Files, dispatched_to: int) -> None:
    """Opens lite topics that are there; see ``open_lite``.

    Raises:
        StoreDamagedError: a part is missing or damaged.
    """
    with readable():
        _Opening(topics, files).open(dispatched_to)


def view_lite(topics: LiteTopics, files: Files) -> None:
    """Opens lite topics for reading, even while a broker changes them; writes nothing. ``topics`` must have been made
    with ``writable=False``. Units that a broker has not finished are left out.

    Raises:
        StoreDamagedError: a part is missing or damaged, or a broker replaced one meanwhile.
    """
    with readable():
        _Opening(topics, files).view()


def complete_lite(topics: LiteTopics, queues: ConsumeQueueStore) -> None:
    """Ends a rebuild: takes over counters of consume queues that RocketMQ has made for lite topics. Does nothing if
    there was no rebuild.

    Raises:
        DiskError: the rebuild begins anew at the next start.
    """
    if topics.is_complete:
        return
    for topic, queue_id in sorted(queues.names()):
        if queue_id == 0 and is_lite(topic):
            topics.raise_next(lite_name(topic), queues.get(topic, 0).max_offset)
    topics.finish()


class _Opening:
    """Opens one directory.

    Raises:
        StoreDamagedError: a part is missing or damaged.
    """

    def __init__(self, topics: LiteTopics, files: Files) -> None:
        self._topics = topics
        self._files = files
        self._names = topics.names
        self._columns = topics.columns
        self._units = topics.units

    def view(self) -> None:
        """See ``view_lite``."""
        self._read(INT64_MAX)
        self._names.build(self._columns.nexts)
        end = self._units.end
        last = self._units.unit(end - 1) if end else None
        self._topics.newest_physical = 0 if last is None else last.physical_offset

    def open(self, dispatched_to: int) -> None:
        """See ``open_lite``."""
        self._finish(*self._read(dispatched_to))

    def _read(self, dispatched_to: int) -> tuple[int, int]:
        """Reads the rows as of the cut; returns the cut and the end of the units."""
        topics, names, columns, units = self._topics, self._names, self._columns, self._units
        names.load()
        units.load()
        head = read_table(self._files, topics.table_path, columns)
        synced_units, synced_bytes, first = topics.synced_file.read()
        if len(names) < head.names or len(names.blob) < max(head.names_bytes, synced_bytes):
            raise StoreDamagedError(f"{topics.path}/names", len(names.blob), "names are missing", _ADVICE)
        columns.resize(len(names))
        if units.first > min(head.from_unit, first):
            raise StoreDamagedError(units.segments.path, 0, "the oldest units are missing", _ADVICE)
        end = self._find_end(head.from_unit)
        if end < max(head.to_unit, synced_units):
            raise StoreDamagedError(units.segments.path, end * LITE_UNIT_BYTES, "synced units are missing", _ADVICE)
        units.end = end
        cut = self._cell_from(dispatched_to)
        if cut < head.to_unit:
            self._go_back(cut)
        checksums = array("I", bytes(4 * len(names)))
        if end > head.from_unit:
            checksum_names(names.blob, memoryview(names.blob), names.positions, 0, checksums, crc32)
        self._apply(head.from_unit, cut, False, checksums)
        self._apply(max(head.from_unit, cut), end, True, checksums)
        topics.table_from = head.from_unit
        topics.is_complete = True
        newest = units.unit(end - 1) if end else None
        topics.repeated_to = max(head.repeated_to, 0 if newest is None else newest.physical_offset)
        return cut, end

    def _finish(self, cut: int, end: int) -> None:
        """Makes the cut durable. The ids of names that only lost units had are given again."""
        topics, names, columns, units = self._topics, self._names, self._columns, self._units
        count = len(names)
        unused = columns.nexts.count(0)
        is_sparse = names.entries - (count - unused) > max(count - unused, _SPARE_ENTRIES)
        if is_sparse:
            names.compact(columns.nexts)
        if cut < end or self._has_data(end) or is_sparse:
            head = TableHead(count, len(names.blob), cut, cut, topics.repeated_to)
            write_table(self._files, topics.table_path, head, encode_parts(columns, count))
            topics.synced_file.write(cut, len(names.blob), units.first)
            topics.table_from = cut
            units.cut(cut)
        if is_sparse:
            names.replace()
        if unused:
            topics.dead.extend((cut, name_id) for name_id, following in enumerate(columns.nexts) if following == 0)
        units.synced = cut
        topics.gone_to = units.first
        last = units.unit(cut - 1) if cut else None
        topics.newest_physical = 0 if last is None else last.physical_offset
        names.build(columns.nexts)
        topics.live = array("q", bytes(8 * len(names.parent_names)))
        count_live(columns.nexts, columns.starts, names.parents, topics.live)

    def _has_data(self, cell: int) -> bool:
        """Whether anything follows the units."""
        position = cell * LITE_UNIT_BYTES
        for file in self._units.segments.files:
            at = max(position - file.start, 0)
            if at < file.size and file.data_end(at) > at:
                return True
        return False

    def _find_end(self, cell: int) -> int:
        """Returns the cell after the last good unit, from ``cell`` on."""
        physical_offset = 0
        while (file := self._units.segments.find(cell * LITE_UNIT_BYTES)) is not None:
            at = cell * LITE_UNIT_BYTES - file.start
            data_end = file.data_end(at)  # reads this part from the disk
            limit = min(-(-data_end // LITE_UNIT_BYTES) * LITE_UNIT_BYTES, file.size)
            stop, physical_offset = check_units(
                file.map.buffer, file.map.view, at, limit, len(self._names), physical_offset, crc32
            )
            cell = (file.start + stop) // LITE_UNIT_BYTES
            if stop < file.size:
                break
        return cell

    def _cell_from(self, physical_offset: int) -> int:
        """Returns the cell of the first unit whose record lies at ``physical_offset`` or behind it."""
        low, high = self._units.first, self._units.end
        while low < high:
            middle = (low + high) // 2
            unit = self._units.unit(middle)
            if unit is None:
                raise StoreDamagedError(
                    self._units.segments.path, middle * LITE_UNIT_BYTES, "a unit is damaged", _ADVICE
                )
            if unit.physical_offset < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _go_back(self, cut: int) -> None:
        """Takes units from ``cut`` on out of the rows."""
        columns, rows, first = self._columns, array("I", bytes(4 * _ROWS_AT_ONCE)), 0
        while first < len(columns):
            first, count = rows_above(columns.lasts, cut, first, rows)
            for name_id in rows[:count]:
                cell = columns.lasts[name_id] - 1
                while cell >= cut:
                    unit = self._units.unit(cell)
                    if unit is None:
                        raise StoreDamagedError(
                            self._units.segments.path, cell * LITE_UNIT_BYTES, "a unit is damaged", _ADVICE
                        )
                    columns.nexts[name_id] = max(unit.queue_offset, columns.starts[name_id])
                    cell = cell - unit.back if unit.back else -1
                columns.lasts[name_id] = cell + 1

    def _apply(self, cell: int, end: int, marks_only: bool, checksums: array[int]) -> None:
        """Brings the rows up to date with the units from ``cell`` to ``end`` (excluded)."""
        columns = self._columns
        while cell < end:
            file = self._units.segments.find(cell * LITE_UNIT_BYTES)
            assert file is not None
            limit = min(end * LITE_UNIT_BYTES, file.end) - file.start
            apply_units(
                file.map.buffer,
                cell * LITE_UNIT_BYTES - file.start,
                limit,
                cell,
                marks_only,
                columns.nexts,
                columns.starts,
                columns.lasts,
                columns.times,
                checksums,
            )
            cell = (file.start + limit) // LITE_UNIT_BYTES
