"""Decides which is wrong if an entry and its record contradict each other: the entry, or one field of the record.

The record is wrong if it differs from the entry in only one field, unless a second entry also points to the record and
has the topic, queue id and queue offset that the record states. In all other cases the first entry is wrong.

A single fault in a record can appear twice: as a record without an entry, and as an entry that its record contradicts.
The check reaches the record and the entry at different times. The decision about records without an entry is therefore
postponed until all entries are checked.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from rucola.common.columns import RecordColumn
from rucola.common.sysflag import PREPARED_BIT
from rucola.store.log.mapped_file import MappedFile
from rucola.store.verify.findings import FindingKind, Findings
from rucola.store.verify.log import LogCheck

_WAITING_MAX = 100_000
LeadsTo = Callable[[bytes, int, int, tuple[int, int]], bool]
"""Returns whether the entry with the given topic, queue id and queue offset points to the given physical offset and
size.
"""


class RecordIdentities:
    """Reconciles records with entries.

    Attributes:
        topics: the correct topic of each record that states a wrong topic, queue id or queue offset; the key is the
            record's physical offset.

    Args:
        leads_to: tells whether an entry points to a given record.
    """

    def __init__(self, found: Findings, log: LogCheck, leads_to: LeadsTo) -> None:
        self.topics: dict[int, bytes] = {}
        self._leads_to = leads_to
        self._found = found
        self._log = log
        self._waiting: dict[int, tuple[FindingKind, str, int, str, int]] = {}

    def wait(self, physical_offset: int, kind: FindingKind, place: tuple[str, int], detail: str, length: int) -> None:
        """Adds a postponed finding, which is dropped if a different entry proves to be the right one for the record."""
        if len(self._waiting) < _WAITING_MAX:
            self._waiting[physical_offset] = (kind, *place, detail, length)
        else:
            self._found.add(kind, *place, detail, length)

    def finish(self) -> None:
        """Decides about the postponed findings, after all entries are checked."""
        for physical_offset, finding in self._waiting.items():
            if physical_offset not in self.topics:
                self._found.add(*finding)
        self._waiting.clear()

    def is_right(self, topic: bytes, queue_id: int, queue_offset: int, place: tuple[int, int]) -> bool:
        """Whether an entry is right although its record states a different topic, queue id or queue offset. If so, the
        record is reported.

        An entry is also right if topic, queue id and queue offset agree, but the record's sysFlag marks the record as
        prepared or rolled back. Since such a record would have no entry, the sysFlag is wrong.
        """
        hit = None if self._log.damaged(place[0]) else self._log.row_at(place[0], 0)
        if hit is None or hit[1][RecordColumn.RECORD_SIZE] != place[1]:
            return False
        file, row = hit
        if row[RecordColumn.PHYSICAL_OFFSET] != place[0]:
            return False
        at = row[RecordColumn.TOPIC_POS]
        said = bytes(file.map.view[at : at + row[RecordColumn.TOPIC_LEN]])
        said_id, said_offset = row[RecordColumn.QUEUE_ID], row[RecordColumn.QUEUE_OFFSET]
        wrong = (said != topic) + (said_id != queue_id) + (said_offset != queue_offset)
        if wrong == 0:
            return self._has_wrong_state(file, row, queue_offset)
        if wrong > 1 or self._leads_to(said, said_id, said_offset, place):
            return False
        self.topics[place[0]] = topic
        if said != topic:
            kind, what = FindingKind.TOPIC, f"topic {said!r}"
        elif said_id != queue_id:
            kind, what = FindingKind.QUEUE_ID, f"queue id {said_id}"
        else:
            kind, what = FindingKind.QUEUE_OFFSET, f"queue offset {said_offset}"
        detail = f"the record states {what}, but entry {queue_offset} of {topic!r} {queue_id} points to it"
        self._found.add(kind, file.path, place[0] - file.start, detail)
        return True

    def _has_wrong_state(self, file: MappedFile, row: array[int], queue_offset: int) -> bool:
        """Whether a record's sysFlag marks the record as prepared or rolled back, although entry ``queue_offset``
        points to the record. If so, the record is reported.
        """
        flags = row[RecordColumn.SYS_FLAG]
        if not flags & PREPARED_BIT:
            return False
        detail = (
            f"the record states sysFlag 0x{flags:X}, prepared or rolled back, but entry {queue_offset} points to it"
        )
        self._found.add(FindingKind.SYS_FLAG, file.path, row[RecordColumn.PHYSICAL_OFFSET] - file.start, detail)
        return True
