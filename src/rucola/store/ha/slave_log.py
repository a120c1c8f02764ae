"""A slave's log: takes the master's bytes as they come, and decides what they are.

Bytes are written where the master has them. The end of the log, which readers, dispatch, flush and reports follow,
moves only to the end of a checked record. A segment ends with a blank record; once all its bytes are there, the next
one begins.

A damaged record ends the connection, and its bytes are asked for again. If they come again unchanged, the master's disk
has them so: the record becomes a gap of the log. Its bytes go to ``quarantine/``, a record without message takes its
place (``recovery.repair``), and the copy goes on behind it. This needs a record before it and a next record that fits,
and a copy that may differ from its master: one that may become the master stops there.
"""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.formats.checksum import crc32
from rucola.formats.message import BLANK, CHECK_ALL, ROWS_MAX, walk_records
from rucola.runtime.logs import event
from rucola.store.ha.common_point import CommonPoint
from rucola.store.ha.overlap import OVERLAP_BYTES, Overlap
from rucola.store.ha.record_head import HEAD_BYTES, PROVING_BYTES, head_problem
from rucola.store.log.checked_walk import CheckedWalk
from rucola.store.log.commit_log import CommitLog
from rucola.store.log.log_reader import Gap
from rucola.store.log.mapped_file import MappedFile
from rucola.store.recovery.quarantine import Quarantine
from rucola.store.recovery.repair import FILLER_BYTES_MIN, filler

logger = logging.getLogger(__name__)
_ASKED_MAX = 10
"""Number of times that different bytes may come where a damaged record is; it is the stream that damages them then."""


class CopyVerdict(Enum):
    """What the bytes turned out to be."""

    SOUND = 0
    """Records, or the beginning of one."""
    ASK_AGAIN = 1
    """A damaged record; the same bytes should be asked for once more."""
    STUCK = 2
    """A damaged record that cannot be passed."""


class Damage(NamedTuple):
    """A damaged record.

    Attributes:
        size: its size in bytes; 0 if its head does not tell.
        problem: what is wrong with it.
        sha256: digest of its bytes, or of its first 8 if the size is unknown.
    """

    physical_offset: int
    size: int
    problem: str
    sha256: str


class SlaveLog:
    """The log of a slave. Used on the thread that owns the store.

    Attributes:
        received_offset: physical offset after the last byte that was written; at least ``end_offset``.
        damage: the damaged record that was met last; None if there was none.
        begun: whether the log has a beginning: a record, or the start that ``begin`` has set.

    Args:
        log: the loaded commit log.
        last_record: physical offset of the newest record; -1 if the log has none.
        start: makes an empty log begin at a physical offset, and prepares it for appends.
        wake: called when the end of the log has moved.
        flushed_offset: returns the physical offset up to which the log is synced.
        passes_damage: whether the copy goes on behind a record that its master has damaged.
    """

    def __init__(
        self,
        log: CommitLog,
        quarantine: Quarantine,
        last_record: int,
        start: Callable[[int], None],
        wake: Callable[[], None],
        flushed_offset: Callable[[], int],
        passes_damage: bool = True,
    ) -> None:
        self.received_offset = log.max_offset
        self.damage: Damage | None = None
        self.begun = not self._is_empty(log)
        self._log = log
        self._quarantine = quarantine
        self._last_record = last_record
        self._start = start
        self._wake = wake
        self._flushed_offset = flushed_offset
        self._passes_damage = passes_damage
        self._asked = 0
        self._table = new_table(ROWS_MAX)

    @staticmethod
    def _is_empty(log: CommitLog) -> bool:
        return not log.segments.files or log.max_offset == log.min_offset

    @property
    def is_empty(self) -> bool:
        """Whether the log has no record."""
        return self._is_empty(self._log)

    @property
    def min_offset(self) -> int:
        """Physical offset at which the log begins."""
        return self._log.min_offset

    @property
    def end_offset(self) -> int:
        """Physical offset after the newest checked record."""
        return self._log.max_offset

    @property
    def segment_bytes(self) -> int:
        """Length of a segment."""
        return self._log.segments.segment_bytes

    def begin(self, physical_offset: int, first_bytes: int) -> None:
        """Makes the empty log begin at ``physical_offset``, the start of a segment.

        Args:
            first_bytes: number of bytes at the beginning that the master will not send; they are zero.

        Raises:
            DiskError: the first segment cannot be created.
        """
        if not self.begun:
            self._start(physical_offset)
            self.begun = True
        self.received_offset = physical_offset + first_bytes

    def expect_again(self) -> None:
        """Forgets the bytes behind the last checked record: a new connection sends them again."""
        self.received_offset = self.end_offset

    def overlap(self) -> Overlap:
        """Returns the comparison with which a connection begins. The log has records.

        It begins at or before what is synced, because the master takes the first report, too, as a report.
        """
        log, end, last = self._log, self.end_offset, self._last_record
        file = log.segments.find(last)
        start = max(end - OVERLAP_BYTES, log.min_offset, 1)  # the master would take 0 for its newest segment
        rest = end, end
        if file is not None:
            start = max(min(max(start, file.start), last), 1)
            if file.end <= end and (size := self._size_at(file, last)):
                rest = min(last + size + BLANK.size, file.end), file.end
        return Overlap(log, max(min(start, self._flushed_offset()), log.min_offset, 1), end, rest)

    def common_point(self) -> CommonPoint:
        """Returns the search for the last record that a master has, too."""
        return CommonPoint(self._log)

    def begins_record(self, physical_offset: int) -> bool:
        """Whether a sound record, also a blank one, begins at ``physical_offset``, below the end of the log."""
        file = self._log.segments.find(physical_offset)
        if file is None:
            return False
        rows, _, stop = CheckedWalk(new_table(1)).walk(file, physical_offset - file.start, CHECK_ALL)
        return rows > 0 or stop == WalkStop.BLANK

    def append(self, content: memoryview) -> CopyVerdict:
        """Writes the bytes that follow ``received_offset``. ``check`` makes them part of the log.

        Raises:
            DiskError: they could not be written, or no next segment could be made.
        """
        while content:
            count = self._log.write_copy(self.received_offset, content)
            self.received_offset += count
            content = content[count:]
            if self.received_offset == self._log.segments.end:
                verdict = self.check()
                if verdict is not CopyVerdict.SOUND:
                    return verdict
        return CopyVerdict.SOUND

    def check(self) -> CopyVerdict:
        """Moves the end of the log over the records that are whole and sound. One call after several ``append`` costs
        less than a call after each.

        Raises:
            DiskError: no next segment could be made, or a damaged record could not be kept aside.
        """
        log, table, before = self._log, self._table, self.end_offset
        verdict = CopyVerdict.SOUND
        while True:
            file = log.segments.find(self.end_offset)
            assert file is not None
            segment, limit = file.map, self.received_offset - file.start
            position = self.end_offset - file.start
            rows, position, stop = walk_records(
                segment.buffer, segment.view, position, limit, file.start, table, ROWS_MAX, crc32, CHECK_ALL
            )
            if rows:
                self._publish(file.start + position, table, rows)
            if stop == WalkStop.TABLE_FULL:
                continue
            verdict = self._judge(file, position, stop)
            if verdict is not CopyVerdict.SOUND or not self._passed(file, position, limit, stop):
                break
        if self.end_offset > before:
            self._wake()
        return verdict

    def _publish(self, end: int, table: array[int], rows: int) -> None:
        row = (rows - 1) * ROW_WIDTH
        self._last_record = end - table[row + RecordColumn.RECORD_SIZE]
        self._log.publish_copy(end, table[row + RecordColumn.STORE_TIMESTAMP])
        self._asked = 0

    def _passed(self, file: MappedFile, position: int, limit: int, stop: int) -> bool:
        """Whether there is something to walk behind what the last walk met: a gap that ``_judge`` has made."""
        if stop == WalkStop.TORN:
            return self.end_offset > file.start + position
        if limit == file.size and stop in (WalkStop.BLANK, WalkStop.LIMIT):
            self._log.next_segment()
        return False

    def _judge(self, file: MappedFile, position: int, stop: int) -> CopyVerdict:
        """Decides about the bytes at which a walk stopped."""
        limit = self.received_offset - file.start
        if stop == WalkStop.LIMIT:
            return CopyVerdict.SOUND
        head = file.map.view[position : min(limit, position + HEAD_BYTES)]
        problem = head_problem(head, file.start + position, file.size - position)
        if stop == WalkStop.BLANK and not problem:
            return CopyVerdict.SOUND
        size = 0 if problem or len(head) < BLANK.size else BLANK.unpack(head)[0]
        if not problem:
            if not size or size > limit - position:
                return CopyVerdict.SOUND  # the rest has not arrived
            problem = "the record does not agree with its checksums or lengths"
        shown = file.map.view[position : position + (size or min(BLANK.size, len(head)))]
        damage = Damage(file.start + position, size, problem, hashlib.sha256(shown).hexdigest())
        return self._met(file, damage)

    def _met(self, file: MappedFile, damage: Damage) -> CopyVerdict:
        known, self.damage = self.damage, damage
        if known != damage:
            self._asked += 1
            event(
                logger,
                logging.WARNING,
                "damaged record received, asked for again",
                physical_offset=damage.physical_offset,
                size=damage.size,
                problem=damage.problem,
                sha256=damage.sha256,
            )
            return CopyVerdict.STUCK if self._asked > _ASKED_MAX else CopyVerdict.ASK_AGAIN
        if not self._passes_damage or damage.size < FILLER_BYTES_MIN or self._last_record < 0:
            return CopyVerdict.STUCK
        position = damage.physical_offset - file.start + damage.size
        following = file.map.view[position : min(self.received_offset - file.start, position + HEAD_BYTES)]
        problem = head_problem(following, file.start + position, file.size - position)
        if problem:
            return CopyVerdict.STUCK
        if len(following) >= PROVING_BYTES or position + len(following) == file.size:
            self._pass_over(file, damage)
        return CopyVerdict.SOUND

    def _pass_over(self, file: MappedFile, damage: Damage) -> None:
        """Makes a gap of a damaged record: keeps its bytes aside, and puts a record without message in their place."""
        start, size = damage.physical_offset, damage.size
        position = start - file.start
        content = bytes(file.map.view[position : position + size])
        reason = f"damaged on the master: {damage.problem}"
        self._quarantine.keep(start, content, start, reason)
        self._log.gaps = self._quarantine.record_gap(Gap(start, start + size))
        file.map.write(position, filler(size, start, self._log.store_timestamp_ms))
        self._last_record = start
        self._log.publish_copy(start + size, self._log.store_timestamp_ms)
        event(
            logger,
            logging.ERROR,
            "damaged record of the master passed over",
            physical_offset=start,
            size=size,
            problem=damage.problem,
            sha256=damage.sha256,
        )

    def _size_at(self, file: MappedFile, physical_offset: int) -> int:
        position = physical_offset - file.start
        size: int = BLANK.unpack(file.map.read(position, BLANK.size))[0]
        return size
