"""Makes popped messages visible again if they are not acknowledged in time (RocketMQ 5.3.3, ``PopReviveService``).

Checkpoints and acknowledgements are timed messages, so they enter the revive topic at their delivery times
(``revive_log``). A checkpoint is completed once all records with delivery times up to the end of its invisible time
have arrived. Copies of its unacknowledged messages are then stored in the retry topic of the topic and group. The
progress in a revive queue is committed once these copies are synced. After a crash, copies that were stored shortly
before the crash are recognised and not stored again. Event loop only.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable

from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.broker.pop.retry_copy import CopyIdentity, identity_before, identity_of, retry_copy
from rucola.broker.pop.revive_log import ReviveLog, checkpoint_due_ms, newest_messages, read_message, record_of
from rucola.broker.pop.revive_queue import ReviveQueue, WaitingCheckpoint
from rucola.broker.set_aside import set_aside
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.key_builder import is_retry_topic
from rucola.common.pop_topics import normal_topic, pop_retry_topic
from rucola.formats.pop import REVIVE_GROUP, PopCheckpoint, PopKey
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError
from rucola.store.message_store import MessageStore
from rucola.store.queue.queue_factory import is_topic_directory
from rucola.store.results import PutMessageStatus

_WORK = "revival of popped messages"
READ_AT_ONCE = 64
"""One call of ``work`` reads about this number of records; each takes 60 µs."""
DECIDED_AT_ONCE = 32
"""Limit for one call of ``work``: the checkpoints that it completes plus the messages that it delivers again, each of
which takes 200 µs. The last checkpoint of a call may exceed the limit.
"""


class ReviveService:
    """Revives messages.

    Args:
        dispatch: makes stored messages visible.
        delivered_until_ms: timed messages due before this time have reached their topics.
        retry_topic_v2: use retry topics with names of version 2.

    Attributes:
        registration: running registration of a retry topic, which must end before messages are stored there.
    """

    def __init__(
        self,
        store: MessageStore,
        log: ReviveLog,
        offsets: ConsumerOffsetManager,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        dispatch: Callable[[], None],
        delivered_until_ms: Callable[[ColdRecords | None], int],
        retry_topic_v2: bool,
        names_origins: bool = False,
    ) -> None:
        self._store = store
        self._log = log
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._dispatch = dispatch
        self._delivered_until_ms = delivered_until_ms
        self._retry_topic_v2 = retry_topic_v2
        self._names_origins = names_origins
        self._queues: list[ReviveQueue] = []
        self._copies: Counter[CopyIdentity] = Counter()
        """Copies that an earlier process made; that process may have ended before it recorded its progress."""
        self._mark: tuple[int, int] | None = None
        """A time, and the end of the log at the moment when everything due before that time had been stored."""
        self._complete_ms = 0
        self._undecided: list[ReviveQueue] = []
        """The queues whose due checkpoints are not completed yet."""
        self.registration: asyncio.Future[None] | None = None
        self._done: deque[tuple[int, int, int]] = deque()
        """Progress that becomes valid once the log is synced up to a physical offset: this offset, the revive queue,
        and the progress.
        """

    def load(self, crashed_since_ms: int | None) -> None:
        """Continues where the last process stopped.

        Args:
            crashed_since_ms: after a crash, the time since which unrecorded changes are possible.
        """
        if crashed_since_ms is not None:
            for topic, queue_id in self._store.queue_names():
                if is_retry_topic(topic.decode("utf-8", "replace")):
                    messages = newest_messages(self._store, topic, queue_id, crashed_since_ms)
                    self._copies.update(map(identity_of, messages))
        for queue_id in range(self._log.queues):
            worked_off = self._offsets.query(REVIVE_GROUP, self._log.topic, queue_id)
            low, high = self._log.min_offset(queue_id), self._log.max_offset(queue_id)
            first = low if worked_off is None else min(max(worked_off + 1, low), high)
            self._queues.append(ReviveQueue(queue_id, first))
        finished = self._finished_since(self._oldest_to_come(crashed_since_ms))
        for queue in self._queues:
            queue.finished = finished

    def _oldest_to_come(self, crashed_since_ms: int | None) -> int:
        """Due time of the oldest checkpoint that may appear a second time.

        After a crash, the timer delivers some checkpoints again. Such checkpoints may still be to come after a later
        clean stop: the last process may have left some of them unread, or it may have stopped before the timer had
        delivered all of them.
        """
        oldest_ms = self._delivered_until_ms(None)
        if crashed_since_ms is not None:
            oldest_ms = min(oldest_ms, crashed_since_ms)
        for queue in self._queues:
            for queue_offset in range(queue.next_offset, self._log.max_offset(queue.queue_id)):
                record, _ = self._log.read(queue.queue_id, queue_offset)
                if isinstance(record, PopCheckpoint):
                    oldest_ms = min(oldest_ms, checkpoint_due_ms(record))
        return oldest_ms

    def _finished_since(self, since_ms: int) -> set[PopKey]:
        """Checkpoints stored since ``since_ms`` that an earlier process completed."""
        name = self._log.topic.encode()
        finished: set[PopKey] = set()
        for queue in self._queues:
            for message in newest_messages(self._store, name, queue.queue_id, since_ms):
                record = record_of(message)
                if message.queue_offset < queue.next_offset and isinstance(record, PopCheckpoint):
                    finished.add(record.key)
        return finished

    def work(self, cold: ColdRecords | None = None) -> bool:
        """Reads new records and completes the checkpoints that can be completed; returns whether there is more to do at
        once.

        Args:
            cold: see ``MessageStore.message_at``.

        Raises:
            NotInMemoryError: the next message must be fetched; the progress so far is kept.
        """
        if self._mark is None:
            self._mark = (self._delivered_until_ms(cold), self._store.max_offset)
        self._dispatch()
        unread = self._read_some(cold)
        store = self._store
        if not self._undecided and not unread and store.confirm_offset - store.dispatch_behind_bytes >= self._mark[1]:
            self._complete_ms = self._mark[0]
            self._undecided = self._queues.copy()
            for queue in self._queues:
                queue.drop_acks_before(self._complete_ms)
        if self._undecided and self._decide_some(cold):
            self._mark = None
        self.settle()
        return unread or bool(self._undecided)

    def needed_from(self) -> int | None:
        """Physical offset of the oldest record that is not worked off, as far as this is synced; None if there is none.
        Records that are not due yet lie in the timer topic.
        """
        needed = []
        for queue_id in range(self._log.queues):
            worked_off = self._offsets.query(REVIVE_GROUP, self._log.topic, queue_id)
            following = max(-1 if worked_off is None else worked_off, self._log.min_offset(queue_id) - 1) + 1
            if following < self._log.max_offset(queue_id):
                needed.append(self._log.physical_offset(queue_id, following))
        return min(needed, default=None)

    def look_again(self) -> None:
        """Restarts the search for due checkpoints with the new time, because the wall clock was moved forward."""
        self._mark = None
        self._undecided = []

    def settle(self) -> None:
        """Commits the recorded progress in the queues, as far as the copies that belong to it are synced."""
        while self._done and self._done[0][0] <= self._store.flushed_offset:
            _, queue_id, worked_off = self._done.popleft()
            if self._offsets.query(REVIVE_GROUP, self._log.topic, queue_id) != worked_off:
                self._offsets.commit(REVIVE_GROUP, self._log.topic, queue_id, worked_off)

    def _read_some(self, cold: ColdRecords | None) -> bool:
        """Reads some records of all queues; returns whether there are more."""
        more = False
        for queue in self._queues:
            more |= self._read(queue, READ_AT_ONCE // len(self._queues) + 1, cold)
        return more

    def _read(self, queue: ReviveQueue, count: int, cold: ColdRecords | None) -> bool:
        """Reads up to ``count`` records; returns whether there are more."""
        end = self._log.max_offset(queue.queue_id)
        queue.next_offset = max(queue.next_offset, self._log.min_offset(queue.queue_id))
        for queue_offset in range(queue.next_offset, min(end, queue.next_offset + count)):
            try:
                record, came_ms = self._log.read(queue.queue_id, queue_offset, cold)
            except NotInMemoryError as missing:
                self._look_ahead(self._log.topic, queue.queue_id, queue_offset, end, missing.cold)
                raise
            if record is None and came_ms:
                place = self._log.physical_offset(queue.queue_id, queue_offset)
                set_aside(self._store.stats, _WORK, place, "neither a checkpoint nor an acknowledgement")
            queue.take(queue_offset, record, came_ms)
        return queue.next_offset < end

    def _decide_some(self, cold: ColdRecords | None) -> bool:
        """Completes some of the due checkpoints; returns False if more of them may be ready to be completed."""
        left = DECIDED_AT_ONCE
        while self._undecided:
            left = self._decide(self._undecided[-1], left, cold)
            if left <= 0:
                return False
            self._undecided.pop()
        return True

    def _decide(self, queue: ReviveQueue, left: int, cold: ColdRecords | None) -> int:
        """Completes the due checkpoints of a queue in order, until ``left`` is used up. Each checkpoint takes 1 of
        ``left``, and so does each message that is delivered again.

        Returns:
            The unused part of ``left``. It is above 0 if no more checkpoints can be completed at the moment.
        """
        while left > 0 and (waiting := queue.first()) is not None and waiting.checkpoint.revive_ms < self._complete_ms:
            left -= 1 + len(waiting.open_offsets)
            if not self._revive(waiting, cold):
                left = max(left, 1)
                break
            queue.finish_first()
        self._note_progress(queue)
        return left

    def _note_progress(self, queue: ReviveQueue) -> None:
        worked_off = queue.worked_off()
        if worked_off != queue.noted:
            queue.noted = worked_off
            self._done.append((self._store.max_offset, queue.queue_id, worked_off))

    def _revive(self, waiting: WaitingCheckpoint, cold: ColdRecords | None) -> bool:
        """Stores the unacknowledged messages in the retry topic; returns False if that is impossible at the moment."""
        key = waiting.checkpoint.key
        if self._is_gone(key):
            return True
        topic = key.topic if is_retry_topic(key.topic) else pop_retry_topic(key.topic, key.group, self._retry_topic_v2)
        if not is_topic_directory(key.topic.encode()) or not is_topic_directory(topic.encode()):
            place = self._log.physical_offset(waiting.revive_queue, waiting.queue_offset)
            set_aside(self._store.stats, _WORK, place, f"{topic[:64]} cannot be a topic")
            return True
        for queue_offset in sorted(waiting.open_offsets):
            try:
                message = read_message(self._store, key.topic.encode(), key.queue_id, queue_offset, cold)
            except NotInMemoryError as missing:
                self._look_ahead(key.topic, key.queue_id, queue_offset, max(waiting.open_offsets) + 1, missing.cold)
                raise
            if message is not None:
                identity = identity_before(message, topic, key.pop_time_ms)
                if self._copies[identity] > 0:
                    self._copies[identity] -= 1
                else:
                    _, self.registration = self._topics.create_for_group(topic, 1)
                    if self.registration is not None and not self.registration.done():
                        return False
                    copy = retry_copy(message, topic, key.pop_time_ms, self._store.store_host, self._names_origins)
                    status = self._store.put_copy(copy).status
                    if status is PutMessageStatus.SERVICE_NOT_AVAILABLE:
                        return False
                    if status is not PutMessageStatus.PUT_OK:
                        set_aside(self._store.stats, _WORK, message.physical_offset, status.value)
            waiting.open_offsets.discard(queue_offset)
        return True

    def _is_gone(self, key: PopKey) -> bool:
        """Whether the messages of a pop must not be delivered again: their topic was deleted, even if it was created
        again, or their group was deleted with its offsets. A group that was deleted without its offsets may be created
        again; it then goes on after these messages.
        """
        if self._topics.get(normal_topic(key.topic, key.group)) is None:
            return True
        if key.pop_time_ms < self._store.deleted_ms(key.topic.encode()):
            return True
        if key.group in self._groups.table:
            return False
        return self._offsets.query(key.group, key.topic, key.queue_id) is None

    def _look_ahead(self, topic: str, queue_id: int, queue_offset: int, end: int, cold: ColdRecords) -> None:
        """Fetches the message at ``queue_offset`` and the messages after it."""
        store, name = self._store, topic.encode()
        store.look_ahead((store.queue_unit(name, queue_id, at)[0] for at in range(queue_offset + 1, end)), cold)
