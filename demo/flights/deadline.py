"""A time limit for calls without one, such as the start of Spark's Java."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .processes import DemoError


@contextmanager
def deadline(what: str, timeout_s: float) -> Iterator[None]:
    """Interrupts the code inside when it takes longer than ``timeout_s``. Only for the main thread, and not nested.

    Raises:
        DemoError: it took longer.
    """

    def late(number: int, frame: FrameType | None) -> None:
        raise DemoError(f"{what} took longer than {timeout_s:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
