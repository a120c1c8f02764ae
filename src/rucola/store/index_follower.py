"""Adds dispatched records to the index, and lets the index fall behind when the disk has no space for it.

Without space for an index file, messages are still sent, stored and delivered, but are not found by key. Once there is
space, the missing keys are read from the log and put into the index. Everything runs on the dispatching thread, except
``retry``.
"""

from __future__ import annotations

import logging
from array import array

from rucola.common.columns import new_table
from rucola.errors import DiskError, ResourceError
from rucola.formats.checksum import crc32
from rucola.formats.message import ROWS_MAX, walk_records
from rucola.runtime.logs import event
from rucola.store.index.index_service import IndexService
from rucola.store.log.log_reader import LogReader
from rucola.store.log.mapped_file import MappedFile

logger = logging.getLogger(__name__)
_BATCHES = 8
"""Largest number of record batches whose keys one retry puts into the index; they take a few milliseconds."""


class IndexFollower:
    """Keeps the index up to date with dispatch.

    Attributes:
        missing_from: physical offset of the first record whose keys are missing; None if there is none.
        due: whether to try again to put the missing keys.
    """

    def __init__(self, log: LogReader, index: IndexService) -> None:
        self.missing_from: int | None = None
        self.due = False
        self._log = log
        self._index = index

    def put(self, file: MappedFile, table: array[int], rows: int, begin: int) -> None:
        """Puts the keys of records that were just dispatched. The first record lies at physical offset ``begin``.

        Raises:
            DiskError: a sync failed.
        """
        if self.missing_from is None and not self._put(file, table, rows):
            self.missing_from = begin

    def retry(self) -> bool:
        """Requests another attempt; returns False if no keys are missing. Any thread may call it."""
        if self.missing_from is None:
            return False
        self.due = True
        return True

    def catch_up(self, end: int) -> None:
        """Puts some of the missing keys; ``due`` says whether to call again.

        Args:
            end: physical offset up to which records were dispatched.
        """
        assert self.missing_from is not None
        table = new_table(ROWS_MAX)
        # Expired records need no keys.
        position = max(self.missing_from, self._log.min_offset)
        for _ in range(_BATCHES):
            file = self._log.segments.find(position) if position < end else None
            if file is None:
                self.missing_from, self.due = None, False
                event(logger, logging.INFO, "messages are found by key again", offset=position)
                return
            segment, start = file.map, file.start
            limit = min(end - start, file.size)
            first = position - start
            rows, following, _ = walk_records(
                segment.buffer, segment.view, first, limit, start, table, ROWS_MAX, crc32, 0
            )
            if rows and not self._put(file, table, rows):
                self.due = False
                break
            # The last record of a segment is followed only by a blank record.
            position = start + following if rows else file.end
        self.missing_from = position

    def _put(self, file: MappedFile, table: array[int], rows: int) -> bool:
        try:
            self._index.put_rows(file.map.buffer, table, rows, file.start)
        except DiskError as error:
            if error.operation in ("sync", "sync directory") and not isinstance(error, ResourceError):
                raise  # the data that the failed sync covered may be lost
            if self.missing_from is None:
                event(logger, logging.ERROR, "messages are not found by key for now", error=error)
            return False
        return True
