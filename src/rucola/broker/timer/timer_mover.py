"""Stores waiting timer messages again at the end of the log, so that the old part of the log can be removed before they
are due. Event loop only.

A moved message looks like one that rolls: it is in the timer topic once more, with its due time unchanged. Once the
copy is synced, the old unit of the timer log gets the bit ``MAGIC_MOVED``, and no longer stands for the message. If a
crash comes in between, the message may be delivered twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from rucola.broker.set_aside import set_aside
from rucola.broker.timer.waiting_message import WaitingMessage
from rucola.common.message import StoreMessage
from rucola.common.message_const import REAL_TOPIC
from rucola.errors import FormatError
from rucola.formats.timer import MAGIC_DELETE
from rucola.store.message_store import MessageStore
from rucola.store.timer.timer_log import LoggedUnit
from rucola.store.timer.timer_store import TimerStore

MOVE_AGAIN_MS = 3_600_000
"""A message is not moved within this time after it was stored. Otherwise, waiting messages that fill the disk would be
written again and again; the log is then kept, and grows.
"""
_AT_ONCE = 256
_LOOK_AGAIN_MS = 100
_MARGIN_STEPS = 2
"""The messages of the next time steps are not moved but delivered, since their step may be open already."""


class _Moved(NamedTuple):
    """Copies that are not synced yet: their old units and topics, and the physical offset after the last copy."""

    units: list[tuple[LoggedUnit, str]]
    end: int


class TimerMover:
    """Moves messages, oldest first.

    Args:
        read: reads the timer message at a physical offset; None if it cannot be read.
        put: stores messages, and returns how many were stored or skipped.

    Attributes:
        move_below: physical offset below which messages are to be moved; 0 if there is nothing to do.
    """

    def __init__(
        self,
        store: MessageStore,
        timers: TimerStore,
        read: Callable[[int, Iterable[int]], WaitingMessage | None],
        put: Callable[[list[StoreMessage]], int],
    ) -> None:
        self.move_below = 0
        self._store = store
        self._timers = timers
        self._read = read
        self._put = put
        self._moved: _Moved | None = None

    def work(self, now_ms: int) -> int | None:
        """Moves some messages.

        Returns:
            Milliseconds until the next call; None if there is nothing left to do.

        Raises:
            NotInMemoryError: a message must be fetched; the progress so far is kept.
        """
        if self._moved is not None:
            if self._store.flushed_offset < self._moved.end:
                return _LOOK_AGAIN_MS
            self._settle(self._moved, now_ms)
        first = self._timers.first_needed(self._store.min_offset)
        if first is None or first.physical_offset >= self.move_below:
            self.move_below = 0
            return None
        precision_ms = self._timers.geometry.precision_ms
        units = self._movable(first, self._timers.read_time_ms + _MARGIN_STEPS * precision_ms, now_ms)
        if units is None:
            self.move_below = 0
            return None
        if not units:
            return precision_ms
        return 0 if self._move(units, now_ms) else _LOOK_AGAIN_MS

    def _movable(self, first: LoggedUnit, open_to_ms: int, now_ms: int) -> list[LoggedUnit] | None:
        """The units to move now, up to the first one that must not be moved yet; None if no unit should be moved,
        because the first one was stored a short time ago.
        """
        units: list[LoggedUnit] = []
        for unit in self._timers.units_from(first.position, _AT_ONCE):
            if unit.physical_offset >= self.move_below:
                break
            if not self._timers.is_waiting(unit):
                continue
            if unit.due_ms <= open_to_ms:
                break
            if now_ms - unit.write_time_ms < MOVE_AGAIN_MS:
                return units or None
            units.append(unit)
        return units

    def _move(self, units: list[LoggedUnit], now_ms: int) -> bool:
        """Stores copies; returns False if the store refuses messages at the moment."""
        moved: list[tuple[LoggedUnit, str]] = []
        copies: list[StoreMessage] = []
        settled: list[tuple[LoggedUnit, str]] = []
        for number, unit in enumerate(units):
            waiting = self._read(unit.physical_offset, (each.physical_offset for each in units[number + 1 :]))
            topic = "" if waiting is None else waiting.properties.get(REAL_TOPIC, "")
            if waiting is None or self._store.is_deleted(topic.encode(errors="replace"), unit.physical_offset):
                settled.append((unit, topic))
                continue
            try:
                copies.append(waiting.delivered(unit.write_time_ms, now_ms, None))
            except FormatError as error:
                set_aside(self._store.stats, "moving of timed messages", unit.physical_offset, error)
                settled.append((unit, topic))
                continue
            moved.append((unit, topic))
        done = self._put(copies)
        self._moved = _Moved(moved[:done] + settled, self._store.max_offset)
        self._store.flush_soon()
        return done == len(copies)

    def _settle(self, moved: _Moved, now_ms: int) -> None:
        for unit, topic in moved.units:
            self._timers.moved(unit)
            self._timers.metrics.add(topic, 1 if unit.magic & MAGIC_DELETE else -1, now_ms)
        self._moved = None
