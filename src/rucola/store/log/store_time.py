"""The store time of messages: the wall clock, but never earlier than the newest message's store time, and never earlier
than a store time that was returned before. It is the broker's time wherever a time is compared with a stored one.

The wall clock is behind this time if the clock was set back, or if the clock was ahead for a while. Store time then
continues from this time, more slowly than the clock, until the clock has caught up. Store time must not stand
still, because the waits of delayed messages and retries are measured in store time. The more slowly store time runs,
the sooner the clock catches up, but the longer those waits take:

=================== =========== ======================== =================================
clock is behind by  store time  waits take               this lasts
=================== =========== ======================== =================================
a minute or less    half speed  up to twice as long      at most 2 minutes
more                nine tenths up to 1.12 times as long 10 times the excess over a minute
=================== =========== ======================== =================================
"""

from __future__ import annotations

import logging

from rucola.runtime.clock import Clock
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
_NEAR_MS = 60_000
_TOLD_FROM_MS = 1000
"""Smallest difference in ms that is logged; time servers regularly correct smaller differences."""


class StoreTime:
    """Computes store times. Used by the appending thread only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms = 0
        self._is_behind = False
        self._begin_ms, self._begin_s, self._begin_wall_ms = 0, 0.0, 0
        self._told = False

    def now_ms(self, newest_ms: int) -> int:
        """Returns the store time that a message gets now.

        Args:
            newest_ms: store time of the newest message.
        """
        now = self._clock.wall_ms()
        if now >= newest_ms and now >= self._last_ms:
            if self._is_behind:
                self._caught_up()
            self._last_ms = now
            return now
        return self._held_back(now, newest_ms)

    def not_before(self, time_ms: int) -> None:
        """Makes later store times not earlier than ``time_ms``, which an earlier process has seen."""
        if time_ms > self._last_ms:
            self._last_ms, self._is_behind = time_ms, False

    def _held_back(self, wall_ms: int, newest_ms: int) -> int:
        monotonic_s = self._clock.monotonic()
        if newest_ms > self._last_ms or not self._is_behind:
            self._is_behind = True
            self._last_ms = self._begin(max(newest_ms, self._last_ms), monotonic_s, wall_ms)
            return self._last_ms
        passed_ms = round((monotonic_s - self._begin_s) * 1000)
        far_ms = _far_ms(self._begin_ms - self._begin_wall_ms)
        now = self._begin_ms + min(passed_ms, far_ms) * 9 // 10 + max(passed_ms - far_ms, 0) // 2
        if wall_ms < self._begin_wall_ms + passed_ms - _TOLD_FROM_MS:  # The clock was set back once more.
            self._begin(now, monotonic_s, wall_ms)
        self._last_ms = now
        return now

    def _begin(self, begin_ms: int, monotonic_s: float, wall_ms: int) -> int:
        self._begin_ms, self._begin_s, self._begin_wall_ms = begin_ms, monotonic_s, wall_ms
        behind_ms = begin_ms - wall_ms
        if behind_ms >= _TOLD_FROM_MS:
            self._told = True
            event(
                logger,
                logging.WARNING,
                "wall clock is behind the newest message's store time: store time runs more slowly than the clock "
                "until the clock has caught up; delayed messages and retries wait longer",
                behind_ms=behind_ms,
                ends_in_s=(_far_ms(behind_ms) + 2 * min(behind_ms, _NEAR_MS)) // 1000,
            )
        return begin_ms

    def _caught_up(self) -> None:
        self._is_behind = False
        if self._told:
            self._told = False
            event(logger, logging.INFO, "wall clock has caught up with store time")


def _far_ms(behind_ms: int) -> int:
    """Returns for how many milliseconds store time runs at nine tenths of the clock's speed. After this time, the
    clock, which was ``behind_ms`` behind store time, is only a minute behind.
    """
    return max(behind_ms - _NEAR_MS, 0) * 10
