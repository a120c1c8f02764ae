"""Delivers delayed messages when they are due (RocketMQ 5.3.3, ``ScheduleMessageService``). Event loop only.

Each level has a queue of the schedule topic, in which messages lie in the order of their due times. The progress of a
level is the queue offset of its first undelivered message. Delivering a message stores it again under its own topic and
queue. Only the progress of synced deliveries is written to ``delayOffset.json``, so a crash may deliver a message twice
but never loses one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from rucola.broker.paced_work import NEW_QUEUES
from rucola.broker.set_aside import destination, set_aside
from rucola.broker.stored_copy import StoredRecord
from rucola.common.data_version import DataVersion
from rucola.common.key_builder import SCHEDULE_TOPIC
from rucola.errors import FormatError
from rucola.formats.properties import encode_properties
from rucola.formats.tables import decode_delay_offsets, encode_delay_offsets
from rucola.runtime.logs import event
from rucola.runtime.table_writer import Keep, Pieces
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus

logger = logging.getLogger(__name__)

RETRY_MS = 100
"""Pause in milliseconds before the next attempt if the store refuses messages."""
LOOK_AGAIN_MS = 1000
"""Longest pause in milliseconds while a message waits. Somebody may set the wall clock during a pause."""
_BATCH = 64
"""Largest number of messages of one level that are delivered at a time; between such batches the loop serves its
sockets.
"""
_TOPIC = SCHEDULE_TOPIC.encode()
_WORK = "delivery of delayed messages"


class ScheduleMessageService:
    """The progress of every level, and the delivery of its messages.

    Args:
        levels_ms: delay of each level, level 1 first.
        wall_ms: returns the current time, which the data version records at each write.
        keep: creates the writer of ``delayOffset.json``.
        read_queue: returns the queue of a topic for a message of a queue; see ``TopicConfigManager.read_queue``.
    """

    def __init__(
        self,
        store: MessageStore,
        levels_ms: list[int],
        wall_ms: Callable[[], int],
        keep: Keep,
        read_queue: Callable[[str, int], int],
    ) -> None:
        self._store = store
        self._read_queue = read_queue
        self._levels_ms = levels_ms
        self._wall_ms = wall_ms
        self._kept = keep(self._snapshot, self._ended)
        self._data_version = DataVersion(0, wall_ms(), 0)
        self._offsets: dict[int, int] = {}
        self._safe: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._writing: tuple[DataVersion, dict[int, int]] = (self._data_version, {})
        self._unsafe: deque[tuple[int, int, int]] = deque()
        """Physical end of a delivered record, its level, and the progress that is valid once this record is synced."""
        self._new_queues = 0
        self._former = range(0)
        """Levels in which messages may wait although ``levels_ms`` no longer has them."""

    def load(self, text: bytes | None) -> None:
        """Loads ``delayOffset.json``. The store must be loaded already. An offset outside of its queue is moved to the
        nearer end of the queue.

        Raises:
            FormatError: the text is not a table of offsets.
        """
        if text is not None:
            self._data_version, self._offsets = decode_delay_offsets(text)
        former = max(self._store.queue_ids(_TOPIC), default=-1) + 1
        for level in range(1, max(len(self._levels_ms), former) + 1):
            known = self._offsets.get(level, 0)
            self._offsets[level] = self._clamped(level, known)
            if known != self._offsets[level]:
                event(logger, logging.WARNING, "delay progress moved", level=level, was=known, now=self._offsets[level])
        self._safe = dict(self._offsets)
        self._former = range(len(self._levels_ms) + 1, former + 1)
        waiting = sum(self._waiting(level) for level in self._former)
        if waiting:
            event(
                logger,
                logging.WARNING,
                "messages wait in levels that messageDelayLevel no longer has, and are delivered at their times",
                levels=f"{self._former[0]} to {self._former[-1]}",
                messages=waiting,
            )

    def follow(self, version: DataVersion, offsets: Mapping[int, int]) -> None:
        """Takes over a master's progress, which may be ahead of the queues here. Writes nothing."""
        self._data_version, self._offsets = version, dict(offsets)

    def take(self, version: DataVersion, offsets: Mapping[int, int]) -> bool:
        """Takes over the progress of a slave that may have acted, of each level the larger one. Call it before the
        first delivery.

        Returns:
            Whether it was taken over; not if its version is older.
        """
        if version.age < self._data_version.age:
            return False
        self._data_version = version
        for level, offset in offsets.items():
            if level in self._offsets:
                self._offsets[level] = self._clamped(level, max(offset, self._offsets[level]))
        self._safe = dict(self._offsets)
        return True

    def progress(self, level: int) -> int:
        """Queue offset of the first undelivered message of ``level``."""
        return self._offsets.get(level, 0)

    @property
    def level_count(self) -> int:
        """Number of levels."""
        return len(self._levels_ms)

    def encode(self) -> bytes:
        """The progress of all levels, in the form of ``delayOffset.json``."""
        return encode_delay_offsets(self._data_version, self._offsets)

    def pending(self) -> int:
        """Number of waiting messages."""
        return sum(map(self._waiting, self._offsets))

    def deliver(self, cold: ColdRecords | None = None) -> int | None:
        """Delivers due messages, at most one batch of each level.

        Args:
            cold: see ``MessageStore.message_at``.

        Returns:
            Milliseconds until the next call; None if no message waits.

        Raises:
            NotInMemoryError: the next message must be fetched; the messages before it were delivered.
        """
        self._new_queues = 0
        pauses_ms = [self._deliver_level(level, cold) for level in range(1, len(self._levels_ms) + 1)]
        pauses_ms += [self._deliver_level(level, cold) for level in self._former]
        return min([pause for pause in pauses_ms if pause is not None], default=None)

    def needed_from(self) -> int | None:
        """Physical offset of the oldest message whose delivery is not synced; None if no message waits."""
        store = self._store
        needed = []
        for level, queue_offset in self._safe.items():
            first = self._clamped(level, queue_offset)
            if first < store.max_queue_offset(_TOPIC, level - 1):
                needed.append(store.queue_unit(_TOPIC, level - 1, first)[0])
        return min(needed, default=None)

    def move_on(self, _physical_offset: int) -> None:
        """Does nothing: a message stored again would be due later, and out of order. See ``LogHolder``."""

    def persist(self) -> None:
        """Requests a write of the progress if it changed since the last write. Only synced deliveries count as
        progress.
        """
        while self._unsafe and self._unsafe[0][0] <= self._store.flushed_offset:
            _, level, queue_offset = self._unsafe.popleft()
            self._safe[level] = queue_offset
        if self._safe != self._written:
            self._kept.changed()

    def _snapshot(self) -> Pieces:
        version, safe = self._data_version.next(self._wall_ms()), self._safe.copy()
        self._writing = version, safe
        return map(encode_delay_offsets, [version], [safe])

    def _ended(self, error: Exception | None) -> None:
        if error is None:
            self._data_version, self._written = self._writing

    def _waiting(self, level: int) -> int:
        return max(self._store.max_queue_offset(_TOPIC, level - 1) - self._offsets[level], 0)

    def _clamped(self, level: int, queue_offset: int) -> int:
        low = self._store.min_queue_offset(_TOPIC, level - 1)
        return min(max(queue_offset, low), self._store.max_queue_offset(_TOPIC, level - 1))

    def _deliver_level(self, level: int, cold: ColdRecords | None) -> int | None:
        """See ``deliver``."""
        end = self._store.max_queue_offset(_TOPIC, level - 1)
        queue_offset = self._offsets[level]
        if queue_offset == end:
            return None
        queue_offset = self._clamped(level, queue_offset)
        now_ms = self._store.now_ms()
        for _ in range(_BATCH):
            if queue_offset >= end:
                return None
            if self._new_queues >= NEW_QUEUES:
                return 0
            physical_offset, _, due_ms = self._store.queue_unit(_TOPIC, level - 1, queue_offset)
            # A message whose due time is further away than the delay of its level is delivered now. Its due time comes
            # from a changed table of levels or from a clock that was set back.
            # A level that is no longer in the table has no delay to compare with.
            if now_ms < due_ms and (level in self._former or due_ms <= now_ms + self._levels_ms[level - 1]):
                return min(due_ms - now_ms, LOOK_AGAIN_MS)
            try:
                status, record_end = self._deliver_one(physical_offset, cold)
            except NotInMemoryError as missing:
                self._store.look_ahead(self._due_after(level, queue_offset, end, now_ms), missing.cold)
                raise
            if status in (PutMessageStatus.SERVICE_NOT_AVAILABLE, PutMessageStatus.CREATE_MAPPED_FILE_FAILED):
                return RETRY_MS
            queue_offset += 1
            self._offsets[level] = queue_offset
            self._unsafe.append((record_end, level, queue_offset))
        return 0

    def _due_after(self, level: int, queue_offset: int, end: int, now_ms: int) -> Iterator[int]:
        """Physical offsets of the messages after ``queue_offset`` that are due as well."""
        for following in range(queue_offset + 1, end):
            physical_offset, _, due_ms = self._store.queue_unit(_TOPIC, level - 1, following)
            if due_ms > now_ms:
                break
            yield physical_offset

    def _deliver_one(self, physical_offset: int, cold: ColdRecords | None) -> tuple[PutMessageStatus, int]:
        """Stores the message for its consumers.

        Returns:
            The outcome, and the physical offset up to which the log must be synced before the message counts as
            delivered. A message that can never be delivered is logged and skipped. A message whose topic was deleted
            meanwhile is skipped too: it was deleted with the topic.
        """
        record = self._store.message_at(physical_offset, cold)
        try:
            if record is None:
                raise FormatError("delayed message", physical_offset, "a record", "none")
            stored = StoredRecord(record)
            # A damaged unit may point anywhere; the unit of a lost record points to the log's beginning.
            if stored.topic != _TOPIC:
                raise FormatError("delayed message", physical_offset, "the schedule topic", repr(stored.topic))
            topic, queue_id = destination(stored.properties)
            if self._store.is_deleted(topic, physical_offset):
                return PutMessageStatus.PUT_OK, self._store.max_offset
            queue_id = self._read_queue(topic.decode(), queue_id)
            due = stored.copy(topic, queue_id, encode_properties(stored.properties))
        except FormatError as error:
            set_aside(self._store.stats, _WORK, physical_offset, error)
            return PutMessageStatus.MESSAGE_ILLEGAL, self._store.max_offset
        result = self._store.put_copy(due)
        self._new_queues += result.queue_offset == 0
        if result.status in (PutMessageStatus.PUT_OK, PutMessageStatus.SERVICE_NOT_AVAILABLE):
            return result.status, result.physical_offset + result.size
        set_aside(self._store.stats, _WORK, physical_offset, result.status.value)
        return result.status, self._store.max_offset
