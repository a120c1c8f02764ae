"""Repairs a damaged store so that it can be served without the damaged parts (start-up with the option
``--quarantine``).

No byte is lost: overwritten bytes are first copied to ``quarantine/``, and unknown files are moved there. Afterwards
the log has no holes, so RocketMQ can read it as well. A damaged part becomes one record that belongs to no queue (a
rolled-back message). If the damage reaches the end of a segment, a blank record fills the rest of the segment instead,
as at the end of every full segment. An interrupted repair reaches the same result when it runs again. A repair runs
before recovery, on the same thread.
"""

from __future__ import annotations

import logging
from itertools import pairwise

from rucola.common.columns import RecordColumn, WalkStop, new_table
from rucola.common.message import StoreMessage
from rucola.errors import StoreDamagedError
from rucola.formats.checksum import crc32
from rucola.formats.message import (
    BLANK,
    CHECK_ALL,
    MAGIC_BLANK,
    RECORD_HEAD,
    encode_message,
    walk_records,
    write_blank,
)
from rucola.formats.record_search import MAGIC_BYTES, MAGIC_POSITION, RECORD_MAGICS, find_record
from rucola.formats.segment_name import segment_name, segment_start
from rucola.runtime.file_map import PAGE_BYTES
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.log.checked_walk import CheckedWalk
from rucola.store.log.log_reader import Gap, LogReader
from rucola.store.log.mapped_file import MappedFile
from rucola.store.log.segment_list import REBUILD_MARK, SegmentList
from rucola.store.recovery.quarantine import Quarantine

logger = logging.getLogger(__name__)
_TABLE_ROWS = 512
_ROLLBACK = 12
_TOPIC = b"%"
_HOST = bytes(8)
_COPY_BYTES = 1 << 20
_MISSING_MAX = 64
"""Largest number of consecutive missing segments; if more are missing, the file after them is assumed to have a wrong
name.
"""


def filler(size: int, physical_offset: int, store_timestamp_ms: int) -> bytes:
    """Returns a record of ``size`` bytes that belongs to no queue and no index; ``size`` is at least
    ``FILLER_BYTES_MIN``.
    """
    body = bytes(size - FILLER_BYTES_MIN)
    message = StoreMessage(_TOPIC, 0, body, b"", store_timestamp_ms, _HOST, sys_flag=_ROLLBACK)
    return encode_message(message, physical_offset, 0, store_timestamp_ms, _HOST)


FILLER_BYTES_MIN = len(encode_message(StoreMessage(_TOPIC, 0, b"", b"", 0, _HOST, sys_flag=_ROLLBACK), 0, 0, 0, _HOST))


def repair_layout(files: Files, segments: SegmentList, quarantine: Quarantine) -> None:
    """Makes the directories of the log hold consecutive whole segments: moves unknown files away, and creates empty
    segments for missing ones.
    """
    starts: list[int] = []
    places = segments.list_files()
    for directory, name, length in places:
        path, start = f"{directory}/{name}", segment_start(name)
        prefix = directory.rpartition("/")[2]
        if name.removesuffix(".tmp") == REBUILD_MARK:
            continue  # the log refuses to open with this file
        if start is None or start % segments.segment_bytes:
            quarantine.move(path, f"{prefix}-{name}", "not a segment")
            continue
        if length == 0 and path == "/".join(places[-1][:2]):
            continue
        if length == 0:
            quarantine.move(path, f"{prefix}-{name}", "empty")
            continue
        if length != segments.segment_bytes:
            moved = quarantine.move(path, f"{prefix}-{name}", f"{length} bytes, not {segments.segment_bytes}")
            _copy(
                files,
                moved,
                segments.create(start),
                _whole_to(files, moved, start, min(length, segments.segment_bytes)),
            )
        starts.append(start)
    for before, after in pairwise(starts):
        missing = range(before + segments.segment_bytes, after, segments.segment_bytes)
        if len(missing) > _MISSING_MAX:
            raise StoreDamagedError(
                f"{segments.path}/{segment_name(after)}",
                0,
                f"{len(missing)} segments before it are missing",
                "move the file away",
            )
        for start in missing:
            # Recovery would treat an empty segment as the end of the log.
            files.write_at(segments.create(start), 0, BLANK.pack(segments.segment_bytes, MAGIC_BLANK))
            gap = Gap(start, start + segments.segment_bytes)
            quarantine.record_gap(gap)
            _tell(gap, "no segment")


class LogRepair:
    """Fills the damaged parts of a log. Call ``repair`` repeatedly until recovery finds no more damage."""

    def __init__(self, log: LogReader, quarantine: Quarantine) -> None:
        self._log = log
        self._quarantine = quarantine

    def repair(self, damaged_at: int, durable_to: int, reason: str) -> None:
        """Fills the log from the bad record at ``damaged_at`` up to the next sound record. Segments on the way that
        hold no sound record are filled whole.

        Args:
            durable_to: physical offset up to which the log was synced. If no sound record follows the damage, the log
                continues in the first later segment that begins at or after this offset.
        """
        segments = self._log.segments
        if not segments.files:
            # The whole log is gone. The new one begins at an offset that was never used.
            segments.append(durable_to - durable_to % -segments.segment_bytes)
            self._fill_record(Gap(0, segments.start), reason)
            return
        while True:
            file = segments.find(damaged_at)
            if file is None:
                file = segments.append(damaged_at)
            position = damaged_at - file.start
            following = self._next_sound(file, position + FILLER_BYTES_MIN)
            if following is not None:
                self._fill_record(Gap(damaged_at, file.start + following), reason)
                return
            self._end_segment(file, position, reason)
            damaged_at = file.end
            following_file = segments.find(damaged_at)
            if following_file is None and damaged_at >= durable_to:
                # A blank record at the end of the last segment would be overwritten by the next append.
                segments.append(damaged_at)
                return
            if following_file is not None:
                if self._is_sound(following_file, 0):
                    return
                if damaged_at >= durable_to and not self._sound_behind(damaged_at):
                    return

    def _next_sound(self, file: MappedFile, position: int) -> int | None:
        """Returns the position of the first sound record at or after ``position`` in the segment."""
        buffer = file.map.buffer
        at = position + MAGIC_POSITION
        while at < file.size:
            end = file.map.readable_end(at, min(at + _COPY_BYTES, file.size))
            found = find_record(buffer, at - MAGIC_POSITION, end)
            if found < 0:
                # The segment is searched in pieces, and a magic number may lie across the boundary between two pieces.
                # Unreadable parts are skipped page by page.
                at = (
                    max(end - 3, at + 1)
                    if end == min(at + _COPY_BYTES, file.size)
                    else end + PAGE_BYTES - end % PAGE_BYTES
                )
                if end == file.size:
                    return None
                continue
            if self._is_sound(file, found):
                return found
            at = found + MAGIC_POSITION + 1
        return None

    def _is_sound(self, file: MappedFile, position: int) -> bool:
        return CheckedWalk(new_table(1), self._log.stretches).walk(file, position, CHECK_ALL)[0] == 1

    def _sound_behind(self, offset: int) -> bool:
        return any(file.start >= offset and self._is_sound(file, 0) for file in self._log.segments.files)

    def _fill_record(self, gap: Gap, reason: str) -> None:
        file = self._log.segments.find(gap.start)
        if file is not None:
            first, last = gap.start - file.start, gap.end - file.start
            self._quarantine.keep(gap.start, _read_around(file, first, last), gap.start, reason)
            record = filler(last - first, gap.start, self._time_at(file, last))
            self._record(gap, reason)
            # The record is written by a system call, which can overwrite a whole page even if the page cannot be read.
            file.map.write(first, record)
            file.sync()
        else:
            self._record(gap, reason)

    def _end_segment(self, file: MappedFile, position: int, reason: str) -> None:
        content = _read_around(file, position, file.size).rstrip(b"\0")
        if content:
            self._quarantine.keep(file.start + position, content, file.start + position, reason)
        self._record(Gap(file.start + position, file.end), reason)
        # Allocates blocks first, because on a full disk a write into a hole of a copied segment could kill the process.
        file.map.allocate(position - position % 4096, BLANK.size + position % 4096)
        if content:
            file.map.write(position, bytes(len(content)))
        write_blank(file.map.buffer, position, file.size - position)
        file.sync()

    def _record(self, gap: Gap, reason: str) -> None:
        self._log.gaps = self._quarantine.record_gap(gap)
        _tell(gap, reason)

    def _time_at(self, file: MappedFile, position: int) -> int:
        """Returns the store time of the sound record at ``position``. Store times must not decrease along the log."""
        segment, table = file.map, new_table(1)
        walk_records(segment.buffer, segment.view, position, file.size, file.start, table, 1, crc32, 0)
        return table[RecordColumn.STORE_TIMESTAMP]


def _read_around(file: MappedFile, first: int, last: int) -> bytes:
    """Returns the bytes from ``first`` to ``last`` (excluded) of a segment, with zeros in place of bytes that the disk
    cannot read.
    """
    content, at = bytearray(last - first), first
    while at < last:
        end = file.map.readable_end(at, last)
        for start in range(at, end, _COPY_BYTES):
            stop = min(start + _COPY_BYTES, end)
            content[start - first : stop - first] = file.map.read(start, stop - start)
        at = end + PAGE_BYTES - end % PAGE_BYTES if end < last else last
    return bytes(content)


def _whole_to(files: Files, path: str, start: int, length: int) -> int:
    """Returns how many of the first ``length`` bytes of a segment to copy: all of them, or only those before a record
    that extends beyond ``length``. The copy pads such a record with zeros, so that it might look whole, because the
    properties in RocketMQ's records have no checksum.
    """
    file = MappedFile(files, path, start, files.size(path), False, 0)
    segment, table, position = file.map, new_table(_TABLE_ROWS), 0
    try:
        while position < length:
            _, behind, stop = walk_records(
                segment.buffer, segment.view, position, length, start, table, _TABLE_ROWS, crc32, CHECK_ALL
            )
            if stop == WalkStop.TORN:
                head = bytes(segment.view[behind : min(behind + RECORD_HEAD.size, length)])
                magic = head[MAGIC_POSITION : MAGIC_POSITION + MAGIC_BYTES]
                if magic in RECORD_MAGICS and int.from_bytes(head[:4], "big") > length - behind:
                    return behind
                following = find_record(segment.buffer, behind + 1, length)
                if following < 0:
                    return length
            elif stop != WalkStop.TABLE_FULL:
                return length
            else:
                following = behind
            position = following
        return length
    finally:
        file.close()


def _copy(files: Files, source: str, target: str, length: int) -> None:
    """Copies the first ``length`` bytes of a file into an existing segment."""
    for start in range(0, length, _COPY_BYTES):
        files.write_at(target, start, files.read_at(source, start, min(_COPY_BYTES, length - start)))


def _tell(gap: Gap, reason: str) -> None:
    event(
        logger,
        logging.ERROR,
        "store is served without a part of the log",
        start=gap.start,
        end=gap.end,
        reason=reason,
    )
