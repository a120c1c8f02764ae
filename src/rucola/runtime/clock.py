"""Time. The only module that reads a clock; everything else takes a ``Clock`` through its constructor."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The source of time for a service. ``SystemClock`` implements it, and ``testing.clock.ManualClock`` for tests."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch; the clock may be set forwards or backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back. Use it for every timeout."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds from an arbitrary start."""
        return time.monotonic()


def thread_cpu_s() -> float:
    """Returns the processor time that the calling thread has used, in seconds."""
    return time.thread_time()


def local_time_digits(wall_ms: int) -> str:
    """Returns ``wall_ms`` in local time as the 17 digits ``yyyyMMddHHmmssSSS``. RocketMQ names its index files this
    way.
    """
    return time.strftime("%Y%m%d%H%M%S", time.localtime(wall_ms // 1000)) + f"{wall_ms % 1000:03d}"
