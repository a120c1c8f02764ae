"""Avoids a broker for some time after it failed or was slow. Source: RocketMQ 5.3.3, MQFaultStrategy."""

from __future__ import annotations

from bisect import bisect_right

_LATENCIES_MS = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
_NOT_AVAILABLE_MS = (0, 0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
"""How long to avoid a broker. The first value applies to latencies below the first of ``_LATENCIES_MS``, and so on."""
_FAILED_MS = 10_000
"""Latency that is assumed for a failed broker."""


class LatencyFaultTolerance:
    """The state of each broker, from the latest sends. All times are in seconds of the same clock."""

    def __init__(self) -> None:
        self._available_at: dict[str, float] = {}

    def answered(self, broker_name: str, latency_s: float, now: float) -> None:
        """Records that a broker responded to a send after ``latency_s``."""
        index = bisect_right(_LATENCIES_MS, latency_s * 1000)
        self._available_at[broker_name] = now + _NOT_AVAILABLE_MS[index] / 1000

    def failed(self, broker_name: str, now: float) -> None:
        """Records that a broker refused a send or did not respond."""
        self.answered(broker_name, _FAILED_MS / 1000, now)

    def is_available(self, broker_name: str, now: float) -> bool:
        """True if messages may go to the broker; False if they should go to other brokers while any is available."""
        return self._available_at.get(broker_name, now) <= now
