"""What a check of a store finds: each thing by kind, file and position, those that lie side by side counted as one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

LISTED_MAX = 1000
"""Findings of one kind that are kept; those beyond are only counted."""


class FindingKind(StrEnum):
    """Kinds of findings."""

    STRAY_FILE = "stray_file"
    """A file among segments whose name is not that of one."""
    SEGMENT_LENGTH = "segment_length"
    """A segment that is shorter or longer than the others."""
    SEGMENT_MISSING = "segment_missing"
    """A segment between two others is not there."""
    RECORD = "record"
    """Bytes in the log that are no record, with intact records behind them."""
    BODY_CRC = "body_crc"
    """The body of a record is not what its checksum says."""
    RECORD_CRC = "record_crc"
    """A record is not what its own checksum says."""
    PHYSICAL_OFFSET = "physical_offset"
    """A record that says it lies elsewhere."""
    QUEUE_ID = "queue_id"
    """A record that says another queue id than the queue whose entry leads to it."""
    TOPIC = "topic"
    """A record that says another topic than the queue whose entry leads to it."""
    STORE_TIME = "store_time"
    """A record whose store time does not lie between those of its neighbours."""
    BLANK = "blank"
    """An end-of-file record that does not reach the end of its segment."""
    TORN_TAIL = "torn_tail"
    """Bytes behind the last whole record that are not zeros: a record cut short, or no record at all."""
    LOG_SHORT = "log_short"
    """The log ends below the offset up to which it is known to have been on the disk."""
    QUEUE_OFFSET = "queue_offset"
    """A record that says another queue offset than the entry that leads to it, or one that another record has."""
    RECORD_WITHOUT_UNIT = "record_without_unit"
    """An entry of a consume queue is missing for a record."""
    UNIT = "unit"
    """An entry of a consume queue that names another place or size than that of its record."""
    UNIT_TAGS = "unit_tags"
    """An entry of a consume queue whose tags code is not that of its record."""
    UNIT_WITHOUT_RECORD = "unit_without_record"
    """An entry of a consume queue that names a place where no record of this queue and offset is."""
    STALE_UNIT = "stale_unit"
    """An entry behind the last of its queue, left from a time when the log was cut: RocketMQ may take it up again."""
    QUEUE_HOLE = "queue_hole"
    """Entries between others of a consume queue that name nothing."""
    INDEX_HEADER = "index_header"
    """The header of an index file does not agree with its length, its entries or their records."""
    INDEX_CHAIN = "index_chain"
    """An index entry or slot that does not lead to the entry before it in its slot."""
    INDEX_ENTRY = "index_entry"
    """An index entry that names a place where no record with such a key and store time is."""
    CHECKPOINT = "checkpoint"
    """The file ``checkpoint`` is missing, has another length, or holds a value that cannot be."""
    TABLE = "table"
    """A file in ``config`` that cannot be read, or is not there while its backup is."""
    OFFSET_AHEAD = "offset_ahead"
    """A consumer, or a delay level, is further than its queue."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        file: path below the store's directory.
        position: of the first byte concerned in that file; behind its end for what is missing there.
        count: things of this kind side by side from there on.
        detail: of the first of them, in words.
    """

    kind: FindingKind
    file: str
    position: int
    count: int
    detail: str


class Findings:
    """Collects findings and notes.

    Attributes:
        counts: of all findings by kind, listed or not.
        notes: what is worth knowing and no fault.
        affected: entries of queues and index that lead into damage of the log and are right themselves.
    """

    def __init__(self, root: str) -> None:
        self.counts: dict[FindingKind, int] = {}
        self.notes: list[str] = []
        self.affected = 0
        self._prefix = f"{root}/"
        self._listed: dict[FindingKind, list[Finding]] = {}
        self._newest: dict[tuple[FindingKind, str], tuple[int, int]] = {}

    def add(self, kind: FindingKind, path: str, position: int, detail: str, length: int = -1) -> None:
        """Takes one finding.

        Args:
            length: of the thing in bytes, when the next one of the same kind may follow right behind it.
        """
        self.counts[kind] = self.counts.get(kind, 0) + 1
        listed = self._listed.setdefault(kind, [])
        file = path.removeprefix(self._prefix)
        number, end = self._newest.get((kind, file), (-1, -1))
        if end == position:
            last = listed[number]
            listed[number] = Finding(kind, file, last.position, last.count + 1, last.detail)
        elif len(listed) < LISTED_MAX:
            number = len(listed)
            listed.append(Finding(kind, file, position, 1, detail))
        else:
            return
        self._newest[kind, file] = (number, position + length if length >= 0 else -1)

    def note(self, text: str) -> None:
        """Takes one note."""
        self.notes.append(text.replace(self._prefix, ""))

    def listed(self) -> list[Finding]:
        """All that were kept, by kind in the order of ``FindingKind``."""
        return [finding for kind in FindingKind for finding in self._listed.get(kind, [])]
