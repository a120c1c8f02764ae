"""Removes expired files and, if space is short, also files that have not expired (RocketMQ 5.3.3,
``CleanCommitLogService``, ``CleanConsumeQueueService``).

Two threads share the work. The maintenance thread checks disk space, the hour of the day and the age of files, and
removes files. Only the event loop's thread changes the lists of segments. A check therefore only decides up to which
offset the log may be removed. The event loop then takes the segments below this offset out of its list, so that readers
see the new minimum offset. Afterwards the maintenance thread removes the files of these segments, oldest first, and
syncs each removal before the next. The memory of a removed segment stays valid as long as slices of it exist.

A segment is removed only after it is synced and dispatched, and its queue entries are synced too. Otherwise, after a
crash, queue offsets that consumers have seen would be assigned again. Index entries that are still missing do not delay
the removal.

A segment is also kept while a message in it still waits inside the broker: for its delivery time, for its producer's
decision, or for the end of an invisible time. The parts of the broker that know these messages are the holders of the
log. If space is short, the holders are asked to store such messages again at the end of the log. Only when the disk is
so full that the store refuses messages, nothing can be moved or delivered any more; then the segments go all the same,
unless forced removal is switched off.

Deliberate differences from RocketMQ 5.3.3: after the wall clock has jumped forward, nothing expires by age for ten
minutes; forced removals are counted, and logged with offsets and ages; and there are no holders in RocketMQ, which
loses the waiting messages of a removed segment.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from rucola.errors import DiskError, StoreDamagedError
from rucola.formats.batch_consume_queue import BATCH_UNIT_BYTES
from rucola.formats.consume_queue import UNIT_BYTES
from rucola.formats.segment_name import is_segment_name
from rucola.runtime.clock import Clock, local_time_digits
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.condition import StoreCondition
from rucola.store.config import MessageStoreConfig
from rucola.store.keep_rule import KeepRule, ages_by_records
from rucola.store.log.mapped_file import MappedFile
from rucola.store.parts import StoreParts
from rucola.store.queue.consume_queue import ConsumeQueue
from rucola.store.stats import StoreStats

logger = logging.getLogger(__name__)
_FIRST_LOOK_S = 60.0
_HOUR_MS = 3_600_000
_JUMP_MS = 60_000
"""If the wall clock advances by this many ms more than the monotonic clock between two checks, the wall clock was set,
or the process was suspended.
"""
_JUMP_PAUSE_S = 600.0
_QUEUES_A_TURN = 256
"""Largest number of queues whose minimum offset is corrected, or whose expired segments are released, in one iteration
of the event loop; this takes some milliseconds.
"""


class Detached(Protocol):
    """A file that is no longer in any list of segments, and is to be removed."""

    @property
    def path(self) -> str:
        """Path of the file to be removed."""
        ...

    def close(self) -> None:
        """Unmaps the file."""


class _Removal(NamedTuple):
    """A pending removal of a file of ``queue``; ``queue`` is None for a segment of the log, an index file, or the files
    of a deleted topic.
    """

    remove: Callable[[], None]
    queue: ConsumeQueue | None = None
    file: Detached | None = None


class LogHolder(Protocol):
    """Knows messages that wait inside the broker, and therefore holds a part of the log. Called on the event loop."""

    def needed_from(self) -> int | None:
        """Physical offset of the oldest record that is still needed; None if none is. Takes constant time."""
        ...

    def move_on(self, physical_offset: int) -> None:
        """Asks to store the needed records below ``physical_offset`` again at the end of the log, because space is
        short. The holder does so later, or not at all.
        """
        ...


class _Choice(NamedTuple):
    """What the maintenance thread has decided.

    Attributes:
        expire_to: physical offset below which the log may be removed.
        forced: whether space is so short that segments are removed before they expire.
        is_full: whether the disk is so full that the store refuses messages.
        ages_ms: age of each segment that may be removed, by its start.
    """

    expire_to: int = 0
    forced: bool = False
    is_full: bool = False
    ages_ms: Mapping[int, int] = {}


class Retention:
    """Decides which files expire, and removes them. ``look`` and ``remove`` are called by the maintenance thread,
    ``hand_over`` by the event loop's thread.

    Attributes:
        waiting: whether ``hand_over`` has something to do.
        holders: the holders of the log; set before ``start``.
        keep_rule: what decides instead of the age of files and the hour of the day; set before ``start``. None for a
            broker's rule.
        wants_sync: whether the maintenance thread should sync the queues now, because segments cannot be removed
            before this sync, or because queues or queue files have been removed.

    Args:
        condition: ``look`` calls ``condition.judged(True)`` if disk use is above the warning ratio. It calls
            ``condition.judged(False)`` if disk use is at or below the ratio of forced removal, which is usually lower.
            In between, it does not call ``judged``. Both threads call ``condition.tell`` when ``hand_over`` has
            something to do.
    """

    def __init__(
        self,
        files: Files,
        clock: Clock,
        config: MessageStoreConfig,
        root: str,
        parts: StoreParts,
        stats: StoreStats,
        condition: StoreCondition,
    ) -> None:
        self.waiting = False
        self.wants_sync = False
        self.holders: list[LogHolder] = []
        self.keep_rule: KeepRule | None = None
        self._files = files
        self._clock = clock
        self._config = config
        self._root = root
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._stats = stats
        self._condition = condition
        self._interval_s = config.clean_resource_interval_ms / 1000
        self._next_look = 0.0
        self._asked = False
        self._moved = False
        self._clocks = (0, 0.0)
        self._trusted_from = 0.0
        self._choice = _Choice()
        self._derived_from = 0
        self._uncorrected: deque[ConsumeQueue] = deque()
        self._shorten: deque[tuple[bytes, int]] = deque()
        self._removals: deque[_Removal] = deque()
        self._removing = threading.Lock()
        self._failed = False

    def start(self) -> None:
        """Must be called after the store has been loaded. The first check follows a minute later."""
        now = self._clock.monotonic()
        self._next_look = now + _FIRST_LOOK_S
        self._clocks = self._clock.wall_ms(), now
        self._derived_from = self._log.min_offset

    # -- the maintenance thread ----------------------------------------------------------------------------------------

    def look(self, safe_offset: int) -> None:
        """Decides, once per ``cleanResourceInterval``, what may expire. Every call also removes the files that the
        event loop has released.

        Args:
            safe_offset: physical offset; all records below it are synced, and so are their queue entries.
        """
        self.remove()
        now = self._clock.monotonic()
        if now < self._next_look and not self._asked:
            return
        asked, self._asked = self._asked, False
        self._next_look = now + self._interval_s
        self._watch_clocks(now)
        try:
            used = self._judge_space()
            is_due = self.keep_rule is not None or self._is_hour()
            if used > self._config.disk_max_used_space_ratio or asked or is_due:
                self._choose(safe_offset, used, asked, now)
            else:
                self._choice = _Choice()
            self._find_long_queues()
        except DiskError as error:
            event(logger, logging.ERROR, "check for expired files failed, will retry later", error=error)
        if self.waiting:
            self._condition.tell()

    def look_soon(self) -> None:
        """Makes the next call of ``look`` also check which files are too old. Any thread may call it."""
        self._asked = True

    def clock_moved(self) -> None:
        """Notes that the wall clock was moved forward deliberately, so that the next ``look`` expires files by the new
        time. Any thread may call it.
        """
        self._moved = self._asked = True

    def remove(self) -> None:
        """Removes the files that the event loop has taken out of its lists, in the same order; retries after a
        failure.
        """
        try:
            while self._removals:
                self._remove_next()
        except DiskError as error:
            if not self._failed:
                event(logger, logging.ERROR, "expired file not removed, will retry later", error=error)
            self._failed = True
            return
        self._failed = False

    def _remove_next(self) -> None:
        with self._removing:
            if not self._removals:
                return  # ``forget`` has dropped the remaining removals.
            removal, queue, _ = self._removals[0]
            if queue is not None:
                removal()
                self._removals.popleft()
                return
        # No queue is affected, so this removal, which may take long, runs without the lock.
        removal()
        with self._removing:
            self._removals.popleft()

    def remove_later(self, removal: Callable[[], None]) -> None:
        """Leaves ``removal`` to the maintenance thread, which retries it after a failure. Also requests a sync of the
        queues.
        """
        self._removals.append(_Removal(removal))
        self.wants_sync = True

    def _watch_clocks(self, now: float) -> None:
        # ``_moved`` is read before the clock, so that this check sees the moved clock.
        moved, self._moved = self._moved, False
        wall_ms, (last_wall_ms, last) = self._clock.wall_ms(), self._clocks
        gained_ms = wall_ms - last_wall_ms - int((now - last) * 1000)
        self._clocks = wall_ms, now
        if moved:
            self._trusted_from = 0.0
        elif gained_ms > _JUMP_MS:
            self._trusted_from = now + _JUMP_PAUSE_S
            event(logger, logging.WARNING, "wall clock jumped, nothing expires for 10 minutes", gained_ms=gained_ms)

    def _judge_space(self) -> int:
        """Returns how much of the disk is used, in percent, after it has told the store and the log.

        If the log has several directories, the least full directory counts, because new segments avoid full
        directories. The disk of the store's own directory counts in any case.
        """
        config, segments = self._config, self._log.segments
        shares = {path: self._used_percent(path) for path in segments.writable_paths}
        segments.full_paths = frozenset(
            path for path, used in shares.items() if used > config.disk_space_clean_forcibly_ratio
        )
        used = max(min(shares.values()), self._used_percent(self._root))
        if used > config.disk_space_warning_level_ratio:
            self._condition.judged(True)
        elif used <= config.disk_space_clean_forcibly_ratio:
            self._condition.judged(False)
        return used

    def _used_percent(self, path: str) -> int:
        used, usable = self._files.disk_usage(path)
        return -(-used * 100 // max(used + usable, 1))

    def _is_hour(self) -> bool:
        hour = int(local_time_digits(self._clock.wall_ms())[8:10])
        return any(int(when) == hour for when in self._config.delete_when.split(";"))

    def _choose(self, safe_offset: int, used: int, asked: bool, now: float) -> None:
        """Decides below which offset the log is removed. Examines the oldest segments, at most
        ``delete_file_batch_max`` of them, until it finds one that must be kept. The newest segment is always kept.

        Args:
            used: used part of the disk in percent.
        """
        config = self._config
        forced = used > config.disk_space_clean_forcibly_ratio and config.clean_file_forcibly_enable
        segments = list(self._log.segments.files)
        log_end = segments[-1].end if segments else 0
        ages_ms: dict[int, int] = {}
        expire_to = 0
        for file, age_ms in self._ages(segments[: config.delete_file_batch_max + 1]):
            if not forced and not self._is_expired(age_ms, log_end - file.start, now >= self._trusted_from):
                break
            if file.end > safe_offset:
                if (forced or asked) and not ages_ms:
                    self.wants_sync = True
                    self._next_look = now
                    self._asked = asked
                break
            ages_ms[file.start] = age_ms
            expire_to = file.end
        is_full = forced and used > config.disk_space_warning_level_ratio
        self._choice = _Choice(expire_to, forced, is_full, ages_ms)
        self.waiting = self.waiting or expire_to > 0

    def _ages(self, segments: list[MappedFile]) -> Iterator[tuple[MappedFile, int]]:
        """Yields each segment except the last with its age in ms."""
        wall_ms = self._clock.wall_ms()
        if self.keep_rule is not None:
            yield from zip(segments, ages_by_records(self._files, segments, wall_ms), strict=False)
            return
        for file in segments[:-1]:
            yield file, wall_ms - self._files.modified_ms(file.path)

    def _is_expired(self, age_ms: int, length: int, is_clock_trusted: bool) -> bool:
        """See ``KeepRule.is_expired``."""
        if self.keep_rule is not None:
            return self.keep_rule.is_expired(age_ms, length, is_clock_trusted)
        return age_ms >= self._config.file_reserved_time_h * _HOUR_MS and is_clock_trusted

    def _find_long_queues(self) -> None:
        """Looks for queues whose oldest segment holds only entries of expired records."""
        min_offset = self._log.min_offset
        if min_offset <= self._derived_from or self._removals or self.waiting:
            return
        for topic, queue_id in self._queues.names():
            directory = self._queues.directory(topic, queue_id)
            names = list(filter(is_segment_name, self._files.list_files(directory)))
            if len(names) > 1 and self._last_entry(f"{directory}/{names[0]}", topic) < min_offset:
                self._shorten.append((topic, queue_id))
        self._derived_from = min_offset
        self.waiting = self.waiting or bool(self._shorten)

    def _last_entry(self, path: str, topic: bytes) -> int:
        """Returns the physical offset in the last unit of a full segment; units of all kinds begin with this field."""
        unit_bytes = BATCH_UNIT_BYTES if self._queues.factory.is_batch(topic) else UNIT_BYTES
        try:
            unit = self._files.read_at(path, self._files.size(path) - unit_bytes, unit_bytes)
        except DiskError:
            return self._log.max_offset  # the queue was removed with its topic in the meantime
        return int.from_bytes(unit[:8], "big")

    # -- the loop's thread ---------------------------------------------------------------------------------------------

    def hand_over(self) -> None:
        """Takes expired segments out of the lists of log, index and queues, a limited number in each call."""
        self.waiting = False
        choice = self._choice
        if choice.expire_to > self._log.min_offset:
            self._shorten_log(choice, self._released_to(choice))
        budget = _QUEUES_A_TURN
        while self._uncorrected and budget:
            self._correct(self._uncorrected.popleft())
            budget -= 1
        while self._shorten and budget:
            self._shorten_queue(*self._shorten.popleft())
            budget -= 1
        if self._uncorrected or self._shorten:
            self.waiting = True
            self._condition.tell()

    def _correct(self, queue: ConsumeQueue) -> None:
        try:
            queue.correct_min_offset()
        except DiskError as error:
            # A pull from below the correct minimum offset skips the expired records.
            event(logger, logging.ERROR, "minimum offset of a queue is too low", path=error.path, error=error)

    def _shorten_queue(self, topic: bytes, queue_id: int) -> None:
        try:
            queue = self._queues.find(topic, queue_id)
            if queue is not None:
                self._detached(queue.detach_expired(), queue)
                self._queues.recount(queue)
                self.wants_sync = True
        except (DiskError, StoreDamagedError) as error:
            name = topic.decode(errors="replace")
            event(logger, logging.ERROR, "expired files of a queue are kept", topic=name, queue=queue_id, error=error)

    def forget(self, queues: list[ConsumeQueue]) -> None:
        """Forgets these queues: they no longer belong to the store, and their paths may soon belong to other files.

        Waits for a running removal of a queue's file.
        """
        gone = set(queues)
        self._uncorrected = deque(queue for queue in self._uncorrected if queue not in gone)
        with self._removing:
            dropped = [each for each in self._removals if each.queue in gone]
            self._removals = deque(each for each in self._removals if each.queue not in gone)
        for each in dropped:
            if each.file is not None:
                each.file.close()

    def _released_to(self, choice: _Choice) -> int:
        """Returns the physical offset below which the log is removed now: as far as no holder needs it."""
        expire_to = choice.expire_to
        needed_from = min((self._needed_from(holder) for holder in self.holders), default=expire_to)
        if needed_from >= expire_to:
            return expire_to
        if choice.is_full:
            event(
                logger,
                logging.CRITICAL,
                "waiting messages are removed, because the disk is full and nothing can be stored",
                needed_from=needed_from,
                end_offset=expire_to,
            )
            return expire_to
        if choice.forced:
            for holder in self.holders:
                holder.move_on(expire_to)
        return needed_from

    def _needed_from(self, holder: LogHolder) -> int:
        try:
            needed_from = holder.needed_from()
        except Exception as error:  # noqa: BLE001 - a defect in a holder must neither remove its messages nor end dispatch
            event(
                logger, logging.ERROR, "log is kept, it is unknown what is needed", error, holder=type(holder).__name__
            )
            return self._log.min_offset
        return self._log.max_offset if needed_from is None else needed_from

    def _shorten_log(self, choice: _Choice, end_offset: int) -> None:
        detached = self._log.segments.detach_before(end_offset)
        if not detached:
            return
        for file in detached:
            self._stats.expired_segments += 1
            self._stats.forced_segments += choice.forced
            event(
                logger,
                logging.WARNING if choice.forced else logging.INFO,
                "segment removed before its time, space is short" if choice.forced else "segment expired",
                path=file.path,
                start_offset=file.start,
                end_offset=file.end,
                age_ms=choice.ages_ms.get(file.start, -1),
            )
        self._detached(detached)
        if self._index is not None:
            self._detached(self._index.detach_before(self._log.min_offset))
        self._uncorrected = deque(self._queues.open_queues())

    def remove_segments(self, files: Iterable[Detached]) -> None:
        """Lets the maintenance thread remove files that are in no list any more."""
        self._detached(files)

    def _detached(self, files: Iterable[Detached], queue: ConsumeQueue | None = None) -> None:
        for file in files:
            self._removals.append(_Removal(partial(self._remove_file, file), queue, file))

    def _remove_file(self, file: Detached) -> None:
        file.close()
        if self._files.exists(file.path):
            self._files.remove(file.path)
        self._files.sync_directory(file.path.rpartition("/")[0])
