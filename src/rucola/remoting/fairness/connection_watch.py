"""Decides which connections to close: those above a maximum number, and those that have had an incomplete frame or
unsent responses for too long. ``RemotingServer`` itself closes connections that are silent for too long.

A hostile peer costs one connection and the bytes that it sent, for a limited time; other peers are not affected
(security.md S-02, S-07 to S-09). Nothing here runs for each message: channels only set flags, and ``overdue`` is called
for each channel every few seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rucola.remoting.server_options import ServerOptions

_PORT_BYTES = 4  # a stored host ends with its port
_NO_LIMIT = 1 << 31


class ConnectionProgress:
    """What ``ConnectionWatch``, and the server's check for silent connections, know of one connection.

    The connection sets the first three attributes; the checks clear them.

    Attributes:
        active: whether a byte was received or sent since the last check.
        framed: whether a frame was completed since the last check.
        caught_up: whether the peer, which had been slow, has accepted its responses since the last check.
        idle_since: time in seconds of the last check that found ``active`` set.
        begun_since: time in seconds from which the check counts how long a frame has been incomplete.
        stalled_since: time in seconds of the last check that found fewer unsent bytes than before, or none.
        unsent_before: number of unsent bytes at the last check.
    """

    __slots__ = ("active", "begun_since", "caught_up", "framed", "idle_since", "stalled_since", "unsent_before")

    def __init__(self, now: float) -> None:
        self.active = self.framed = True
        self.caught_up = False
        self.idle_since = self.begun_since = self.stalled_since = now
        self.unsent_before = 0


class Watched(Protocol):
    """A connection, as ``ConnectionWatch`` sees it."""

    host: bytes
    progress: ConnectionProgress

    @property
    def begun_bytes(self) -> int:
        """Number of received bytes of an incomplete frame."""
        ...

    @property
    def is_read(self) -> bool:
        """Whether the server reads bytes that arrive."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Number of unsent bytes of responses, if they keep the server from reading; otherwise 0."""
        ...


class ConnectionWatch:
    """The connections of one server. Event loop only.

    Args:
        options: the limits.
        file_limit: how many descriptors the process may open; 0 if there is no limit. The connections of one server use
            at most nine sixteenths of the descriptors. The connections of all servers together leave an eighth of the
            descriptors free.

    Attributes:
        connections_max: maximum number of connections.
        per_address_max: the same for one address. If few descriptors lower the first number, one address gets at most
            half of it, as with the default options; otherwise it could take all connections.
        refused: number of connections that were closed as soon as they were accepted.
    """

    def __init__(self, options: ServerOptions, file_limit: int = 0) -> None:
        self.connections_max = options.connections_max
        self.per_address_max = options.connections_per_address_max
        self.refused = 0
        self._descriptor_max = file_limit - file_limit // 8 if file_limit else _NO_LIMIT
        if file_limit and file_limit * 9 // 16 < self.connections_max:
            self.connections_max = max(file_limit * 9 // 16, 1)
            self.per_address_max = min(self.per_address_max, max(self.connections_max // 2, 1))
        self._options = options
        self._count = 0
        self._by_address: dict[bytes, int] = {}

    @property
    def period_s(self) -> float:
        """Seconds between two checks of each connection."""
        options = self._options
        shortest = min(options.idle_timeout_ms / 8, options.frame_timeout_ms / 3, options.stalled_timeout_ms / 3)
        return shortest / 1000

    def opened(self, channel: Watched, descriptor: int) -> str:
        """Counts ``channel``; returns why it must be closed, or an empty text.

        Args:
            descriptor: descriptor of the channel's socket. The operating system assigns the lowest free number, so at
                least ``descriptor`` descriptors are open.
        """
        refusal = self._refusal(channel, descriptor)
        self.refused += bool(refusal)
        return refusal

    def _refusal(self, channel: Watched, descriptor: int) -> str:
        address = channel.host[:-_PORT_BYTES]
        self._count += 1
        self._by_address[address] = self._by_address.get(address, 0) + 1
        if self._count > self.connections_max:
            return f"more than {self.connections_max} connections"
        if descriptor >= self._descriptor_max:
            return "the remaining file descriptors are reserved for the store"
        if self._by_address[address] > self.per_address_max:
            return f"more than {self.per_address_max} connections from one address"
        return ""

    def closed(self, channel: Watched) -> None:
        """Called once for each opened channel, when ``channel`` has ended."""
        address = channel.host[:-_PORT_BYTES]
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def overdue(self, channel: Watched, now: float) -> str:
        """Why ``channel`` must be closed at the time ``now`` (seconds); empty if it may stay."""
        options = self._options
        progress = channel.progress
        unsent = channel.unsent_bytes
        if not unsent or progress.caught_up or unsent < progress.unsent_before:
            progress.stalled_since = now
        progress.caught_up = False
        progress.unsent_before = unsent
        if now - progress.stalled_since > options.stalled_timeout_ms / 1000:
            return f"the peer has accepted no response data for {options.stalled_timeout_ms} ms"
        begun = channel.begun_bytes
        # no frame has begun, the frame began after the last check, or reading is paused
        if not begun or progress.framed or not channel.is_read:
            progress.framed = False
            progress.begun_since = now
        elif now - progress.begun_since > options.frame_timeout_ms / 1000 + begun / options.frame_bytes_per_s_min:
            return f"only {begun} bytes of a frame in {now - progress.begun_since:.0f} s"
        return ""
