"""When what must happen next. One heap for all keys; no timer for each."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
_STALE_MIN = 64
"""The heap is rebuilt only when it has more than this number of entries that no longer count."""


class DueTimes(Generic[K]):
    """Each key has at most one time. All operations take logarithmic time, on average."""

    def __init__(self) -> None:
        self._times: dict[K, int] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._times)

    def set(self, key: K, due_ms: int) -> None:
        """Sets the time of a key, in place of its former one."""
        if self._times.get(key) == due_ms:
            return
        self._times[key] = due_ms
        heapq.heappush(self._heap, (due_ms, next(self._numbers), key))
        if len(self._heap) > 2 * len(self._times) + _STALE_MIN:
            self._heap = [(at_ms, next(self._numbers), each) for each, at_ms in self._times.items()]
            heapq.heapify(self._heap)

    def drop(self, key: K) -> None:
        """Forgets the time of a key, if it has one."""
        self._times.pop(key, None)

    def next_ms(self) -> int | None:
        """Returns the earliest time; None if no key has one."""
        while self._heap:
            due_ms, _, key = self._heap[0]
            if self._times.get(key) == due_ms:
                return due_ms
            heapq.heappop(self._heap)
        return None

    def take(self, now_ms: int) -> K | None:
        """Returns a key whose time has come, and forgets its time; None if there is none."""
        due_ms = self.next_ms()
        if due_ms is None or due_ms > now_ms:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._times[key]
        return key
