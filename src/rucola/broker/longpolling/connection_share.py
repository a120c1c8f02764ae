"""What waits for messages, by connection: how much of one connection may wait, and what ends together with it.

One client cannot take the places of all others. Official clients ask for each queue that they read with a request that
waits, all over one connection, so the bound is far above what reading needs, and such a connection is read on: its
heartbeats come over it, too.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

REQUESTS_MAX = 4096
W = TypeVar("W")


class ConnectionShare(Generic[W]):
    """Connection → its requests that wait. Event loop only."""

    def __init__(self) -> None:
        self._requests: dict[Any, dict[W, None]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def enter(self, channel: Any, request: W) -> bool:
        """``request`` of ``channel`` waits from now on; False when too many of its requests do."""
        requests = self._requests.get(channel)
        if requests is None:
            self._requests[channel] = {request: None}
            return True
        if len(requests) >= REQUESTS_MAX:
            return False
        requests[request] = None
        return True

    def leave(self, channel: Any, request: W) -> None:
        """One that entered does not wait any more."""
        requests = self._requests[channel]
        del requests[request]
        if not requests:
            del self._requests[channel]

    def of(self, channel: Any) -> list[W]:
        """What waits of ``channel``."""
        return list(self._requests.get(channel, ()))
