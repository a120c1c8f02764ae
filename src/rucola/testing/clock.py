"""A clock that moves only when it is told to."""

from __future__ import annotations


class ManualClock:
    """Implements ``runtime.clock.Clock``.

    Args:
        wall_ms: first answer of ``wall_ms()``, milliseconds since the epoch.
        step_ms: how far the wall clock moves by itself after each reading.
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000, step_ms: int = 0) -> None:
        self._wall_ms = wall_ms
        self._step_ms = step_ms
        self._monotonic = 0.0

    def wall_ms(self) -> int:
        """The time that was set last."""
        now = self._wall_ms
        self._wall_ms += self._step_ms
        return now

    def monotonic(self) -> float:
        """Seconds by which ``advance`` moved the clock so far."""
        return self._monotonic

    def advance(self, milliseconds: int) -> None:
        """Moves both clocks forward."""
        self._wall_ms += milliseconds
        self._monotonic += milliseconds / 1000

    def set_wall_ms(self, wall_ms: int) -> None:
        """Sets the wall clock alone, as an administrator or a time server would; it may go backwards."""
        self._wall_ms = wall_ms
