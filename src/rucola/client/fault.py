"""Brokers that failed or were slow are left out for a while. Source: RocketMQ 5.3.3, MQFaultStrategy."""

from __future__ import annotations

from bisect import bisect_right

_LATENCIES_MS = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
_NOT_AVAILABLE_MS = (0, 0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
"""For how long, by the number of latencies above that were reached."""
_FAILED_MS = 10_000
"""A broker that failed counts as one that took so long."""


class LatencyFaultTolerance:
    """What the latest sends to each broker say of it. All times are those of one clock, in seconds."""

    def __init__(self) -> None:
        self._available_at: dict[str, float] = {}

    def answered(self, broker_name: str, latency_s: float, now: float) -> None:
        """A send was answered after ``latency_s``."""
        index = bisect_right(_LATENCIES_MS, latency_s * 1000)
        self._available_at[broker_name] = now + _NOT_AVAILABLE_MS[index] / 1000

    def failed(self, broker_name: str, now: float) -> None:
        """A send was refused, or not answered."""
        self.answered(broker_name, _FAILED_MS / 1000, now)

    def is_available(self, broker_name: str, now: float) -> bool:
        """Whether the broker may be sent to, if others are there."""
        return self._available_at.get(broker_name, now) <= now
