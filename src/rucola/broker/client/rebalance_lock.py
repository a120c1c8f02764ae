"""Queue locks of orderly consumers (RocketMQ 5.3.3, ``RebalanceLockManager``).

A lock belongs to one client id of one group and lasts 60 s unless renewed. Nothing is enforced at pull time: orderly
consumers keep to it among themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

LOCK_LIFETIME_S = 60.0
"""``rocketmq.broker.rebalance.lockMaxLiveTime``, 60,000 ms."""

Queue = TypeVar("Queue")


class RebalanceLockManager:
    """Locks by group and queue. ``monotonic`` gives seconds; a queue is any hashable value."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._locks: dict[str, dict[object, tuple[str, float]]] = {}

    def try_lock(self, group: str, queues: Iterable[Queue], client_id: str) -> list[Queue]:
        """Lock or renew ``queues``; returns those ``client_id`` owns now."""
        now = self._monotonic()
        locks = self._locks.setdefault(group, {})
        owned = []
        for queue in queues:
            holder = locks.get(queue)
            if holder is None or holder[0] == client_id or now - holder[1] > LOCK_LIFETIME_S:
                locks[queue] = (client_id, now)
                owned.append(queue)
        return owned

    def holds_any(self, group: str) -> bool:
        """Whether a client of ``group`` holds a lock, which makes it a group of orderly consumers."""
        limit = self._monotonic() - LOCK_LIFETIME_S
        return any(since >= limit for _, since in self._locks.get(group, {}).values())

    def unlock(self, group: str, queues: Iterable[Queue], client_id: str) -> None:
        """Release the queues that ``client_id`` owns; others are left alone."""
        locks = self._locks.get(group, {})
        for queue in queues:
            holder = locks.get(queue)
            if holder is not None and holder[0] == client_id:
                del locks[queue]
