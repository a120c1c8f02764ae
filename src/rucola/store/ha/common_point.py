"""Finds the last record that a slave and its master have in common, when their logs part.

A master sends its log from any byte on, so a connection compares one record. The search goes back from the end of the
slave's log in growing steps until a record is equal, and then halves the rest. At last, up to 64 KiB before the end of
the last equal record are compared as well; a single record that is equal by chance cuts nothing.

Where a master sends nothing, its log ends before that record, or has expired there: it has expired if the master has
bytes of a later record.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.formats.message import BLANK, ROWS_MAX
from rucola.store.ha.overlap import OVERLAP_BYTES, Overlap
from rucola.store.log.checked_walk import CheckedWalk
from rucola.store.log.log_reader import LogReader
from rucola.store.log.mapped_file import MappedFile


class CommonPoint:
    """A search over several connections. ``begin`` starts it; then each connection compares what ``comparison``
    returns, and tells the result.

    Attributes:
        is_searching: whether a search is under way.
        cut_offset: physical offset of the end of the last common record; -1 as long as it is unknown.

    Args:
        log: the slave's log, which does not change meanwhile, except that its oldest segments may expire.
    """

    def __init__(self, log: LogReader) -> None:
        self.is_searching = False
        self.cut_offset = -1
        self._log = log
        self._starts: _Starts | None = None
        self._begin_at(log.max_offset)

    def _begin_at(self, high: int) -> None:
        self._low = -1
        """End of the last record that is known to be equal; -1 if none is."""
        self._last = -1
        """Start of that record."""
        self._high = high
        """No record from here on is equal."""
        self._floor = self._log.min_offset
        """The master has nothing before this offset."""
        self._back = OVERLAP_BYTES
        self._has_later = self._halves = False
        self._probe: tuple[int, int] | None = None

    def begin(self) -> None:
        """Starts the search: the ends of the logs differ."""
        self.is_searching, self.cut_offset = True, -1
        self._begin_at(self._log.max_offset)

    def end(self) -> None:
        """Ends the search, with or without a result."""
        self.is_searching, self._starts = False, None

    def bound(self, min_offset: int, max_offset: int) -> None:
        """Notes where the master's log begins and ends, so that fewer questions need be asked."""
        self._floor = max(self._floor, min_offset)
        self._high = min(self._high, max_offset)
        if self._low < 0 and self._probe is not None and not self._floor <= self._probe[0] < self._high:
            self._probe = None

    def comparison(self) -> Overlap | None:
        """Returns what to compare on the next connection; None if the logs have no record in common."""
        log = self._log
        self._floor = max(self._floor, log.min_offset)
        if self._probe is None:
            self._probe = self._next()
        if self._probe is None:
            return None
        start, end = self._probe
        return Overlap(log, max(start, 1), end, (end, end))  # the master would take 0 for its newest segment

    def equal(self) -> None:
        """Notes that the bytes of the comparison are equal. ``cut_offset`` may be known then."""
        probe, self._probe = self._probe, None
        assert probe is not None
        if probe[1] == self._low:
            self.cut_offset = self._low
        else:
            self._last, self._low = probe
            self._has_later = True

    def different(self) -> None:
        """Notes that the bytes of the comparison differ."""
        probe, self._probe = self._probe, None
        assert probe is not None
        self._has_later = True
        if probe[1] == self._low:  # the last record is equal, but what is before it is not
            self._high, self._low = self._last, -1
        else:
            self._high = min(self._high, probe[0])

    def nothing_there(self) -> None:
        """Notes that the master has no bytes there, or not all of them."""
        if self._probe is None:
            return  # ``bound`` has told as much
        if self._has_later and self._low < 0:
            self._floor, self._halves = self._probe[1], True
            self._probe = None
        else:
            has_later = self._has_later
            self.different()
            self._has_later = has_later

    def _next(self) -> tuple[int, int] | None:
        """Returns start and end of what is compared next."""
        if self._low < 0:
            middle = (self._floor + self._high) // 2 if self._halves else self._high - self._back
            self._back *= 2
            return self._near(self._floor, max(middle, self._floor))
        found = self._near(self._low, (self._low + self._high) // 2)
        if found is not None:
            return found
        file = self._log.segments.find(self._last)
        assert file is not None, "the newest records have not expired"
        return max(min(max(self._low - OVERLAP_BYTES, self._floor), self._last), file.start), self._low

    def _near(self, low: int, at: int) -> tuple[int, int] | None:
        """Returns start and end of the last record that begins from ``low`` up to ``at``; if there is none, of the
        first one after that; None if none begins before ``_high``. Gaps have no records of the master.
        """
        at = min(at, self._high - 1)
        files = [file for file in self._log.segments.files if file.start < self._high and file.end > low]
        before = [file for file in files if file.start <= at]
        for file in reversed(before):
            starts = self._starts_of(file)
            for index in range(starts.count_to(at) - 1, starts.count_to(low - 1) - 1, -1):
                if not self._log.in_gap(starts.start(index)):
                    return starts.place(index)
        for file in [*before[-1:], *files[len(before) :]]:
            starts = self._starts_of(file)
            for index in range(starts.count_to(max(at, low - 1)), starts.count_to(self._high - 1)):
                if not self._log.in_gap(starts.start(index)):
                    return starts.place(index)
        return None

    def _starts_of(self, file: MappedFile) -> _Starts:
        if self._starts is None or self._starts.file is not file:
            self._starts = _Starts(file, self._log.max_offset)
        return self._starts


class _Starts:
    """Where the records of a segment begin, without the blank one.

    Args:
        log_end: physical offset of the end of the log.
    """

    def __init__(self, file: MappedFile, log_end: int) -> None:
        self.file = file
        self._positions = array("q")
        table, position = new_table(ROWS_MAX), 0
        walk = CheckedWalk(table)
        while file.start + position < min(file.end, log_end):
            rows, position, stop = walk.walk(file, position, 0)
            self._positions += table[RecordColumn.RECORD_POS : rows * ROW_WIDTH : ROW_WIDTH]
            if stop != WalkStop.TABLE_FULL:
                break
        del self._positions[bisect_left(self._positions, log_end - file.start) :]

    def count_to(self, physical_offset: int) -> int:
        """Number of records that begin at or before ``physical_offset``."""
        return bisect_right(self._positions, physical_offset - self.file.start)

    def start(self, index: int) -> int:
        """Physical offset of a record."""
        return self.file.start + self._positions[index]

    def place(self, index: int) -> tuple[int, int]:
        """Physical offsets of the start and the end of a record."""
        start, position = self.start(index), self._positions[index]
        size: int = BLANK.unpack(self.file.map.read(position, BLANK.size))[0]
        return start, start + size
