"""A time limit for calls that have none, such as the start of Spark's Java."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .processes import DemoError


@contextmanager
def deadline(what: str, timeout_s: float) -> Iterator[None]:
    """Interrupts the code inside the block if it takes longer than ``timeout_s``. Works only in the main thread, not
    nested.

    Raises:
        DemoError: the code took longer.
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
