"""Delivers messages at the delivery time in their properties (RocketMQ 5.3.3, ``TimerMessageStore``). Event loop only.

The service has two halves. The first half takes messages in order from the timer topic's queue. It delivers messages
that are already due; every other message gets a unit in the timer log under its time step. The second half processes
the time steps in order. When a step is over, its messages are stored again under their own topics and queues. If a
message has a longer delay than a unit allows, its unit covers a part of the delay; after that part, the message is
stored in the timer topic again.

The progress of both halves is recorded only once the stored messages are synced. After a crash, recent messages may
therefore be delivered again, as in RocketMQ. None is lost, and none is delivered early.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from rucola.broker.paced_work import NEW_QUEUES
from rucola.broker.set_aside import destination, set_aside
from rucola.broker.timer.time_step import TimeStep
from rucola.broker.timer.timer_mover import TimerMover
from rucola.broker.timer.timer_rewrite import TIMER
from rucola.broker.timer.waiting_message import WaitingMessage
from rucola.common.java import string_hash
from rucola.common.message import StoreMessage
from rucola.common.message_const import REAL_TOPIC, SENDER, TIMER_DEL_UNIQKEY, TIMER_OUT_MS, UNIQ_KEY
from rucola.common.numbers import number_in
from rucola.errors import DiskError, FormatError
from rucola.formats.properties import decode_properties
from rucola.formats.timer import MAGIC_DELETE, MAGIC_MOVED, MAGIC_PLAIN, MAGIC_ROLL
from rucola.runtime.logs import event
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus
from rucola.store.timer.timer_log import WaitingUnit
from rucola.store.timer.timer_store import TimerQueue, TimerStore

logger = logging.getLogger(__name__)

RETRY_MS = 100
"""Pause in milliseconds before the next attempt if the store refuses messages."""
LOOK_AGAIN_MS = 1000
"""Longest pause in milliseconds while a message may be waiting. Somebody may set the wall clock during a pause."""
_TAKE = 256
"""Largest number of messages that are taken from the queue, or delivered, at a time. Between such batches the loop
serves its sockets.
"""
_EMPTY_STEPS = 20_000
_LOOK_AHEAD_STEPS = 16
"""From so many steps on, unused ones are passed together."""
_AHEAD = 8192
_AHEAD_BYTES = 16 << 20
"""At most ``_AHEAD`` messages, and about ``_AHEAD_BYTES`` bytes, are prepared before their time step is over."""
_TOGETHER_BYTES = 64 * 1024
_BACKLOG_MS = 1000
_WORK = "delivery of timed messages"
_DUE_MS_MAX = 10**18 - 1
_DUE_AT_ONCE_MS = (1 << 63) - 1


class TimerMessageService:
    """Moves timed messages from the timer topic into the wheel, and delivers them.

    Args:
        roll_window_ms: longest delay that one unit of the timer log can have.
        wall_ms: returns the time that due times are compared with.
        read_queue: returns the queue of a topic for a message of a queue; see ``TopicConfigManager.read_queue``.
    """

    def __init__(
        self,
        store: MessageStore,
        timers: TimerStore,
        roll_window_ms: int,
        wall_ms: Callable[[], int],
        read_queue: Callable[[str, int], int],
    ) -> None:
        self._read_queue = read_queue
        self._store = store
        self._timers = timers
        self._roll_window_ms = roll_window_ms
        self._wall_ms = wall_ms
        self._step_ms = timers.geometry.precision_ms
        self._step: TimeStep | None = None
        self._delivering = False
        self._walk_end = 0
        self._first_end = 0
        self._prepared_ms = 0
        """The time step that was opened last."""
        self._stored_end = 0
        self._new_queues = 0
        self._together_bytes = min(_TOGETHER_BYTES, store.config.mapped_file_size_commit_log // 8)
        self._cold: ColdRecords | None = None
        self._mover = TimerMover(store, timers, self._read, self._put)

    def load(self) -> None:
        """Loads the timer files. The store must be loaded already.

        Raises:
            StoreDamagedError: the timer files do not match the configuration.
            DiskError: the operating system refused an operation.
        """
        store = self._store
        queue = TimerQueue(
            store.max_offset,
            store.min_queue_offset(TIMER, 0),
            store.max_queue_offset(TIMER, 0),
            lambda queue_offset: store.queue_unit(TIMER, 0, queue_offset)[0],
            self._queue_offset_of,
        )
        self._timers.load(queue, self._wall_ms())
        # The clock may have been set back while the broker was stopped.
        store.not_before(self._timers.read_time_ms)
        self._walk_end = self._timers.read_time_ms + self._timers.geometry.span_ms
        self._first_end = queue.max_offset

    def pending(self) -> int:
        """Number of timer messages that are not delivered yet."""
        waiting = sum(metric.count for metric in self._timers.metrics.topics.values())
        return waiting + self._store.max_queue_offset(TIMER, 0) - self._timers.queue_offset

    def delivered_until_ms(self, cold: ColdRecords | None = None) -> int:
        """Returns a time. All messages that were stored and due before that time have reached their topics.

        Args:
            cold: see ``MessageStore.message_at``.

        Raises:
            NotInMemoryError: a message must be fetched.
        """
        timers, store = self._timers, self._store
        until_ms = self._wall_ms() if timers.is_empty else timers.read_time_ms
        if timers.queue_offset < store.max_queue_offset(TIMER, 0):
            until_ms = min(until_ms, store.store_time_at(TIMER, 0, timers.queue_offset, cold))
        since_ms = store.undispatched_since_ms
        return until_ms if since_ms is None else min(until_ms, since_ms)

    def now_ms(self) -> int:
        """The time that due times are compared with."""
        return self._wall_ms()

    def needed_from(self) -> int | None:
        """Physical offset of the oldest message that waits for its time; None if none waits."""
        timers, store = self._timers, self._store
        first = timers.first_needed(store.min_offset)
        needed = [] if first is None else [first.physical_offset]
        untaken = max(timers.checkpoint.queue_offset, store.min_queue_offset(TIMER, 0))
        if untaken < store.max_queue_offset(TIMER, 0):
            needed.append(store.queue_unit(TIMER, 0, untaken)[0])
        return min(needed, default=None)

    def move_on(self, physical_offset: int) -> None:
        """Makes ``work`` store the waiting messages below ``physical_offset`` again."""
        self._mover.move_below = max(self._mover.move_below, physical_offset)

    def work(self, cold: ColdRecords | None = None) -> int | None:
        """Takes at most one batch of messages from the queue, delivers at most one batch, and moves at most one if
        ``move_on`` was called.

        Args:
            cold: see ``MessageStore.message_at``.

        Returns:
            Milliseconds until the next call; None if no message waits. The next message then causes the next call.

        Raises:
            NotInMemoryError: the next message must be fetched; the progress so far is kept.
        """
        self._cold = cold
        pause_ms = self._take_and_deliver()
        if not self._mover.move_below:
            return pause_ms
        pauses_ms = [pause for pause in (pause_ms, self._mover.work(self._wall_ms())) if pause is not None]
        return min(pauses_ms, default=None)

    def _take_and_deliver(self) -> int | None:
        """See ``work``."""
        now_ms = self._wall_ms()
        step_now_ms = now_ms - now_ms % self._step_ms
        timers = self._timers
        wait_for_backlog_ms = 0
        # After a long stop, deliveries must first free the slots of the wheel that new messages need.
        if timers.is_empty or timers.read_time_ms >= step_now_ms - timers.geometry.span_ms // 2:
            if not self._take(step_now_ms):
                return RETRY_MS
            if timers.queue_offset < self._store.max_queue_offset(TIMER, 0):
                # A message that is still in the queue may belong to the next step, or may recall a message of that
                # step. After start-up, all messages in the queue are taken before the first delivery.
                wait_for_backlog_ms = timers.geometry.span_ms if timers.queue_offset < self._first_end else _BACKLOG_MS
        if timers.is_empty:
            timers.read_time_ms = max(timers.read_time_ms, step_now_ms)
            return 0 if wait_for_backlog_ms else None
        pause_ms = self._deliver(step_now_ms, wait_for_backlog_ms)
        if pause_ms is not None:
            return pause_ms
        half_ms = step_now_ms + self._step_ms // 2
        if wait_for_backlog_ms or (now_ms >= half_ms and self._prepare(step_now_ms)):
            return 0
        return min((half_ms if now_ms < half_ms else step_now_ms + self._step_ms) - now_ms, LOOK_AGAIN_MS)

    # -- from the queue into the wheel ---------------------------------------------------------------------------------

    def _take(self, step_now_ms: int) -> bool:
        """Takes messages from the queue; returns False if the store refuses messages at the moment."""
        timers, store = self._timers, self._store
        end = store.max_queue_offset(TIMER, 0)
        timers.queue_offset = max(timers.queue_offset, store.min_queue_offset(TIMER, 0))
        if timers.queue_offset >= end:
            timers.caught_up()
            return True
        possible, safe_end = True, 0
        try:
            for _ in range(_TAKE):
                if timers.queue_offset >= end:
                    break
                physical_offset, size, _ = store.queue_unit(TIMER, 0, timers.queue_offset)
                possible = timers.known(physical_offset) or self._take_one(physical_offset, size, step_now_ms)
                if not possible:
                    break
                timers.queue_offset += 1
                safe_end = physical_offset + size
        finally:  # runs even if the next message must be fetched
            timers.mark(max(safe_end, self._stored_end))
        return possible

    def _take_one(self, physical_offset: int, size: int, step_now_ms: int) -> bool:
        """Stores one message in the wheel, or delivers it; returns False if neither is possible now."""
        timers = self._timers
        waiting = self._read(physical_offset, self._behind(timers.queue_offset))
        if waiting is None:
            return True
        properties = waiting.properties
        due_ms = number_in(properties.get(TIMER_OUT_MS, ""), 0, _DUE_MS_MAX)
        try:
            if due_ms is None:
                raise FormatError("timer message", physical_offset, f"a time in {TIMER_OUT_MS}", "none")
            destination(properties, revives=True)
        except FormatError as error:
            set_aside(self._store.stats, _WORK, physical_offset, error)
            return True
        assert due_ms is not None
        withdraws = TIMER_DEL_UNIQKEY in properties
        open_from_ms = timers.read_time_ms + (self._step_ms if self._delivering else 0)
        if due_ms < min(step_now_ms, open_from_ms):
            delivered_before = timers.queue_offset < timers.taken_offset and due_ms < timers.taken_time_ms
            return delivered_before or withdraws or self._put_one(waiting, physical_offset)
        magic = MAGIC_PLAIN | (MAGIC_DELETE if withdraws else 0)
        if due_ms - step_now_ms >= self._roll_window_ms:
            magic |= MAGIC_ROLL
            half = (
                due_ms - step_now_ms - self._roll_window_ms < self._roll_window_ms // 3 // self._step_ms * self._step_ms
            )
            window_ms = self._roll_window_ms // 2 // self._step_ms * self._step_ms if half else self._roll_window_ms
            due_ms = step_now_ms + window_ms
        # If the clock was set back, a message must not go into a step that was already delivered.
        due_ms = max(due_ms, open_from_ms)
        topic = properties.get(REAL_TOPIC, "")
        try:
            timers.add(due_ms, WaitingUnit(physical_offset, size, magic, step_now_ms), string_hash(topic))
        except DiskError as error:
            event(logger, logging.ERROR, "timer message not added to the timer log, will retry later", error=error)
            return False
        timers.metrics.add(topic, -1 if magic & MAGIC_DELETE else 1, self._wall_ms())
        return True

    def _put_one(self, waiting: WaitingMessage, physical_offset: int) -> bool:
        """Delivers a message that is already due when it is taken from the queue."""
        try:
            if self._is_deleted(waiting.properties.get(REAL_TOPIC, ""), physical_offset):
                return True
            message = waiting.delivered(_DUE_AT_ONCE_MS, self._wall_ms(), self._read_queue)
        except FormatError as error:
            set_aside(self._store.stats, _WORK, physical_offset, error)
            return True
        return self._put([message]) == 1

    # -- from the wheel to the consumers -------------------------------------------------------------------------------

    def _deliver(self, step_now_ms: int, wait_ms: int) -> int | None:
        """Delivers the time steps that are over; returns the milliseconds until there is more to do, None when all
        steps are delivered.

        Args:
            wait_ms: milliseconds that must pass after a time step before its delivery begins.
        """
        timers = self._timers
        for _ in range(_EMPTY_STEPS):
            time_ms = timers.read_time_ms
            if time_ms >= step_now_ms:
                return None
            if not self._delivering:
                if step_now_ms - time_ms <= wait_ms:
                    return 0
                if not self._open_step():
                    timers.read_time_ms = self._following(time_ms, step_now_ms)
                    continue
                self._delivering = True
            step = self._step
            assert step is not None
            if not self._read_withdrawals(step):
                return 0
            self._make_ready(step, _TAKE)
            batch = step.ready[:_TAKE]
            done = self._put([message for message, _, _ in batch])
            counts: Counter[str] = Counter()
            for _, topic, change in batch[:done]:
                counts[topic] += change
            for topic, change in counts.items():
                timers.metrics.add(topic, change, self._wall_ms())
            step.ready = step.ready[done:]
            if done < len(batch):
                return 0 if self._new_queues >= NEW_QUEUES else RETRY_MS
            if not step.ready and not self._make_ready(step, 1):
                self._close_step(step)
            return 0
        return 0

    def _following(self, time_ms: int, step_now_ms: int) -> int:
        """The step to search after the step at ``time_ms``. The first pass after start-up searches the whole wheel.
        Later passes skip steps older than half the wheel's span, because no message waits in them.
        """
        following = time_ms + self._step_ms
        oldest = step_now_ms - self._timers.geometry.span_ms // 2
        end_ms = min(step_now_ms, self._walk_end)
        if following >= self._walk_end:
            following, end_ms = max(following, oldest), step_now_ms
        if end_ms - following < _LOOK_AHEAD_STEPS * self._step_ms:
            return following
        return self._timers.next_used(following, end_ms)

    def _open_step(self) -> bool:
        """Loads the units of the time step that is delivered next, unless they are loaded already. Returns False if no
        message is due in this step.
        """
        timers = self._timers
        position = timers.newest(timers.read_time_ms)
        step = self._step
        if step is not None and (step.time_ms, step.position) == (timers.read_time_ms, position):
            return True
        self._step = None if position < 0 else TimeStep(timers.read_time_ms, position, timers.units(position))
        return self._step is not None

    def _read_withdrawals(self, step: TimeStep) -> bool:
        """Reads up to ``_TAKE`` of the step's messages that recall others; returns whether all of them have been
        read. Until then, no message of the step can be delivered.
        """
        unread = step.withdrawals
        for _ in range(min(_TAKE, len(unread))):
            waiting = self._read(unread[-1], (unread[at] for at in range(len(unread) - 2, -1, -1)))
            unread.pop()
            if waiting is not None:
                key, topic = waiting.properties.get(TIMER_DEL_UNIQKEY, ""), waiting.properties.get(REAL_TOPIC, "")
                if not key.startswith(f"{topic}+"):
                    key = str(len(step.withdrawn))  # no message has this key; older versions took keys of any topic
                mark = waiting.properties.get(SENDER, "")
                step.withdrawn.setdefault(key, {})[mark] = topic
                step.recalls[key, mark] += 1
        return not unread

    def _close_step(self, step: TimeStep) -> None:
        timers = self._timers
        # Each recall lowered its topic's count when it was taken from the queue. A recall without a message of its own,
        # because there was none or another recall named it too, raises the count again.
        counts: Counter[str] = Counter()
        for (key, mark), count in step.recalls.items():
            counts[step.withdrawn[key][mark]] += count
        for topic, count in counts.items():
            if count:
                timers.metrics.add(topic, count, self._wall_ms())
        self._step = None
        self._delivering = False
        timers.read_time_ms += self._step_ms
        timers.mark(self._stored_end)

    def _prepare(self, step_now_ms: int) -> bool:
        """Prepares up to ``_TAKE`` more messages of the current step; returns whether to continue with the step."""
        if self._timers.read_time_ms != step_now_ms:
            return False
        if self._prepared_ms != step_now_ms:
            self._open_step()
            self._prepared_ms = step_now_ms
        step = self._step
        if step is None or len(step.ready) >= _AHEAD or step.ready_bytes >= _AHEAD_BYTES:
            return False
        if self._read_withdrawals(step):
            self._make_ready(step, len(step.ready) + _TAKE)
        return step.unread

    def _make_ready(self, step: TimeStep, count: int) -> bool:
        """Reads up to ``_TAKE`` messages, until ``count`` are prepared; returns False if the step is finished."""
        dequeue_ms = max(self._wall_ms(), step.time_ms + self._step_ms)
        for _ in range(_TAKE):
            unit = step.next_unit()
            if unit is None or len(step.ready) >= count:
                break
            roll = bool(unit.magic & MAGIC_ROLL)
            withdraws = unit.magic & MAGIC_DELETE and not roll
            waiting = (
                None
                if withdraws or unit.magic & MAGIC_MOVED
                else self._read(unit.physical_offset, step.unread_offsets())
            )
            step.read_on()
            if waiting is None:
                continue
            topic = waiting.properties.get(REAL_TOPIC, "")
            key = f"{topic}+{waiting.properties.get(UNIQ_KEY, '')}"
            recall = step.recalled_by(key, waiting.properties.get(SENDER, ""))
            if recall is not None:
                step.recalls[recall] -= 1
                continue
            try:
                if self._is_deleted(topic, unit.physical_offset):
                    self._timers.metrics.add(topic, -1, self._wall_ms())
                    continue
                message = waiting.delivered(unit.write_time_ms, dequeue_ms, None if roll else self._read_queue)
            except FormatError as error:
                set_aside(self._store.stats, _WORK, unit.physical_offset, error)
                self._timers.metrics.add(topic, -1, self._wall_ms())
                continue
            # A recall that rolls lowers the count again when it is taken from the queue again.
            step.ready.append((message, topic, 1 if unit.magic & MAGIC_DELETE else -1))
            step.ready_bytes += len(message.body)
        return step.unread or bool(step.ready)

    # -- store ---------------------------------------------------------------------------------------------------------

    def _is_deleted(self, topic: str, physical_offset: int) -> bool:
        """Whether the topic was deleted while its message waited; the message was deleted with the topic. This also
        ends the waits of messages that roll, because each roll stores a message behind the deletion.
        """
        return self._store.is_deleted(topic.encode(errors="replace"), physical_offset)

    def _behind(self, queue_offset: int) -> Iterator[int]:
        """Physical offsets of the messages that follow ``queue_offset`` in the queue."""
        store = self._store
        end = store.max_queue_offset(TIMER, 0)
        return (store.queue_unit(TIMER, 0, following)[0] for following in range(queue_offset + 1, end))

    def _read(self, physical_offset: int, following: Iterable[int] = ()) -> WaitingMessage | None:
        """The timer message at ``physical_offset``; None, with a log line, if the message cannot be read.

        Args:
            following: physical offsets of the messages that are read next.
        """
        try:
            record = self._store.message_at(physical_offset, self._cold)
        except NotInMemoryError as missing:
            self._store.look_ahead(following, missing.cold)
            raise
        if record is not None:
            try:
                waiting = WaitingMessage(record)
                if waiting.topic == TIMER:  # The entry of a lost record points to the log's beginning.
                    return waiting
            except FormatError:
                pass
        set_aside(self._store.stats, _WORK, physical_offset, "the message cannot be read")
        return None

    def _queue_offset_of(self, physical_offset: int) -> int:
        waiting = self._read(physical_offset)
        return -1 if waiting is None else waiting.queue_offset

    def _put(self, messages: list[StoreMessage]) -> int:
        """Stores messages in order; returns how many were stored or skipped. Stops early if the store refuses messages,
        or once ``NEW_QUEUES`` queues have received their first message.
        """
        done = self._new_queues = 0
        for _, neighbours in groupby(messages, key=lambda m: (m.topic, m.born_host, m.store_host)):
            for group in self._small(list(neighbours)):
                if self._new_queues >= NEW_QUEUES:
                    return done
                results = self._store.put_copies(group)
                self._new_queues += sum(result.queue_offset == 0 for result in results)
                status = results[0].status
                if status is not PutMessageStatus.PUT_OK and len(group) > 1:
                    # A message that cannot be stored must not delay the other messages of its group.
                    for message in group:
                        if not self._settled(self._store.put_copy(message).status, message):
                            return done
                        done += 1
                elif self._settled(status, group[0]):
                    done += len(group)
                else:
                    return done
        return done

    def _small(self, messages: list[StoreMessage]) -> list[list[StoreMessage]]:
        """Splits ``messages`` into groups that are small compared with a log segment, so that little of a segment stays
        empty. A large message is a group of its own.
        """
        groups: list[list[StoreMessage]] = [[]]
        size = 0
        for message in messages:
            size += len(message.body) + len(message.properties)
            if groups[-1] and size > self._together_bytes:
                groups.append([])
                size = len(message.body) + len(message.properties)
            groups[-1].append(message)
        return groups

    def _settled(self, status: PutMessageStatus, message: StoreMessage) -> bool:
        """Records the outcome of storing ``message``; returns False if storing it must be tried again."""
        if status is PutMessageStatus.SERVICE_NOT_AVAILABLE:
            return False
        if status is PutMessageStatus.PUT_OK:
            self._stored_end = self._store.max_offset
        else:
            key = decode_properties(message.properties).get(UNIQ_KEY, "")
            set_aside(self._store.stats, _WORK, -1, f"{status.value}: message {key[:64]!a} for {message.topic!a}")
        return True
