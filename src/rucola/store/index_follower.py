"""Lets the index follow the dispatched part of the log, and stay behind where the disk does not let it.

Without space for an index file messages are sent, stored and delivered as ever; only their keys are not found. What is
missing is put from the log once there is space. On the thread that dispatches, but for ``retry``.
"""

from __future__ import annotations

import logging
from array import array

from rucola.common.columns import new_table
from rucola.errors import DiskError
from rucola.formats.checksum import crc32
from rucola.formats.message import walk_records
from rucola.runtime.logs import event
from rucola.store.index.index_service import IndexService
from rucola.store.log.log_reader import LogReader
from rucola.store.log.mapped_file import MappedFile

_log = logging.getLogger(__name__)
_ROWS_MAX = 512
_BATCHES = 8
"""Read again in one go; takes a few milliseconds."""


class IndexFollower:
    """See the module.

    Attributes:
        missing_from: physical offset of the first record whose keys are missing, None when none is.
        due: another try shall be made.
    """

    def __init__(self, log: LogReader, index: IndexService) -> None:
        self.missing_from: int | None = None
        self.due = False
        self._log = log
        self._index = index

    def put(self, file: MappedFile, table: array[int], rows: int, begin: int) -> None:
        """Puts the keys of records that were just dispatched, the first of them at physical offset ``begin``.

        Raises:
            DiskError: a sync failed.
        """
        if self.missing_from is None and not self._put(file, table, rows):
            self.missing_from = begin

    def retry(self) -> bool:
        """Asks for another try; False when nothing is missing. Any thread."""
        if self.missing_from is None:
            return False
        self.due = True
        return True

    def catch_up(self, end: int) -> None:
        """Puts keys that are missing, not many at once; ``due`` says whether to call again.

        Args:
            end: physical offset up to which records were dispatched.
        """
        assert self.missing_from is not None
        table = new_table(_ROWS_MAX)
        # What has expired meanwhile is not found by key either.
        position = max(self.missing_from, self._log.min_offset)
        for _ in range(_BATCHES):
            file = self._log.queue.find(position) if position < end else None
            if file is None:
                self.missing_from, self.due = None, False
                event(_log, logging.INFO, "messages are found by key again", offset=position)
                return
            segment, start = file.segment, file.start
            limit = min(end - start, file.size)
            first = position - start
            rows, following, _ = walk_records(
                segment.buffer, segment.view, first, limit, start, table, _ROWS_MAX, crc32, 0
            )
            if rows and not self._put(file, table, rows):
                self.due = False
                break
            # Behind the last record of a segment there is only its blank.
            position = start + following if rows else file.end
        self.missing_from = position

    def _put(self, file: MappedFile, table: array[int], rows: int) -> bool:
        try:
            self._index.put_rows(file.segment.buffer, table, rows, file.start)
        except DiskError as error:
            if error.operation in ("sync", "sync directory"):
                raise  # what it covered may be lost
            if self.missing_from is None:
                event(_log, logging.ERROR, "messages are not found by key for now", error=error)
            return False
        return True
