"""Keeps the waiting requests of each connection, limits their number, and lists them when the connection closes.

Thus no single connection can use up the broker's limit of waiting requests. Official clients send one waiting request
for each queue, all over one connection. The limit of a connection is therefore much higher than one consumer needs. A
connection that has reached its limit is still read, because its heartbeats must be served, too.
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
