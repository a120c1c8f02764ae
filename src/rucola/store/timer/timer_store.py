"""Manages timer log, timer wheel and checkpoint together, and recovers them at start-up (RocketMQ 5.3.3,
``TimerMessageStore``).

The timer topic's queue in the commit log is the source from which timer log and wheel are derived. Recovery therefore
cuts the timer log at its first unit that is damaged or whose record is gone. It corrects the wheel according to the
units after the checkpoint, or according to all units if the wheel points beyond the end of the timer log. Then it
determines the queue offset at which it continues to read messages from the queue. It remembers existing units, so that
no message waits twice.

The files are created when the first message arrives. The event loop's thread does everything except ``write``, which
any thread may call, but only one at a time.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from rucola.common.data_version import DataVersion
from rucola.errors import DiskError, FormatError
from rucola.formats.timer import (
    MAGIC_DELETE,
    MAGIC_MOVED,
    TIMER_CHECKPOINT,
    TIMER_UNIT_BYTES,
    WHEEL_SLOTS,
    TimerCheckpoint,
    TimerMetrics,
    TimerSlot,
)
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.timer.timer_log import LoggedUnit, TimerLog, WaitingUnit
from rucola.store.timer.timer_wheel import TimerWheel

logger = logging.getLogger(__name__)
_PASSED_AT_ONCE = 256
_PASSED_MAX = 4096
"""Largest number of units that one call of ``first_needed`` passes, in about 3 ms."""


class TimerGeometry(NamedTuple):
    """Sizes of the timer files.

    Attributes:
        log_segment_bytes: length in bytes of a segment of the timer log.
        precision_ms: length of a time step in ms.
        slots: number of slots of the wheel. If the broker was stopped for at most half the time that all slots cover,
            every due message is still found.
    """

    log_segment_bytes: int
    precision_ms: int = 1000
    slots: int = WHEEL_SLOTS

    @property
    def span_ms(self) -> int:
        """Time in ms after which a slot is used again."""
        return self.slots * self.precision_ms


class TimerQueue(NamedTuple):
    """Facts about the commit log and the timer topic's queue that recovery needs.

    Attributes:
        physical_end: offset after the last record of the commit log.
        min_offset: smallest queue offset in the queue.
        max_offset: queue offset after the last entry of the queue.
        physical_of: returns the physical offset of an entry of the queue.
        queue_offset_of: returns the queue offset of the record at a physical offset; -1 if the record cannot be read.
    """

    physical_end: int
    min_offset: int
    max_offset: int
    physical_of: Callable[[int], int]
    queue_offset_of: Callable[[int], int]


@dataclass(slots=True)
class Changes:
    """The changes that one ``write`` writes and syncs."""

    checkpoint: TimerCheckpoint
    slots: dict[int, TimerSlot]
    metrics: bytes | None


class TimerStore:
    """The timer files of a store.

    Attributes:
        read_time_ms: time of the first time step that is not delivered yet.
        queue_offset: queue offset of the next message to read from the timer topic.
        taken_offset: queue offset up to which earlier runs read messages of the timer topic. Of these messages, all
            that were due before ``taken_time_ms`` were delivered.
        metrics: number of waiting messages by topic.
    """

    def __init__(self, files: Files, root: str, geometry: TimerGeometry) -> None:
        self.geometry = geometry
        self.read_time_ms = 0
        self.queue_offset = 0
        self.taken_offset = 0
        self.taken_time_ms = 0
        self.metrics = TimerMetrics()
        self._files = files
        self._config_directory = f"{root}/config"
        self._derived = f"{root}/timerlog", f"{root}/timerwheel"
        self._checkpoint_path = f"{self._config_directory}/timercheck"
        self._metrics_path = f"{self._config_directory}/timermetrics"
        self._log = TimerLog(files, f"{root}/timerlog", geometry.log_segment_bytes)
        self._wheel = TimerWheel(files, f"{root}/timerwheel", geometry.slots, geometry.precision_ms)
        self._open = False
        self._fresh = False
        self._failed = False
        self._known: set[int] = set()
        self._passed = 0
        """Position in the timer log; no unit before it is needed any more."""
        self._marks: deque[tuple[int, int, int, int]] = deque()
        """Four values of each recorded state: the physical offset up to which the commit log must be synced before the
        state is valid, the read time, the queue offset, and the end of the timer log.
        """
        self._safe = (0, 0, 0)
        self._written = TimerCheckpoint()
        self._metrics_written = b""

    def load(self, queue: TimerQueue, now_ms: int) -> None:
        """Opens the files, repairs them, and determines where to continue.

        Raises:
            StoreDamagedError: a file of the timer log is not a segment, or a segment is missing.
            DiskError: a call of the operating system failed.
        """
        self._log.load()
        checkpoint = self._read_checkpoint()
        self._read_metrics()
        there = self._files.exists(self._wheel.path) or bool(self._log.segments.files)
        resume = 0 if checkpoint is None else min(checkpoint.queue_offset, checkpoint.master_queue_offset)
        resume = min(max(resume, queue.min_offset), queue.max_offset)
        flush_position = 0 if checkpoint is None else checkpoint.log_flush_position
        self.queue_offset = resume
        if there:
            self._open_wheel()
            self.queue_offset = self._recover(queue, resume, flush_position)
        elif flush_position > 0:
            self.queue_offset = queue.min_offset
        self.read_time_ms = self._first_time(checkpoint, there, now_ms)
        if checkpoint is not None:
            self.taken_offset, self.taken_time_ms = resume, self.read_time_ms
            self._written = checkpoint
        self._safe = self.read_time_ms, self.queue_offset, self._log.end
        self._passed = self._log.segments.start
        event(
            logger,
            logging.INFO,
            "timers loaded",
            read_time_ms=self.read_time_ms,
            queue_offset=self.queue_offset,
            log_end=self._log.end,
        )

    def follow(self, checkpoint: TimerCheckpoint) -> None:
        """Takes over a master's checkpoint, for those who ask for it. Writes nothing."""
        self._written = checkpoint

    def forget(self) -> None:
        """Removes timer log and wheel before ``load``: they are those of a former master, and the progress of another
        one does not fit them. The next ``load`` makes them again from the commit log.

        Raises:
            DiskError: they cannot be removed.
        """
        there = [path for path in self._derived if self._files.exists(path)]
        for path in there:
            self._files.remove_tree(path)
        if there:
            self._files.sync_parent(there[0])

    # -- waiting messages ----------------------------------------------------------------------------------------------

    def add(self, due_ms: int, unit: WaitingUnit, topic_hash: int) -> None:
        """Makes a message wait for the time step of ``due_ms``.

        Raises:
            DiskFullError: there is no space; nothing was changed.
        """
        if not self._open:
            self._open_wheel()
        slot = self._wheel.get(due_ms)
        position = self._log.append(
            slot.last_position,
            unit.magic,
            unit.write_time_ms,
            due_ms - unit.write_time_ms,
            unit.physical_offset,
            unit.size,
            topic_hash,
        )
        first = position if slot.first_position < 0 else slot.first_position
        waiting = slot.waiting - 1 if unit.magic & MAGIC_DELETE else slot.waiting + 1
        self._wheel.put(TimerSlot(slot.step, first, position, waiting))

    def known(self, physical_offset: int) -> bool:
        """Whether this message, read again after a restart, is already waiting."""
        return physical_offset in self._known

    def caught_up(self) -> None:
        """Notes that all messages that were in the queue at start-up have been read."""
        self._known = set()

    def newest(self, time_ms: int) -> int:
        """Returns the position of the newest unit of a time step; -1 if no message waits for it."""
        return self._wheel.get(time_ms).last_position if self._open else -1

    def next_used(self, time_ms: int, end_ms: int) -> int:
        """Returns the first time step from ``time_ms`` on for which a message may wait, or ``end_ms`` if there is none
        before it.
        """
        return self._wheel.next_used(time_ms, end_ms) if self._open else end_ms

    def count(self, time_ms: int) -> int:
        """Returns the number of messages that wait for a time step, minus recalled ones."""
        return self._wheel.get(time_ms).waiting if self._open else 0

    def units(self, position: int) -> array[int]:
        """Returns the units of the time step whose newest unit is at ``position``, newest first. Each unit is
        ``UNIT_COLUMNS`` consecutive integers: the fields of ``WaitingUnit``, in order.
        """
        return self._log.chain(position)

    # -- units whose records the log must keep -------------------------------------------------------------------------

    def first_needed(self, min_offset: int) -> LoggedUnit | None:
        """Returns the first unit of the timer log whose message is not yet delivered on the disk; None if there is
        none. Since units and their records have the same order, no older record is needed.

        Each unit is passed once in the life of the process, so a call takes constant time on average. A call passes at
        most ``_PASSED_MAX`` units; it then returns the next one, which may not be needed.

        Args:
            min_offset: physical offset where the commit log begins; older records are lost.
        """
        self._passed = max(self._passed, self._log.segments.start)
        for _ in range(_PASSED_MAX // _PASSED_AT_ONCE):
            units = self._log.units_from(self._passed, _PASSED_AT_ONCE)
            for unit in units:
                if unit.physical_offset >= min_offset and self.is_waiting(unit):
                    self._passed = unit.position
                    return unit
            if not units:
                return None
            self._passed = units[-1].position + TIMER_UNIT_BYTES
        return next(iter(self._log.units_from(self._passed, 1)), None)

    def units_from(self, position: int, count: int) -> list[LoggedUnit]:
        """Returns up to ``count`` units of the timer log from ``position`` on."""
        return self._log.units_from(position, count)

    def is_waiting(self, unit: LoggedUnit) -> bool:
        """Whether a crash now would leave the message of ``unit`` undelivered, and no other unit stands for it."""
        precision_ms = self.geometry.precision_ms
        in_step_ms = unit.due_ms - unit.due_ms % precision_ms
        return not unit.magic & MAGIC_MOVED and in_step_ms >= self._written.read_time_ms

    def moved(self, unit: LoggedUnit) -> None:
        """Notes that another unit stands for the message of ``unit``, because the message was stored again."""
        self._log.set_magic(unit.position, unit.magic | MAGIC_MOVED)
        slot = self._wheel.get(unit.due_ms)
        if slot.last_position >= 0:
            waiting = slot.waiting + 1 if unit.magic & MAGIC_DELETE else slot.waiting - 1
            self._wheel.put(slot._replace(waiting=waiting))

    @property
    def is_empty(self) -> bool:
        """True if no message was ever added."""
        return not self._open

    # -- to the disk ---------------------------------------------------------------------------------------------------

    def mark(self, physical_end: int) -> None:
        """Notes that the current state becomes valid once the commit log is synced up to ``physical_end``."""
        place = self.read_time_ms, self.queue_offset, self._log.end
        if self._marks and self._marks[-1][1:] == place:
            return
        self._marks.append((physical_end, *place))

    def is_behind(self, flushed_offset: int) -> bool:
        """True if some recorded progress is not valid yet, because the commit log is not synced up to it."""
        return bool(self._marks) and self._marks[-1][0] > flushed_offset

    def changes(self, flushed_offset: int, now_ms: int) -> Changes | None:
        """Returns the changes to write; None if nothing has changed, or if an earlier sync of timer log or wheel has
        failed. After such a failure, the next start-up repairs both.
        """
        if self._failed:
            return None
        while self._marks and self._marks[0][0] <= flushed_offset:
            self._safe = self._marks.popleft()[1:]
        read_time_ms, queue_offset, log_end = self._safe
        version = self._written.data_version
        checkpoint = TimerCheckpoint(read_time_ms, log_end, queue_offset, queue_offset, version)
        if checkpoint != self._written:
            checkpoint = replace(checkpoint, data_version=version.next(now_ms))
        slots = self._wheel.take_changes()
        text = self.metrics.encode()
        metrics = None if text == self._metrics_written else text
        if checkpoint == self._written and not slots and metrics is None:
            return None
        return Changes(checkpoint, slots, metrics)

    def write(self, changes: Changes) -> None:
        """Writes and syncs ``changes``: first the timer log, then the wheel, then the checkpoint.

        Raises:
            DiskError: the changes may not have reached the disk. If timer log or wheel could not be synced, nothing is
                written any more: a later sync could succeed although these changes never reached the disk.
        """
        if self._open:
            try:
                self._log.sync()
                self._wheel.apply(changes.slots)
            except DiskError:
                self._failed = True
                raise
        self._files.make_directory(self._config_directory)
        if changes.checkpoint != self._written:
            if self._files.exists(self._checkpoint_path):
                self._files.write_at(self._checkpoint_path, 0, changes.checkpoint.encode_fields())
            else:
                self._files.replace_file(self._checkpoint_path, changes.checkpoint.encode())
            self._written = changes.checkpoint
        if changes.metrics is not None:
            self._files.replace_file(self._metrics_path, changes.metrics, f"{self._metrics_path}.bak")
            self._metrics_written = changes.metrics

    def remove_expired(self, min_offset: int) -> None:
        """Removes segments of the timer log whose records have expired. Must not be called during a ``write``.

        Raises:
            DiskError: a file cannot be removed.
        """
        self._log.remove_expired(min_offset)

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """The checkpoint that was written last."""
        return self._written

    def close(self) -> None:
        """Unmaps all files."""
        self._log.close()
        if self._open:
            self._wheel.close()
            self._open = False

    # -- start ---------------------------------------------------------------------------------------------------------

    def _open_wheel(self) -> None:
        self._fresh = not self._wheel.open()
        self._open = True

    def _recover(self, queue: TimerQueue, resume: int, flush_position: int) -> int:
        """Repairs log and wheel; returns the queue offset from which to continue."""
        geometry, log, wheel = self.geometry, self._log, self._wheel
        seen_from = queue.physical_of(resume) if resume < queue.max_offset else queue.physical_end
        start = 0 if self._fresh else max(flush_position - geometry.log_segment_bytes, 0)
        self._known, last = log.recover(start, wheel.map, geometry.precision_ms, queue.physical_end, seen_from)
        if wheel.is_beyond(log.end):
            event(logger, logging.WARNING, "timer wheel is rebuilt from the timer log", path=wheel.path)
            wheel.clear()
            self._known, last = log.recover(0, wheel.map, geometry.precision_ms, queue.physical_end, seen_from)
        log.sync()
        wheel.map.sync()
        if log.end >= flush_position:
            return resume
        event(
            logger,
            logging.ERROR,
            "timer log is cut, messages are read again from the timer topic",
            end=log.end,
            was=flush_position,
        )
        before = -1 if last < 0 else queue.queue_offset_of(last)
        return min(max(before + 1, queue.min_offset), resume)

    def _first_time(self, checkpoint: TimerCheckpoint | None, there: bool, now_ms: int) -> int:
        """Returns the time step from which to continue."""
        precision_ms, span_ms = self.geometry.precision_ms, self.geometry.span_ms
        now_ms -= now_ms % precision_ms
        if checkpoint is None or checkpoint.read_time_ms <= 0:
            return now_ms - span_ms // 2 if there else now_ms
        if checkpoint.read_time_ms > now_ms + span_ms // 2:
            event(logger, logging.ERROR, "timer checkpoint lies in the future", read_time_ms=checkpoint.read_time_ms)
            return now_ms
        return checkpoint.read_time_ms - checkpoint.read_time_ms % precision_ms

    def _read_checkpoint(self) -> TimerCheckpoint | None:
        content = self._files.read_file(self._checkpoint_path)
        if content is None or len(content) < TIMER_CHECKPOINT.size:
            return None
        return TimerCheckpoint.decode(content)

    def _read_metrics(self) -> None:
        """Reads the metrics. The metrics are only informative, so a damaged table is replaced by an empty one."""
        for path in (self._metrics_path, f"{self._metrics_path}.bak"):
            text = self._files.read_file(path)
            if text:
                try:
                    self.metrics = TimerMetrics.decode(text)
                except FormatError as error:
                    event(logger, logging.WARNING, "timer metrics cannot be read", path=path, error=error)
                    continue
                self._metrics_written = text
                return
        self.metrics = TimerMetrics(data_version=DataVersion())
