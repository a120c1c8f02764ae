"""Keeps the waiting requests of each connection, limits their number, and lists them when the connection closes.

Thus no single connection can use up the broker's limit of waiting requests. An official client sends one waiting
request for each of its queues, and sends all of them through one connection. ``REQUESTS_MAX`` is therefore much larger
than the number of queues of one consumer. The broker still reads from a connection that has reached its limit, because
the connection's heartbeats must be served, too.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from rucola.remoting.peer import Peer

REQUESTS_MAX = 4096
W = TypeVar("W")


class ConnectionShare(Generic[W]):
    """Maps each connection to its waiting requests. Event loop only."""

    def __init__(self) -> None:
        self._requests: dict[Peer, dict[W, None]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def enter(self, channel: Peer, request: W) -> bool:
        """Adds a waiting ``request`` of ``channel``; returns False if too many of its requests wait."""
        requests = self._requests.get(channel)
        if requests is None:
            self._requests[channel] = {request: None}
            return True
        if len(requests) >= REQUESTS_MAX:
            return False
        requests[request] = None
        return True

    def leave(self, channel: Peer, request: W) -> None:
        """Removes a request."""
        requests = self._requests[channel]
        del requests[request]
        if not requests:
            del self._requests[channel]

    def of(self, channel: Peer) -> list[W]:
        """The waiting requests of ``channel``."""
        return list(self._requests.get(channel, ()))
