"""When what must happen next. One heap for all keys; no timer for each."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", int, float)
_STALE_MIN = 64
"""The heap is rebuilt only when it has more than this number of entries that no longer count."""


class DueTimes(Generic[K, T]):
    """Each key has at most one time, of whatever clock and unit. All operations take logarithmic time, on average."""

    def __init__(self) -> None:
        self._times: dict[K, T] = {}
        self._heap: list[tuple[T, int, K]] = []
        self._numbers = itertools.count()

    def __contains__(self, key: K) -> bool:
        return key in self._times

    def __len__(self) -> int:
        return len(self._times)

    def set(self, key: K, due: T) -> None:
        """Sets the time of a key, in place of its former one."""
        if self._times.get(key) == due:
            return
        self._times[key] = due
        heapq.heappush(self._heap, (due, next(self._numbers), key))
        if len(self._heap) > 2 * len(self._times) + _STALE_MIN:
            self._heap = [(at, next(self._numbers), each) for each, at in self._times.items()]
            heapq.heapify(self._heap)

    def drop(self, key: K) -> None:
        """Forgets the time of a key, if it has one."""
        self._times.pop(key, None)

    def next_due(self) -> T | None:
        """Returns the earliest time; None if no key has one."""
        while self._heap:
            due, _, key = self._heap[0]
            if self._times.get(key) == due:
                return due
            heapq.heappop(self._heap)
        return None

    def clear(self) -> None:
        """Forgets all keys."""
        self._times.clear()
        self._heap.clear()

    def take(self, now: T) -> K | None:
        """Returns a key whose time has come, and forgets its time; None if there is none."""
        due = self.next_due()
        if due is None or due > now:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._times[key]
        return key
