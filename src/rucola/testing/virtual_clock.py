"""The wall clock of tests: the system's clock plus the time by which tests advanced it.

A process has one wall clock, shared by all its ``RocketMQ`` instances and clients. It returns to the system's time when
the last ``RocketMQ`` is closed. Tests never move the monotonic clock, so heartbeats, timeouts and the expiry of
connections are not affected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from rucola.runtime.clock import SystemClock

_wall_ms_of_system = SystemClock.wall_ms


class UnmovedClock(SystemClock):
    """The clocks of the operating system, independent of what tests do to ``SystemClock``."""

    wall_ms = _wall_ms_of_system


class VirtualClock:
    """The object ``rocketmq.clock``. Any thread may call its methods.

    Args:
        catch_up: function that does the work that has become due; it is called after each change, including changes by
            other clocks of this process.
    """

    def __init__(self, catch_up: Callable[[], None]) -> None:
        self._catch_up = catch_up

    @property
    def ahead(self) -> timedelta:
        """The time by which this process's wall clock is ahead of the system's clock."""
        return timedelta(milliseconds=_process.ahead_ms)

    def now(self) -> datetime:
        """The current time, in UTC, for brokers and clients in this process."""
        return datetime.fromtimestamp(SystemClock().wall_ms() / 1000, UTC)

    def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Advances the time; returns when the broker has done the work that is due at the new time.

        Delayed messages and retries are then in their topics, and popped messages whose invisible time has ended are in
        their retry topics. Producers have been asked about half messages that are due for a check. Expired files are
        removed soon afterwards.

        Raises:
            TypeError: ``by`` is not a ``timedelta``.
            ValueError: the time would go back.
        """
        if not isinstance(by, timedelta | None):
            raise TypeError(f"advance takes a timedelta or a unit, as in advance(seconds=90), not {by!r}")
        step = (by or timedelta()) + timedelta(
            days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
        )
        if step < timedelta():
            raise ValueError(f"time cannot go back by {-step}")
        _process.advance(round(step.total_seconds() * 1000))

    def open(self) -> None:
        """Makes this clock follow the time that all clocks of this process share."""
        _process.open(self._catch_up)

    def close(self) -> None:
        """Ends what ``open`` began: this clock no longer follows the shared time."""
        _process.close(self._catch_up)


class _ProcessTime:
    """The shared wall clock of this process, and how far it is ahead of the system's clock. The shared clock replaces
    the system's clock while any ``VirtualClock`` is open.
    """

    def __init__(self) -> None:
        self.ahead_ms = 0
        self._open: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def open(self, catch_up: Callable[[], None]) -> None:
        with self._lock:
            if not self._open:
                SystemClock.wall_ms = _wall_ms_ahead  # type: ignore[method-assign, assignment]
            self._open.append(catch_up)

    def close(self, catch_up: Callable[[], None]) -> None:
        with self._lock:
            self._open.remove(catch_up)
            if not self._open:
                SystemClock.wall_ms = _wall_ms_of_system  # type: ignore[method-assign]
                self.ahead_ms = 0

    def advance(self, milliseconds: int) -> None:
        with self._lock:
            self.ahead_ms += milliseconds
            concerned = list(self._open)
        for catch_up in concerned:
            catch_up()


_process = _ProcessTime()


def _wall_ms_ahead(clock: SystemClock) -> int:
    return _wall_ms_of_system(clock) + _process.ahead_ms
