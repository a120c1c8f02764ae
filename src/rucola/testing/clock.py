"""A clock that tests set and move."""

from __future__ import annotations


class ManualClock:
    """Implements ``runtime.clock.Clock``.

    wall_ms: initial value of ``wall_ms()``, milliseconds since the epoch.
    step_ms: how far the wall clock moves by itself after each reading, in ms.
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000, step_ms: int = 0) -> None:
        self._wall_ms = wall_ms
        self._step_ms = step_ms
        self._monotonic = 0.0

    def wall_ms(self) -> int:
        """The current wall clock time, ms."""
        now = self._wall_ms
        self._wall_ms += self._step_ms
        return now

    def monotonic(self) -> float:
        """Number of seconds by which ``advance`` has moved the clock."""
        return self._monotonic

    def advance(self, milliseconds: int) -> None:
        """Moves the wall clock and the monotonic clock forward."""
        self._wall_ms += milliseconds
        self._monotonic += milliseconds / 1000

    def set_wall_ms(self, wall_ms: int) -> None:
        """Sets only the wall clock, as an administrator or a time server would; it may go backwards."""
        self._wall_ms = wall_ms
