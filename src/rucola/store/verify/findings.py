"""The kinds of findings of a check, and findings with kind, file and position. Adjacent findings of the same kind are
listed as one finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

LISTED_MAX = 1000
"""Largest number of findings of the same kind that are kept; further findings are only counted."""


class FindingKind(StrEnum):
    """Kinds of findings."""

    STRAY_FILE = "stray_file"
    """A file among segments or index files whose name is not that of a segment or an index file."""
    UNREADABLE = "unreadable"
    """Bytes that the disk cannot read; the check treats them as zeros."""
    SEGMENT_LENGTH = "segment_length"
    """A segment that is shorter or longer than the others."""
    SEGMENT_MISSING = "segment_missing"
    """A missing segment, either between two others or, if entries of queues point into it, after the last one."""
    RECORD = "record"
    """Bytes in the log that are not a record, with intact records after them."""
    BODY_CRC = "body_crc"
    """A record whose body does not match the body checksum."""
    RECORD_CRC = "record_crc"
    """A record that does not match the checksum of the whole record."""
    PHYSICAL_OFFSET = "physical_offset"
    """A record whose physical offset field differs from the record's position in the log."""
    QUEUE_ID = "queue_id"
    """A record whose queue id differs from that of the queue whose entry points to the record."""
    TOPIC = "topic"
    """A record whose topic differs from that of the queue whose entry points to the record."""
    STORE_TIME = "store_time"
    """A record whose store time is not between those of its neighbours."""
    SYS_FLAG = "sys_flag"
    """A record whose flags contradict its body, its properties or its queue entry, or have no meaning."""
    HOST = "host"
    """A record with a host whose port is impossible."""
    RECONSUME_TIMES = "reconsume_times"
    """A record that states a negative number of redeliveries."""
    PREPARED_OFFSET = "prepared_transaction_offset"
    """A record that states the offset of a half message, but ends no transaction."""
    BLANK = "blank"
    """A blank record that does not reach the end of its segment."""
    TORN_TAIL = "torn_tail"
    """Bytes after the last whole record that are not zeros: a truncated record, or no record at all."""
    LOG_SHORT = "log_short"
    """The log ends below the offset up to which it was known to be synced."""
    QUEUE_OFFSET = "queue_offset"
    """A record whose queue offset differs from that of its entry, or is also that of another record in the queue."""
    RECORD_WITHOUT_UNIT = "record_without_unit"
    """A record without an entry in its consume queue."""
    UNIT = "unit"
    """An entry of a consume queue whose physical offset or size differs from that of its record."""
    UNIT_TAGS = "unit_tags"
    """An entry of a consume queue whose tags code differs from that of its record."""
    UNIT_WITHOUT_RECORD = "unit_without_record"
    """An entry of a consume queue that points to no record with the entry's queue and queue offset."""
    STALE_UNIT = "stale_unit"
    """An entry after the last valid entry of its queue, left over when the log was truncated. RocketMQ may treat the
    stale entry as valid again.
    """
    QUEUE_HOLE = "queue_hole"
    """Entries in the middle of a consume queue that point to nothing."""
    LITE_TOPICS = "lite_topics"
    """A file of the lite topics is damaged, or its units are not those of the messages in the log. The queues of lite
    topics are built again from the log if the directory ``rucola-lite`` is moved away; their deletions are then
    forgotten.
    """
    INDEX_HEADER = "index_header"
    """The header of an index file does not agree with the file's length, with its entries or with their records."""
    INDEX_CHAIN = "index_chain"
    """An index entry that does not point to the previous entry of its slot, or a slot that does not point to its newest
    entry.
    """
    INDEX_ENTRY = "index_entry"
    """An index entry that points to no record with the entry's key and store time, or bytes after the last entry."""
    KEYS_MISSING = "keys_missing"
    """Records whose keys are in no index file, although the store has index files."""
    CHECKPOINT = "checkpoint"
    """The file ``checkpoint`` is missing, has a wrong length, or holds an impossible value."""
    TABLE = "table"
    """A file in ``config`` that cannot be read, or is missing while its backup exists; or no topic table at all,
    although there are messages.
    """
    OFFSET_AHEAD = "offset_ahead"
    """The offset of a consumer or a delay level is beyond the end of its queue."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        file: path below the store's directory.
        position: position in ``file`` of the first byte concerned; the end of the file if something is missing there.
        count: number of adjacent findings of this kind.
        detail: a description of the first of these findings.
    """

    kind: FindingKind
    file: str
    position: int
    count: int
    detail: str


class Findings:
    """Collects findings and notes.

    Attributes:
        counts: number of findings by kind, including those that are not listed; each adjacent finding counts.
        notes: remarks that are not faults.
        affected: number of queue and index entries that are not faulty themselves, but point into damaged parts of the
            log.
    """

    def __init__(self, root: str) -> None:
        self.counts: dict[FindingKind, int] = {}
        self.notes: list[str] = []
        self.affected = 0
        self._prefix = f"{root}/"
        self._listed: dict[FindingKind, list[Finding]] = {}
        self._newest: dict[tuple[FindingKind, str], tuple[int, int]] = {}

    def add(self, kind: FindingKind, path: str, position: int, detail: str, length: int = -1) -> None:
        """Adds one finding.

        Args:
            length: length in bytes of the faulty item; -1 if no further finding can be adjacent. A finding of the same
                kind is adjacent if it begins where the item ends.
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
        """Adds one note."""
        self.notes.append(text.replace(self._prefix, ""))

    def listed(self) -> list[Finding]:
        """Returns all kept findings, ordered by kind as in ``FindingKind``."""
        return [finding for kind in FindingKind for finding in self._listed.get(kind, [])]
