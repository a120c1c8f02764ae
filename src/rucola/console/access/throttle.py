"""Slows down who guesses secrets: after some failures, an account and an address must wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FAILURES_MAX: Final = 5
WINDOW_S: Final = 60.0
ENTRIES_MAX: Final = 10_000


class Throttle:
    """Counts failures of sign-ins, by account and by address of the visitor.

    Args:
        monotonic: the time in seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._failures: dict[str, list[float]] = {}

    def wait_s(self, *keys: str) -> float:
        """Seconds until one of ``keys`` may be tried again; 0 if it may be tried now."""
        now_s = self._monotonic()
        return max((self._wait(key, now_s) for key in keys), default=0.0)

    def failed(self, *keys: str) -> None:
        """Counts a failure."""
        now_s = self._monotonic()
        for key in keys:
            recent = [at for at in self._failures.pop(key, []) if now_s - at < WINDOW_S]
            self._failures[key] = [*recent, now_s][-FAILURES_MAX:]
        while len(self._failures) > ENTRIES_MAX:
            del self._failures[next(iter(self._failures))]

    def _wait(self, key: str, now_s: float) -> float:
        recent = [at for at in self._failures.get(key, []) if now_s - at < WINDOW_S]
        return WINDOW_S - (now_s - recent[0]) if len(recent) >= FAILURES_MAX else 0.0
