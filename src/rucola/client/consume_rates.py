"""Consumption rates by topic, computed from the queues' counters every few seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rucola.client.process_queue import ProcessQueue
from rucola.protocol.bodies.consumer_running import ConsumeStatus

_WINDOW_S = 4.0
"""Shortest interval between two samples, in seconds."""


class ConsumeRates:
    """The rates of each topic between the last two samples."""

    def __init__(self) -> None:
        self._seen: dict[ProcessQueue, tuple[int, int, int]] = {}
        self._failed: Counter[str] = Counter()
        self._sampled_at: float | None = None
        self._rates: dict[str, ConsumeStatus] = {}

    def sample(self, queues: Iterable[ProcessQueue], now: float) -> None:
        """Takes a sample of the counters and computes rates, unless the last sample is very recent."""
        if self._sampled_at is not None and now - self._sampled_at < _WINDOW_S:
            return
        elapsed = max(now - self._sampled_at, 1e-9) if self._sampled_at is not None else 0.0
        seen = self._seen
        rates: dict[str, ConsumeStatus] = {}
        self._seen = {}
        for process_queue in queues:
            counts = self._seen[process_queue] = (process_queue.pulled, process_queue.consumed, process_queue.failed)
            pulled, consumed, failed = (
                count - old for count, old in zip(counts, seen.get(process_queue, (0, 0, 0)), strict=True)
            )
            topic = process_queue.message_queue.topic
            self._failed[topic] += failed
            status = rates.setdefault(topic, ConsumeStatus())
            if elapsed:
                status.pull_tps += pulled / elapsed
                status.consume_ok_tps += max(consumed - failed, 0) / elapsed
                status.consume_failed_tps += failed / elapsed
        self._rates, self._sampled_at = rates, now

    def of(self, topics: Iterable[str]) -> dict[str, ConsumeStatus]:
        """For each of ``topics``, the rates, and the number of failed messages since the consumer was started."""
        found = {topic: self._rates.get(topic, ConsumeStatus()) for topic in topics}
        for topic, status in found.items():
            status.consume_failed_msgs = self._failed[topic]
        return found
