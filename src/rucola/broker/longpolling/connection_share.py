"""How many requests of one connection may wait for messages: one client cannot take the places of all others.

Official clients ask for each queue that they read with a request that waits, all over one connection, so the bound is
far above what reading needs, and such a connection is read on: its heartbeats come over it, too.
"""

from __future__ import annotations

from typing import Any

REQUESTS_MAX = 4096


class ConnectionShare:
    """The count for each connection. Event loop only."""

    def __init__(self) -> None:
        self._counts: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def enter(self, channel: Any) -> bool:
        """One more request of ``channel`` waits; False when it may not."""
        count = self._counts.get(channel, 0)
        if count >= REQUESTS_MAX:
            return False
        self._counts[channel] = count + 1
        return True

    def leave(self, channel: Any) -> None:
        """One that entered does not wait any more."""
        count = self._counts[channel] - 1
        if count:
            self._counts[channel] = count
        else:
            del self._counts[channel]
