"""Half messages that wait for their producer's decision (RocketMQ 5.3.3, ``TransactionalMessageBridge``).

On disk, one queue of the half topic holds the half messages, and a copy for each check. The messages of the op topic
list the queue offsets of finished half messages. The progress in both topics is stored as the consumer offsets of group
``CID_RMQ_SYS_TRANS``. In memory, a table maps the identity of every unfinished half message to its newest copy. All
copies of a message have the same identity, so the message has one outcome, whichever copy a request names. At start-up,
the table is rebuilt from the queues. If a crash lost the op message of a committed or given-up message, the outcome is
found in the commit log. Event loop only.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Set
from dataclasses import dataclass

from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.common.key_builder import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from rucola.common.message import MessageExt, StoreMessage
from rucola.common.message_const import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    PGROUP,
    REAL_TOPIC,
    SENDER,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    UNIQ_KEY,
)
from rucola.common.numbers import INT32_MAX, INT64_MAX, number_in
from rucola.common.sysflag import TRANSACTION_MASK, MessageSysFlag
from rucola.errors import FormatError
from rucola.formats.message import decode_message
from rucola.store.log.cold_read import ColdRecords
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus

GROUP = "CID_RMQ_SYS_TRANS"
HALF = TRANS_HALF_TOPIC.encode()
OP = TRANS_OP_HALF_TOPIC.encode()
GIVEN_UP = TRANS_CHECK_MAX_TIME_TOPIC.encode()
RESUMED_CHECKS = "0"
"""``TRANSACTION_CHECK_TIMES`` of the copy that RESUME_CHECK_HALF_MESSAGE (323) stores; other copies have at least 1."""
OP_BODY_CHARS_MAX = 4096
_IMMUNITY_S_MAX = 10**9 - 1
_OP_PROPERTIES = b"WAIT\x01true\x02TAGS\x01d\x02"

Identity = tuple[str, int, bytes]
"""Unique key, born time and born host: a half message, its copies and its committed form have these values in
common.
"""


@dataclass(frozen=True, slots=True)
class Half:
    """An unfinished half message, represented by its newest copy."""

    identity: Identity
    group: str
    queue_offset: int
    physical_offset: int
    born_ms: int
    stored_ms: int
    checks: int
    """Number of checks so far."""
    immunity_s: int | None
    """Seconds after the send during which the producer does not want to be asked for its decision."""
    topic: str
    """The topic to which the message was sent; empty if the record does not name it."""
    sender: str
    """Mark of the account that sent the message; empty if it is not known."""


class HalfMessages:
    """The table of unfinished half messages, and their queues in the half topic and the op topic.

    Args:
        offsets: stores the progress in both topics.
        wall_ms: returns the born time of op messages.
    """

    def __init__(self, store: MessageStore, offsets: ConsumerOffsetManager, wall_ms: Callable[[], int]) -> None:
        self._store = store
        self._offsets = offsets
        self._wall_ms = wall_ms
        self.pending: dict[Identity, Half] = {}
        self._identities: dict[str, Identity] = {}
        """The identity of a pending message by its unique key."""
        self._scanned = 0
        self._by_offset: OrderedDict[int, Half] = OrderedDict()
        """The messages of ``pending`` that were scanned, in the order of queue offsets."""
        self._known: dict[int, Half] = {}
        """Copies that this process stored and ``scan`` has not reached yet, by queue offset."""
        self._unwritten: list[int] = []
        self._unwritten_chars = 0
        self._ops: deque[tuple[int, int]] = deque()
        """For each op message that is still needed: its queue offset, and the highest half queue offset in it.
        """
        self._marks: deque[tuple[int, int, int]] = deque()
        """Progress that becomes valid once the log is synced up to a physical offset: this offset, the half progress
        and the op progress.
        """

    def load(self) -> None:
        """Rebuilds the table. The store and the consumer offsets must be loaded already."""
        store = self._store
        self._scanned = self._progress(HALF, TRANS_HALF_TOPIC)
        done: set[int] = set()
        for queue_offset in range(self._progress(OP, TRANS_OP_HALF_TOPIC), store.max_queue_offset(OP, 0)):
            message = self._message(OP, queue_offset)
            named = _offsets_in(message.body) if message is not None else []
            done.update(named)
            self._ops.append((queue_offset, max(named, default=-1)))
        self._scan(done)
        if self.pending:
            begin = min(half.physical_offset for half in self.pending.values())
            for record in store.records_of_kind(begin, TRANSACTION_MASK, MessageSysFlag.TRANSACTION_COMMIT, GIVEN_UP):
                message = decode_message(record, unpack=False)
                half = self.pending.get(identity_of(message))
                if half is None or (message.topic == TRANS_CHECK_MAX_TIME_TOPIC and _resumed(half, message)):
                    continue
                self.finish(half.identity)

    @property
    def behind(self) -> int:
        """Number of visible half messages that ``scan`` has not reached."""
        return self._store.max_queue_offset(HALF, 0) - self._scanned

    def scan(self, cold: ColdRecords | None = None, count_max: int = sys.maxsize) -> None:
        """Adds the next visible half messages to the table, at most ``count_max``.

        Args:
            cold: see ``MessageStore.message_at``.

        Raises:
            NotInMemoryError: the next half message must be fetched from the disk.
        """
        if self.behind > 0:
            self._scan(frozenset(), cold, count_max)

    def undecided(self) -> list[Half]:
        """The scanned half messages without an outcome, oldest first."""
        return list(self._by_offset.values())

    def _scan(self, done: Set[int], cold: ColdRecords | None = None, count_max: int = sys.maxsize) -> None:
        """Like ``scan``; ``done`` holds the queue offsets that are named in op messages."""
        ended: set[Identity] = set()
        end = min(self._store.max_queue_offset(HALF, 0), self._scanned + count_max)
        while self._scanned < end:
            queue_offset = self._scanned
            known = self._known.pop(queue_offset, None)
            message = self._message(HALF, queue_offset, cold) if known is None else None
            self._scanned += 1
            if message is None:
                if known is not None and self.pending.get(known.identity) is known:
                    self._by_offset[queue_offset] = known
                continue
            identity = identity_of(message)
            if message.properties.get(TRANSACTION_CHECK_TIMES) == RESUMED_CHECKS:
                ended.discard(identity)
            prepared = number_in(message.properties.get(TRAN_PREPARED_QUEUE_OFFSET, ""), 0, INT64_MAX)
            if queue_offset in done or identity in ended or prepared in done:
                ended.add(identity)
                self._remove(identity)
            else:
                self._remove(identity)
                half = half_of(message, queue_offset, message.physical_offset)
                self._identities[identity[0]] = identity
                self.pending[identity] = self._by_offset[queue_offset] = half

    def replace(self, half: Half) -> None:
        """Replaces a half message by its newer copy."""
        self._remove(half.identity)
        self._known[half.queue_offset] = half
        self._identities[half.identity[0]] = half.identity
        self.pending[half.identity] = half

    def finish(self, identity: Identity) -> None:
        """Removes a half message whose outcome is in the log."""
        half = self.pending[identity]
        self._remove(identity)
        self._unwritten.append(half.queue_offset)
        self._unwritten_chars += len(str(half.queue_offset)) + 1
        if self._unwritten_chars >= OP_BODY_CHARS_MAX:
            self.write_ops()

    def write_ops(self) -> bool:
        """Writes the queue offsets of finished half messages into the op topic; returns False if the store refuses
        messages now.
        """
        if self._unwritten:
            body = "".join(f"{queue_offset}," for queue_offset in self._unwritten).encode()
            message = StoreMessage(OP, 0, body, _OP_PROPERTIES, self._wall_ms(), self._store.store_host)
            result = self._store.put_message(message)
            if result.status is not PutMessageStatus.PUT_OK:
                return False  # the offsets are kept for the next attempt
            self._ops.append((result.queue_offset, max(self._unwritten)))
            self._unwritten.clear()
            self._unwritten_chars = 0
        # Every unfinished half message has at least this queue offset: unscanned messages follow the scanned ones.
        half_progress = next(iter(self._by_offset), self._scanned)
        while self._ops and self._ops[0][1] < half_progress:
            self._ops.popleft()
        op_progress = self._ops[0][0] if self._ops else self._store.max_queue_offset(OP, 0)
        if not self._marks or self._marks[-1][1:] != (half_progress, op_progress):
            self._marks.append((self._store.max_offset, half_progress, op_progress))
        self.settle()
        return True

    def settle(self) -> None:
        """Commits the progress in both topics as consumer offsets, as far as the outcomes in the log are synced."""
        mark: tuple[int, int, int] | None = None
        while self._marks and self._marks[0][0] <= self._store.flushed_offset:
            mark = self._marks.popleft()
        if mark is not None:
            for topic, queue_offset in ((TRANS_HALF_TOPIC, mark[1]), (TRANS_OP_HALF_TOPIC, mark[2])):
                if self._offsets.query(GROUP, topic, 0) != queue_offset:
                    self._offsets.commit(GROUP, topic, 0, queue_offset)

    def by_unique_key(self, unique_key: str) -> Half | None:
        """The unfinished half message with this unique key."""
        identity = self._identities.get(unique_key)
        return None if identity is None else self.pending.get(identity)

    def needed_from(self) -> int | None:
        """Physical offset of the oldest half message whose outcome is not synced; None if there is none."""
        progress = self._progress(HALF, TRANS_HALF_TOPIC)
        if progress >= self._store.max_queue_offset(HALF, 0):
            return None
        return self._store.queue_unit(HALF, 0, progress)[0]

    def _remove(self, identity: Identity) -> None:
        half = self.pending.pop(identity, None)
        if self._identities.get(identity[0]) == identity:
            del self._identities[identity[0]]
        if half is not None:
            self._by_offset.pop(half.queue_offset, None)

    def _progress(self, topic: bytes, name: str) -> int:
        low, high = self._store.min_queue_offset(topic, 0), self._store.max_queue_offset(topic, 0)
        return min(max(self._offsets.query(GROUP, name, 0) or 0, low), high)

    def _message(self, topic: bytes, queue_offset: int, cold: ColdRecords | None = None) -> MessageExt | None:
        record = self._store.message_at(self._store.queue_unit(topic, 0, queue_offset)[0], cold)
        try:
            message = None if record is None else decode_message(record, unpack=False)
        except FormatError:
            return None
        if message is None or message.queue_offset != queue_offset or message.topic.encode() != topic:
            return None
        return message


def identity_of(message: MessageExt) -> Identity:
    """See ``Identity``."""
    return message.properties.get(UNIQ_KEY, ""), message.born_timestamp_ms, message.born_host


def _resumed(half: Half, given_up: MessageExt) -> bool:
    """True if ``half`` is newer than ``given_up``, the copy of the same message in ``TRANS_CHECK_MAX_TIME_TOPIC``: the
    message was put back into the half topic after it had been given up.
    """
    return half.physical_offset > given_up.physical_offset


def half_of(message: MessageExt, queue_offset: int, physical_offset: int) -> Half:
    """The entry for a half message."""
    checks = number_in(message.properties.get(TRANSACTION_CHECK_TIMES, ""), 0, INT32_MAX)
    immunity = message.properties.get(CHECK_IMMUNITY_TIME_IN_SECONDS, "")
    return Half(
        identity_of(message),
        message.properties.get(PGROUP, ""),
        queue_offset,
        physical_offset,
        message.born_timestamp_ms,
        message.store_timestamp_ms,
        checks or 0,
        number_in(immunity, 0, _IMMUNITY_S_MAX),
        sys.intern(message.properties.get(REAL_TOPIC, "")),
        sys.intern(message.properties.get(SENDER, "")),
    )


def _offsets_in(body: bytes) -> list[int]:
    """The queue offsets in an op message: one or several, separated by commas, with an optional comma at the end."""
    numbers = [number_in(piece.decode("ascii", "replace"), 0, INT64_MAX) for piece in body.split(b",")]
    return [queue_offset for queue_offset in numbers if queue_offset is not None]
