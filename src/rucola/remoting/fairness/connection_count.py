"""Refuses connections above a maximum number, in all and for one address, and leaves descriptors for the store."""

from __future__ import annotations

import logging
from typing import Protocol

from rucola.runtime.logs import event
from rucola.runtime.machine import raise_file_limit

logger = logging.getLogger(__name__)

_PORT_BYTES = 4  # a stored host ends with its port
_NO_LIMIT = 1 << 31


class ConnectionLimits(Protocol):
    """The options of a server that matter here."""

    @property
    def connections_max(self) -> int:
        """Maximum number of connections."""
        ...

    @property
    def connections_per_address_max(self) -> int:
        """The same for one address."""
        ...


class ConnectionCount:
    """The connections of one server. Event loop only.

    Args:
        limits: the limits.
        file_limit: how many descriptors the process may open; 0 if there is no limit. The connections of one server use
            at most nine sixteenths of the descriptors. The connections of all servers together leave an eighth of the
            descriptors free.

    Attributes:
        connections_max: maximum number of connections.
        per_address_max: the same for one address. If few descriptors lower the first number, one address gets at most
            half of it, as with the default options; otherwise it could take all connections.
        refused: number of connections that were closed as soon as they were accepted.
    """

    def __init__(self, limits: ConnectionLimits, file_limit: int = 0) -> None:
        self.connections_max = limits.connections_max
        self.per_address_max = limits.connections_per_address_max
        self.refused = 0
        self._descriptor_max = file_limit - file_limit // 8 if file_limit else _NO_LIMIT
        if file_limit and file_limit * 9 // 16 < self.connections_max:
            self.connections_max = max(file_limit * 9 // 16, 1)
            self.per_address_max = min(self.per_address_max, max(self.connections_max // 2, 1))
        self._count = 0
        self._by_address: dict[bytes, int] = {}

    def opened(self, host: bytes, descriptor: int) -> str:
        """Counts a connection; returns why it must be closed, or an empty text.

        Args:
            host: address and port of the peer, as in records.
            descriptor: descriptor of its socket. The operating system assigns the lowest free number, so at least
                ``descriptor`` descriptors are open.
        """
        refusal = self._refusal(host[:-_PORT_BYTES], descriptor)
        self.refused += bool(refusal)
        return refusal

    def _refusal(self, address: bytes, descriptor: int) -> str:
        self._count += 1
        self._by_address[address] = self._by_address.get(address, 0) + 1
        if self._count > self.connections_max:
            return f"more than {self.connections_max} connections"
        if descriptor >= self._descriptor_max:
            return "the remaining file descriptors are reserved for the store"
        if self._by_address[address] > self.per_address_max:
            return f"more than {self.per_address_max} connections from one address"
        return ""

    def closed(self, host: bytes) -> None:
        """Called once for each opened connection, when it has ended."""
        address = host[:-_PORT_BYTES]
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


def count_connections(limits: ConnectionLimits) -> ConnectionCount:
    """Returns a count for this process, which gets as many descriptors as it may have; logs if these are too few."""
    count = ConnectionCount(limits, raise_file_limit())
    if count.connections_max < limits.connections_max:
        event(
            logger,
            logging.WARNING,
            "fewer connections than connectionsMax are possible; raise the limit of open files",
            connections_max=limits.connections_max,
            allowed=count.connections_max,
        )
    return count
