"""Compares the file ``checkpoint`` with the log.

Each of the file's three times is the store time of a record: the newest synced record, the newest record with an entry
in its queue, or the last record in a full index file. The times may lag behind the log; only a time that no record has
is wrong.
"""

from __future__ import annotations

from array import array

from rucola.common.columns import ROW_WIDTH
from rucola.common.kernel_columns import RECORD_STORE_TIMESTAMP
from rucola.formats.checkpoint import CHECKPOINT, CHECKPOINT_BYTES, NEWER_BYTES, StoreCheckpoint
from rucola.runtime.files import Files
from rucola.store.verify.findings import FindingKind, Findings
from rucola.store.verify.log import LogCheck

_FIELD_BYTES = 8


class CheckpointCheck:
    """The check of a checkpoint, which is read before the walk over the log.

    Attributes:
        index_ms: end time of the last full index file; 0 if no record in the log has this time.

    Args:
        path: path of the file.
        log: the log that is checked; the caller passes its records to ``rows``, in order.
        gaps: whether a repair has removed damaged records from the log.
        live: whether the store is in use.
    """

    def __init__(self, files: Files, path: str, found: Findings, log: LogCheck, gaps: bool, live: bool) -> None:
        self._path = path
        self._found = found
        self._log = log
        self._gaps = gaps
        self._live = live
        self._data = files.read_file(path)
        self._checkpoint = StoreCheckpoint.decode(self._data or b"")
        self._first_ms = -1
        self._unseen = {getattr(self._checkpoint, name) for name in _names("timestamp_ms")}

    @property
    def index_ms(self) -> int:
        """End time of the last full index file, if a record in the log has this time; otherwise 0."""
        time_ms = self._checkpoint.index_msg_timestamp_ms
        return 0 if time_ms in self._unseen or time_ms <= self._first_ms else time_ms

    def rows(self, table: array[int], rows: int) -> None:
        """Looks for the checkpoint's times among the store times of records."""
        times = table[RECORD_STORE_TIMESTAMP : rows * ROW_WIDTH : ROW_WIDTH]
        if self._first_ms < 0:
            self._first_ms = times[0]
        self._unseen.difference_update(times)

    def finish(self) -> None:
        """Reports the faults, after the walk over the log."""
        data, log = self._data, self._log
        if data is None:
            if log.records:
                self._found.add(FindingKind.CHECKPOINT, self._path, 0, "there is no such file")
            return
        if len(data) != CHECKPOINT_BYTES:
            self._add(min(len(data), CHECKPOINT_BYTES), f"{len(data)} bytes, not {CHECKPOINT_BYTES}")
        known = CHECKPOINT.size + NEWER_BYTES
        rest = data[known:CHECKPOINT_BYTES]
        if any(rest):
            self._add(known + len(rest) - len(rest.lstrip(b"\0")), "bytes after the fields are not zero")
        for name in _names(""):
            if CHECKPOINT.position(name) + _FIELD_BYTES > len(data):
                return  # the file ends before this field
            check = self._check_time if name.endswith("timestamp_ms") else self._check_offset
            check(name, getattr(self._checkpoint, name))

    def _check_time(self, name: str, time_ms: int) -> None:
        """Checks one time. A time later than the log's newest record is not reported if the log itself shows that
        records may be lost.
        """
        log = self._log
        position, newest_ms = CHECKPOINT.position(name), log.times.newest_ms
        if time_ms < 0:
            self._add(position, f"{name} is {time_ms}")
        elif not log.records or self._live:
            return
        elif time_ms > newest_ms:
            if log.sound_tail:
                self._add(position, f"{name} is {time_ms}, but the log only reaches {newest_ms}")
        elif time_ms and time_ms in self._unseen and log.intact and not (self._gaps or self._may_have_expired(time_ms)):
            self._add(position, f"{name} is {time_ms}, but no record has this time")

    def _may_have_expired(self, time_ms: int) -> bool:
        return self._log.start > 0 and time_ms <= self._first_ms

    def _check_offset(self, name: str, offset: int) -> None:
        log, position = self._log, CHECKPOINT.position(name)
        if offset < 0:
            self._add(position, f"{name} is {offset}")
        elif self._live or not log.records or offset <= log.start:
            return
        elif offset > log.end:
            # ``master_flushed_offset`` may be beyond the end, because a slave's log may be shorter than its master's.
            if name == "confirm_physical_offset" and log.sound_tail:
                self._add(position, f"{name} is {offset}, but the log only reaches {log.end}")
        elif not log.damaged(offset) and not log.is_border(offset):
            self._add(position, f"{name} is {offset}, where no record begins or ends")

    def _add(self, position: int, detail: str) -> None:
        self._found.add(FindingKind.CHECKPOINT, self._path, position, detail)


def _names(ending: str) -> list[str]:
    return [field.name for field in CHECKPOINT.fields if field.name.endswith(ending)]
