"""Limits the bytes of all responses that peers have not accepted yet.

Each connection has a limit of its own. Thousands of connections that ask for long responses and read none can each stay
below that limit and together need more memory than the machine has.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

COUNTED_BYTES = 64 * 1024
"""A connection with fewer unsent bytes than this number is not counted."""
_LEFT = 0.75
"""Connections are closed until at most this fraction of the limit is in use."""


class Sending(Protocol):
    """A connection to which responses are sent."""

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes of responses that the operating system has not accepted yet."""
        ...


Connection = TypeVar("Connection", bound=Sending)


class UnsentBytes(Generic[Connection]):
    """The unsent bytes of all connections. Event loop only.

    Args:
        bytes_max: the limit.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._sizes: dict[Connection, int] = {}
        """Unsent bytes of each connection when they were last counted; there may be fewer by now."""
        self._total = 0

    @property
    def total_bytes(self) -> int:
        """Number of unsent bytes when they were last counted; there may be fewer by now."""
        return self._total

    def grew(self, channel: Connection, size: int) -> list[Connection]:
        """Counts ``size`` unsent bytes of ``channel``.

        Returns:
            The connections to close: those with the most unsent bytes, if all connections together have too many.
        """
        self._total += size - self._sizes.get(channel, 0)
        self._sizes[channel] = size
        return self._largest() if self._total > self._bytes_max else []

    def ended(self, channel: Connection) -> None:
        """Forgets a closed connection."""
        self._total -= self._sizes.pop(channel, 0)

    def _largest(self) -> list[Connection]:
        self._sizes = {channel: size for channel in self._sizes if (size := channel.buffered_bytes)}
        self._total = sum(self._sizes.values())
        if self._total <= self._bytes_max:
            return []
        over, found = self._total - self._bytes_max * _LEFT, list[Connection]()
        for channel, size in sorted(self._sizes.items(), key=lambda entry: entry[1], reverse=True):
            if over <= 0:
                break
            found.append(channel)
            over -= size
        return found
