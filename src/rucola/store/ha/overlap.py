"""Compares the end of a slave's log with what its master sends.

The stream between them names no log. A master that was rebuilt, or that lost its newest messages in a power cut and
wrote on, would feed a slave with bytes of another log. So each connection begins with bytes that the slave has.
"""

from __future__ import annotations

import hashlib

from rucola.store.log.log_reader import LogReader

OVERLAP_BYTES = 64 * 1024
"""Number of bytes that are compared: at most so many, but at least the newest record."""


class Overlap:
    """One comparison, from ``start`` up to ``end``.

    What stands in the log in place of damaged records (its gaps) is not compared. Neither are the bytes behind the
    header of a blank record, which mean nothing, and which a power cut may have taken from the slave: those are written
    again, as the master sends them, if all before them is equal.

    Attributes:
        position: physical offset of the next byte to compare.
        start, end: physical offsets of the first byte and after the last one.

    Args:
        log: the slave's log.
        rest: start and end of the bytes behind the header of a blank record; equal if there are none.
    """

    def __init__(self, log: LogReader, start: int, end: int, rest: tuple[int, int]) -> None:
        self.start, self.end, self.position = start, end, start
        self._log = log
        self._rest = rest
        self._skipped = sorted([*((gap.start, gap.end) for gap in log.gaps), rest])
        self._ours, self._theirs = hashlib.sha256(), hashlib.sha256()

    def take(self, content: memoryview) -> int:
        """Compares the bytes that the master sends next; returns how many of them lie before ``end``.

        Raises:
            DiskError: the slave's own bytes cannot be read or written.
        """
        taken = 0
        while taken < len(content) and self.position < self.end:
            stop, is_compared = self._piece(self.position + len(content) - taken)
            piece = content[taken : taken + stop - self.position]
            if is_compared:
                self._ours.update(self._own(self.position, len(piece)))
                self._theirs.update(piece)
            elif self._rest[0] <= self.position < self._rest[1] and self.is_equal:
                self._write(piece)
            self.position += len(piece)
            taken += len(piece)
        return taken

    @property
    def is_complete(self) -> bool:
        """Whether all bytes have been compared."""
        return self.position == self.end

    @property
    def digests(self) -> tuple[str, str]:
        """SHA-256 of the slave's bytes and of the master's, as far as they were compared."""
        return self._ours.hexdigest(), self._theirs.hexdigest()

    @property
    def is_equal(self) -> bool:
        """Whether all bytes compared so far are equal."""
        ours, theirs = self.digests
        return ours == theirs

    def _piece(self, wanted: int) -> tuple[int, bool]:
        """Returns up to which offset, ``wanted`` at most, the next bytes are treated alike, and whether they are
        compared.
        """
        at, stop = self.position, min(wanted, self.end)
        file = self._log.segments.find(at)
        if file is not None:
            stop = min(stop, file.end)
        for start, end in self._skipped:
            if start <= at < end:
                return min(stop, end), False
            if at < start < end:
                stop = min(stop, start)
        return stop, True

    def _own(self, physical_offset: int, length: int) -> bytes:
        file = self._log.segments.find(physical_offset)
        return b"" if file is None else file.map.read(physical_offset - file.start, length)

    def _write(self, piece: memoryview) -> None:
        file = self._log.segments.find(self.position)
        if file is not None:
            file.map.write(self.position - file.start, piece)
