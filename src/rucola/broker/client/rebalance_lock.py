"""Queue locks of orderly consumers (RocketMQ 5.3.3, ``RebalanceLockManager``).

A lock belongs to one client id of one group and lasts 60 s unless it is renewed. A pull does not check it; orderly
consumers respect each other's locks by themselves.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeVar

from rucola.broker.shares import Shares

LOCK_LIFETIME_S = 60.0
"""``rocketmq.broker.rebalance.lockMaxLiveTime``, 60,000 ms."""

LOCKS_MAX, LOCKS_SHARE, LOCKS_KEPT = 200_000, 25_000, 512
"""Maximum number of locks of all groups together, of one owner (an account, or a group without accounts), and number of
locks that each owner may always have. Further requests lock nothing.
"""

_EXPIRED_AT_ONCE = 8192
"""Maximum number of expired locks that one call removes; it is larger than the number of queues that one request may
lock.
"""

Queue = TypeVar("Queue")


class RebalanceLockManager:
    """Locks by group and queue.

    Args:
        monotonic: returns monotonic seconds.
        shares: limits the locks of each owner. Queues may be any hashable values.
    """

    def __init__(self, monotonic: Callable[[], float], shares: Shares | None = None) -> None:
        self._monotonic = monotonic
        self._shares = shares or Shares(LOCKS_MAX, LOCKS_SHARE, LOCKS_KEPT)
        self._locks: OrderedDict[tuple[str, object], tuple[str, float, str]] = OrderedDict()
        """Client id, time and owner of each lock, ordered by time of renewal. In a ``dict``, a search for the first
        entry would pass the slots of all removed entries.
        """
        self._counts: Counter[str] = Counter()
        """Number of locks that each group holds."""

    def __len__(self) -> int:
        return len(self._locks)

    def try_lock(self, group: str, queues: Iterable[Queue], client_id: str, account: str = "") -> list[Queue]:
        """Locks or renews ``queues``; returns those that ``client_id`` now owns.

        Args:
            account: the account whose share the locks belong to; without accounts empty, and each group has a share.
        """
        owner = account or group
        now = self._monotonic()
        self._expire(now)
        owned = []
        for queue in queues:
            key = group, queue
            holder = self._locks.get(key)
            if holder is not None and now - holder[1] > LOCK_LIFETIME_S:
                self._remove(key)
                holder = None
            if (holder is not None and holder[0] != client_id) or (holder is None and not self._shares.take(owner)):
                continue
            if holder is None:
                self._counts[group] += 1
            else:
                del self._locks[key]
            self._locks[key] = (client_id, now, owner if holder is None else holder[2])
            owned.append(queue)
        return owned

    def holds_any(self, group: str) -> bool:
        """True if a client of ``group`` holds a lock; only groups of orderly consumers hold locks."""
        self._expire(self._monotonic())
        return group in self._counts

    def unlock(self, group: str, queues: Iterable[Queue], client_id: str) -> None:
        """Releases those queues that ``client_id`` owns."""
        for queue in queues:
            holder = self._locks.get((group, queue))
            if holder is not None and holder[0] == client_id:
                self._remove((group, queue))

    def _expire(self, now: float) -> None:
        """Removes expired locks, at most ``_EXPIRED_AT_ONCE``; later calls remove the rest."""
        for _ in range(min(_EXPIRED_AT_ONCE, len(self._locks))):
            key, (_, since, _) = next(iter(self._locks.items()))
            if now - since <= LOCK_LIFETIME_S:
                return
            self._remove(key)

    def _remove(self, key: tuple[str, object]) -> None:
        self._shares.give_back(self._locks.pop(key)[2])
        self._counts[key[0]] -= 1
        if not self._counts[key[0]]:
            del self._counts[key[0]]
