"""The expected content of a message store, kept in dictionaries and lists, independent of the store's code.

The model records what was sent, acknowledged and seen; ``check_recovered`` compares it with the result of a recovery.
The model encodes and decodes bytes with the codecs of ``formats``, as the store does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from rucola.common.java import string_hash
from rucola.common.message import StoreMessage
from rucola.formats.consume_queue import PRE_FILL_UNIT, UNIT, UNIT_BYTES
from rucola.formats.message import BLANK, MAGIC_BLANK, decode_message

QueueName = tuple[bytes, int]


@dataclass(frozen=True)
class SentRecord:
    """A message with its position in the log.

    Attributes:
        message: the message as sent.
        record: its bytes in the log.
        unit: its consume-queue unit; empty if the message is in no queue.
        keys: hashes of the message's keys as the index stores them, in the order of the index.
    """

    message: StoreMessage
    physical_offset: int
    record: bytes
    unit: bytes
    keys: tuple[int, ...]

    @property
    def end(self) -> int:
        """Physical offset after the record."""
        return self.physical_offset + len(self.record)

    @property
    def queue(self) -> QueueName:
        """The queue in which consumers find the message."""
        return self.message.topic, self.message.queue_id


class Mismatch(AssertionError):  # noqa: N818 - the name says what was found
    """Raised when the store breaks a promise."""


@dataclass
class StoreModel:
    """The history of one store.

    Attributes:
        segment_bytes: length of a log segment.
        records: records in the order of the log.
        sending: messages passed to the store by calls that have not returned.
        acked_end: messages below this offset must survive: they were acknowledged under SYNC_FLUSH, reported as synced,
            or read by a consumer while only synced messages are visible.
        kept_end: messages below this offset survive a crash of the process, but perhaps not of the system.
        may_expire: log segments that end at or before this offset may have expired, oldest first.
        deleted: for each deleted topic, the physical offset below which its records are in no queue.
        deleting: like ``deleted``, for deletions whose call has not returned.
    """

    segment_bytes: int
    records: list[SentRecord] = field(default_factory=list)
    sending: list[StoreMessage] = field(default_factory=list)
    acked_end: int = 0
    kept_end: int = 0
    may_expire: int = 0
    deleted: dict[bytes, int] = field(default_factory=dict)
    deleting: dict[bytes, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Physical offset after the newest record."""
        return self.records[-1].end if self.records else 0

    def copy(self) -> StoreModel:
        """An independent copy."""
        return replace(
            self,
            records=list(self.records),
            sending=list(self.sending),
            deleted=dict(self.deleted),
            deleting=dict(self.deleting),
        )

    def outcomes(self) -> Iterator[StoreModel]:
        """The possible models after a crash during a deletion: nothing is deleted, or everything."""
        if self.deleting:
            without, done = self.copy(), self.copy()
            without.deleting.clear()
            done.deleting.clear()
            done.deleted.update(self.deleting)
            yield without
            yield done
        else:
            yield self

    def queues(self, end: int) -> dict[QueueName, list[SentRecord]]:
        """Records below ``end`` that are in a queue, by queue and in order."""
        queues: dict[QueueName, list[SentRecord]] = {}
        for record in self.records:
            deleted_to = self.deleted.get(record.message.topic, 0)
            if record.end <= end and record.unit and record.physical_offset >= deleted_to:
                queues.setdefault(record.queue, []).append(record)
        return queues

    def place(self, message: StoreMessage, physical_offset: int, record: bytes) -> None:
        """Adds ``message`` at its log position; checks that the record matches it and follows the newest record.

        Raises:
            Mismatch: the record does not match.
        """
        self.records.append(self._record(message, physical_offset, record))

    def cut(self, end: int) -> None:
        """Removes all records after ``end``, the end of the log after a recovery."""
        self.records = [record for record in self.records if record.end <= end]
        self.deleted = {topic: min(deleted_to, end) for topic, deleted_to in self.deleted.items()}
        self.sending = []

    def counts(self, end: int) -> dict[QueueName, int]:
        """For each queue, the number of entries for records below ``end``."""
        return {name: len(records) for name, records in self.queues(end).items()}

    def log_until(self, end: int) -> dict[int, bytes]:
        """Bytes of each segment up to ``end``, which must be the end of a record or the start of a segment."""
        segments: dict[int, bytearray] = {}
        at = 0
        for record in self.records:
            if record.end <= end:
                at = self._place_in(segments, at, record)
        if end > at:
            self._blank(segments, at)
        return {start: bytes(content) for start, content in segments.items()}

    def adopted(self, end: int, log: dict[int, bytes]) -> StoreModel:
        """Returns the model with those messages of ``sending`` whose records are in ``log`` before ``end``.

        Raises:
            Mismatch: a record in ``log`` differs from the next message of ``sending``.
        """
        if end <= self.end:
            return self
        model = self.copy()
        while model.end < end and model.sending:
            physical_offset = model.next_place(log)
            if physical_offset >= end:
                break
            segment = log[physical_offset - physical_offset % self.segment_bytes]
            position = physical_offset % self.segment_bytes
            size = int.from_bytes(segment[position : position + 4], "big")
            model.place(model.sending.pop(0), physical_offset, segment[position : position + size])
        return model

    def next_place(self, log: dict[int, bytes]) -> int:
        """Position of the next record in ``log``: after the newest one, or in the next segment if a blank record
        follows.
        """
        end = self.end
        segment = log.get(end - end % self.segment_bytes, b"")
        position = end % self.segment_bytes
        if segment[position + 4 : position + 8] == (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big"):
            return end - position + self.segment_bytes
        return end

    def _record(self, message: StoreMessage, physical_offset: int, record: bytes) -> SentRecord:
        found = decode_message(record)
        queue_offset = self.counts(self.end).get((message.topic, message.queue_id), 0)
        in_queue = not message.sys_flag & 4
        properties = {k: v for k, v in found.properties.items() if k != "__CRC32#"}
        sent = dict(pair.decode().split("\x01") for pair in message.properties.split(b"\x02") if pair)
        expected = (message.topic.decode(), message.queue_id, message.body, sent, physical_offset, len(record))
        got = (found.topic, found.queue_id, found.body, properties, found.physical_offset, found.store_size)
        if expected != got:
            raise Mismatch(f"record at {physical_offset} is {got}, but {expected} was sent")
        if in_queue and found.queue_offset != queue_offset:
            raise Mismatch(f"record at {physical_offset} has queue offset {found.queue_offset}, not {queue_offset}")
        unit = b""
        if in_queue:
            tags = sent.get("TAGS", "")
            unit = UNIT.pack(physical_offset, len(record), string_hash(tags) if tags else 0)
        return SentRecord(message, physical_offset, record, unit, _keys(message))

    def _place_in(self, segments: dict[int, bytearray], at: int, record: SentRecord) -> int:
        if record.physical_offset != at:
            self._blank(segments, at)
        start = record.physical_offset - record.physical_offset % self.segment_bytes
        segments.setdefault(start, bytearray()).extend(record.record)
        return record.end

    def _blank(self, segments: dict[int, bytearray], at: int) -> None:
        """Fills the rest of a segment, from ``at``, with a blank record."""
        room = -at % self.segment_bytes
        if room:
            content = segments.setdefault(at - at % self.segment_bytes, bytearray())
            content.extend(BLANK.pack(room, MAGIC_BLANK).ljust(room, b"\0"))


def _keys(message: StoreMessage) -> tuple[int, ...]:
    properties = dict(pair.split(b"\x01") for pair in message.properties.split(b"\x02") if pair)
    if message.sys_flag & 12 == 12:
        return ()
    unique = properties.get(b"UNIQ_KEY", b"")
    keys = ([unique] if unique else []) + properties.get(b"KEYS", b"").split()
    return tuple(abs(string_hash((message.topic + b"#" + key).decode())) for key in keys)


def check_log(model: StoreModel, end: int, log: dict[int, bytes]) -> None:
    """Checks that ``end`` is a record boundary, and that the log equals the model up to ``end`` and is zero after it.
    The oldest segments may have expired.

    Args:
        log: bytes of each segment on disk, by start offset.

    Raises:
        Mismatch: the log differs.
    """
    if end < model.acked_end:
        raise Mismatch(f"log ends at {end}, but messages up to {model.acked_end} were acknowledged")
    places = {record.end for record in model.records} | {0}
    places |= {record.physical_offset for record in model.records}
    first = min(log, default=0)
    # All earlier segments may have expired while the messages of this segment were still in the store pool.
    places.add(first)
    if end not in places and end != model.next_place(log):
        raise Mismatch(f"log ends at {end}, where no sent record ends; the newest ends at {model.end}")
    if first > model.may_expire:
        raise Mismatch(f"log begins at {first}, but only segments up to {model.may_expire} may be gone")
    expected = {start: content for start, content in model.log_until(end).items() if start >= first}
    for start, content in log.items():
        if content != expected.get(start, b"").ljust(model.segment_bytes, b"\0"):
            difference = _difference(content, expected.get(start, b""))
            raise Mismatch(f"segment {start} differs at {difference} from what was sent (log end {end})")
    missing = [start for start, content in expected.items() if start not in log and content]
    if missing:
        raise Mismatch(f"segments {missing} are missing (log end {end})")


def check_queues(model: StoreModel, end: int, units: dict[QueueName, tuple[int, bytes]], log_start: int) -> None:
    """Checks that the queues hold exactly the units of the records below ``end``, followed by zeros.

    The unit of an expired record may be missing, or be a ``PRE_FILL_UNIT``. The last unit of a queue must exist,
    because it determines the offset of the next message.

    Args:
        units: start of the first segment of each queue, and the content of all its segments.
        log_start: physical offset at which the log begins.
    """
    queues = model.queues(end)
    for name in queues.keys() | units.keys():
        records = queues.get(name, [])
        begin, got = units.get(name, (0, b""))
        parts = []
        for number, record in enumerate(records):
            unit = got[number * UNIT_BYTES - begin :][:UNIT_BYTES] if number * UNIT_BYTES >= begin else b""
            gone = record.physical_offset < log_start and number < len(records) - 1
            parts.append(unit if gone and unit in (b"", PRE_FILL_UNIT) else record.unit)
        wanted = b"".join(parts)
        if got.rstrip(b"\0") != wanted.rstrip(b"\0") or len(got) < len(wanted):
            raise Mismatch(f"queue {name} differs at byte {_difference(got, wanted)}, {len(wanted)} bytes are expected")


def check_index(
    model: StoreModel, end: int, entries: Iterable[tuple[int, int]], log_start: int, behind: bool = False
) -> None:
    """Checks that the index holds exactly the keys of the records below ``end``, in order; expired keys may be gone.

    Args:
        entries: hash and physical offset of each entry, over all files.
        behind: whether the newest entries may be missing.
    """
    wanted = [(key, record.physical_offset) for record in model.records if record.end <= end for key in record.keys]
    got = list(entries)
    if not set(got) <= set(wanted):
        raise Mismatch(f"index has {sorted(set(got) - set(wanted))[:3]}, which no record has")
    got = [entry for entry in got if entry[1] >= log_start]
    wanted = [entry for entry in wanted if entry[1] >= log_start]
    if got != (wanted[: len(got)] if behind else wanted):
        pairs = enumerate(zip(got, wanted, strict=False))
        at = next((i for i, (left, right) in pairs if left != right), min(len(got), len(wanted)))
        raise Mismatch(f"index differs at entry {at}: {got[at : at + 3]}, expected {wanted[at : at + 3]}")


def _difference(got: bytes, wanted: bytes) -> int:
    for at, (left, right) in enumerate(zip(got, wanted.ljust(len(got), b"\0"), strict=False)):
        if left != right:
            return at
    return min(len(got), len(wanted))
