"""Keeps the waiting requests of each connection, limits their number, and lists them when the connection closes.

Thus no single connection can use up the broker's limit of waiting requests. An official client sends one waiting
request for each of its queues, and sends all of them through one connection. ``REQUESTS_MAX`` is therefore much larger
than the number of queues of one consumer. The broker still reads from a connection that has reached its limit, because
the connection's heartbeats must be served, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from rucola.broker.shares import Shares
from rucola.remoting.channel import Channel

REQUESTS_MAX = 4096
ACCOUNT_MAX = 25_000
"""Maximum number of waiting requests of one account, on all its connections."""
W = TypeVar("W")


class ConnectionShare(Generic[W]):
    """Maps each connection to its waiting requests. Event loop only.

    Args:
        account_of: returns the account of a connection; empty without accounts, and then only connections have limits.
    """

    def __init__(self, account_of: Callable[[Channel], str] = lambda _: "") -> None:
        self._account_of = account_of
        self._requests: dict[Channel, dict[W, None]] = {}
        self._accounts: dict[Channel, str] = {}
        """The account of each connection when its first request began to wait."""
        self._shares = Shares(REQUESTS_MAX * ACCOUNT_MAX, ACCOUNT_MAX, 0)

    def __len__(self) -> int:
        return len(self._requests)

    def enter(self, channel: Channel, request: W) -> bool:
        """Adds a waiting ``request`` of ``channel``; returns False if too many of its requests wait."""
        requests = self._requests.get(channel)
        account = self._account_of(channel) if requests is None else self._accounts.get(channel, "")
        if requests is not None and len(requests) >= REQUESTS_MAX:
            return False
        if account and not self._shares.take(account):
            return False
        if requests is None:
            requests = self._requests[channel] = {}
            if account:
                self._accounts[channel] = account
        requests[request] = None
        return True

    def leave(self, channel: Channel, request: W) -> None:
        """Removes a request."""
        requests = self._requests[channel]
        del requests[request]
        account = self._accounts.get(channel, "")
        if account:
            self._shares.give_back(account)
        if not requests:
            del self._requests[channel]
            self._accounts.pop(channel, None)

    def of(self, channel: Channel) -> list[W]:
        """The waiting requests of ``channel``."""
        return list(self._requests.get(channel, ()))
