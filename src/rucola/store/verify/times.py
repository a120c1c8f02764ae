"""Checks the store times along a log: a time that is not between the times of its neighbours is damaged.

Times never decrease, unless the clock was set back; then the following times continue from the lower time.
Differences of up to a minute are not reported.
"""

from __future__ import annotations

from array import array

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.store.log.mapped_file import MappedFile
from rucola.store.verify.findings import FindingKind, Findings

_CLOCK_STEP_MS = 60_000
_NEIGHBOURS = 2
"""A doubtful store time is damaged if the times of this many records on each side of it agree with each other."""


class StoreTimes:
    """Checks store times.

    Attributes:
        last_ms: store time of the newest record whose time is not damaged.
        wrong: physical offsets of the records whose time is damaged.
    """

    def __init__(self, found: Findings) -> None:
        self.last_ms = 0
        self.wrong: set[int] = set()
        self._newest_ms = 0
        self._found = found
        self._doubtful: tuple[MappedFile, int, int] | None = None
        self._run = self._following = 0

    @property
    def newest_ms(self) -> int:
        """Latest store time of all records, not counting damaged times."""
        return self._newest_ms if self._doubtful is None else max(self._newest_ms, self._doubtful[2])

    def take(self, file: MappedFile, table: array[int], rows: int) -> None:
        """Checks records in the order of the log."""
        times = table[RecordColumn.STORE_TIMESTAMP : rows * ROW_WIDTH : ROW_WIDTH]
        tame = self._doubtful is None and min(times) >= max(self.last_ms - _CLOCK_STEP_MS, 1)
        if tame and max(times) <= self.last_ms + _CLOCK_STEP_MS:
            self.last_ms = times[-1]
            self._run += rows
            self._newest_ms = max(self._newest_ms, *times)
            return
        for row, time_ms in enumerate(times):
            self._take(file, table[row * ROW_WIDTH], time_ms)

    def _take(self, file: MappedFile, position: int, time_ms: int) -> None:
        follows = time_ms > 0 and abs(time_ms - self.last_ms) <= _CLOCK_STEP_MS
        if self._doubtful is not None:
            if follows:
                self._follow(time_ms)
                return
            # The doubtful time was right: the clock was set, or no message was stored for a while.
            self.last_ms, self._doubtful, self._run = self._doubtful[2], None, 0
            self._newest_ms = max(self._newest_ms, self.last_ms)
            follows = time_ms > 0 and abs(time_ms - self.last_ms) <= _CLOCK_STEP_MS
        if time_ms <= 0:
            self._report(file, position, time_ms)
        elif follows or self._run < _NEIGHBOURS:
            self._run = self._run + 1 if follows else 0
            self.last_ms = time_ms
            self._newest_ms = max(self._newest_ms, time_ms)
        else:
            self._doubtful, self._following = (file, position, time_ms), 0

    def _follow(self, time_ms: int) -> None:
        """Handles a record that follows a record with a doubtful time; the next times are compared with ``time_ms``."""
        assert self._doubtful is not None
        self.last_ms = time_ms
        self._newest_ms = max(self._newest_ms, time_ms)
        self._following += 1
        if self._following == _NEIGHBOURS:
            self._report(*self._doubtful)
            self._doubtful = None

    def _report(self, file: MappedFile, position: int, time_ms: int) -> None:
        self.wrong.add(file.start + position)
        detail = f"the record states store time {time_ms}, the previous record {self.last_ms}"
        self._found.add(FindingKind.STORE_TIME, file.path, position, detail)
