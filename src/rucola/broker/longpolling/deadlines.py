"""Timeouts of waiting requests. Event loop only.

Entries are grouped by their moment: the time at which they expire, rounded up to a multiple of ``STEP_S``. Adding and
removing an entry takes constant time, and the loop has one timer for all entries. When the last entry of a moment is
removed, the empty moment is kept, at most until that time.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from rucola.remoting.fairness.turn import TURN_S
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

STEP_S = 0.01
_PER_SECOND = round(1 / STEP_S)
_TAKEN_AT_ONCE = 256
_ROUNDING = 1e-3
"""Tolerance for the rounding error of floating-point sums, in units of ``STEP_S``."""


class Timer(Protocol):
    """The result of ``loop.call_later``."""

    def cancel(self) -> None:
        """Cancels the call."""


W = TypeVar("W")


class Deadlines(Generic[W]):
    """Calls ``expired`` with each entry when its time is over.

    Args:
        monotonic: returns monotonic seconds.
        call_later: ``(seconds, callback) -> Timer``, the loop's method.
        expired: called with each expired entry, after its removal.
    """

    def __init__(
        self, monotonic: Callable[[], float], call_later: Callable[..., Timer], expired: Callable[[W], None]
    ) -> None:
        self._monotonic = monotonic
        self._call_later = call_later
        self._expired = expired
        self._moments: dict[int, dict[W, None]] = {}
        self._order: list[int] = []
        """A heap of the keys of ``_moments``."""
        self._timer: Timer | None = None
        self._timer_moment = 0
        self._turning = False

    def add(self, entry: W, after_s: float) -> int:
        """Makes ``entry`` expire in ``after_s`` seconds. Returns its moment in units of ``STEP_S``, for ``remove``."""
        moment = math.ceil((self._monotonic() + after_s) * _PER_SECOND - _ROUNDING)
        entries = self._moments.get(moment)
        if entries is None:
            entries = self._moments[moment] = {}
            heapq.heappush(self._order, moment)
            if not self._turning and (self._timer is None or moment < self._timer_moment):
                self._arm()
        entries[entry] = None
        return moment

    def remove(self, entry: W, moment: int) -> None:
        """Removes ``entry``, which ended early or is expiring right now."""
        self._moments[moment].pop(entry, None)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_moment = self._order[0]
        self._timer = self._call_later(max(self._timer_moment / _PER_SECOND - self._monotonic(), 0), self._turn)

    def _turn(self) -> None:
        self._timer = None
        self._turning = True
        try:
            began_s = self._monotonic()
            now = began_s * _PER_SECOND + _ROUNDING
            while self._order and (self._order[0] <= now or not self._moments[self._order[0]]):
                moment = self._order[0]
                entries = self._moments[moment]
                while entries:
                    # Takes several entries at once, because each search for the first entry of a dictionary passes the
                    # slots of all removed entries.
                    for entry in list(itertools.islice(entries, _TAKEN_AT_ONCE)):
                        if self._monotonic() - began_s > TURN_S:
                            return  # the other entries expire in the next iteration of the event loop
                        if entry in entries:
                            del entries[entry]
                            self._expire(entry)
                # The moment is removed only now, because the callback of an expired entry may remove other entries of
                # the same moment.
                heapq.heappop(self._order)
                del self._moments[moment]
        finally:
            self._turning = False
            if self._order:
                self._arm()

    def _expire(self, entry: W) -> None:
        try:
            self._expired(entry)
        except Exception as error:  # noqa: BLE001 - a defect costs one entry, not all that come after it
            event(logger, logging.ERROR, "expired request not resumed", error)
