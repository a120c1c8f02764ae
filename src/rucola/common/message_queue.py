"""The name of one queue of a topic on one broker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class MessageQueue:
    """A queue as clients see it; ordered by topic, broker name and queue id, an order that rebalancing relies on."""

    topic: str
    broker_name: str
    queue_id: int
