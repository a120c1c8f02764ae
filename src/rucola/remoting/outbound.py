"""The writing half of a connection: collects the responses to the requests of a read, and sends them with one write.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from rucola.remoting.fairness.connection_watch import ConnectionProgress
from rucola.remoting.fairness.unsent_bytes import COUNTED_BYTES
from rucola.remoting.server_options import ServerOptions

Part = bytes | bytearray | memoryview
"""A frame, or a piece of one."""


class OutboundOwner(Protocol):
    """What the writing half needs of the server."""

    options: ServerOptions

    def overrun(self, channel: Outbound) -> None:
        """Called when ``channel`` accepts its responses too slowly."""

    def grew(self, channel: Outbound, size: int) -> None:
        """Called when ``channel`` has ``size`` bytes of responses that were not sent yet."""


class Outbound:
    """What is sent to one peer. ``Channel`` inherits this class, because a handler calls ``send`` for each response.

    Attributes:
        remote_address: the peer as ``ip:port``.
        gathering: whether a flush is due, so that ``send`` need not schedule one.
        progress: for ``ConnectionWatch``.
    """

    __slots__ = (
        "_counted",
        "_gathered_bytes",
        "_loop",
        "_parts",
        "_server",
        "_transport",
        "gathering",
        "progress",
        "remote_address",
    )

    def __init__(self, server: OutboundOwner, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parts: list[Part] = []
        self._counted = self._gathered_bytes = 0  # the first _counted of _parts have _gathered_bytes bytes
        self.gathering = False
        self.progress = ConnectionProgress(loop.time())
        self.remote_address = ""

    def send(self, data: Part) -> None:
        """Sends a whole frame. The bytes must not change until they are sent: pass ``bytes`` or a fresh buffer."""
        self._parts.append(data)
        if not self.gathering:
            self.gathering = True
            self._loop.call_soon(self._flush)

    def send_parts(self, parts: Iterable[Part]) -> None:
        """Sends frames given in pieces, without joining them. The rule of ``send`` applies."""
        self._parts.extend(parts)
        if not self.gathering:
            self.gathering = True
            self._loop.call_soon(self._flush)

    def flush_gathered(self) -> None:
        """Sends what was collected while ``gathering`` was set."""
        if self._parts:
            self._flush()
        else:
            self.gathering = False

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes of responses that the operating system has not accepted yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def close(self) -> None:
        """Sends the collected bytes, then closes."""
        if self._parts:
            self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes without sending the remaining bytes."""
        if self._transport is not None:
            self._transport.abort()

    def connected(self, transport: asyncio.Transport) -> None:
        """Called by the reading half when the connection was accepted."""
        self._transport = transport
        high = self._server.options.outbound_bytes_high
        transport.set_write_buffer_limits(high, high // 4)

    def ended(self) -> None:
        """Called by the reading half, once, when the connection is gone."""
        self._transport = None
        self._parts = []

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        self.gathering = False
        self._counted = self._gathered_bytes = 0
        transport = self._transport
        if transport is None or not parts:
            return
        self.progress.active = True
        if len(parts) == 1:
            transport.write(parts[0])
        else:
            transport.writelines(parts)
        size = transport.get_write_buffer_size()
        if size > COUNTED_BYTES:
            self._server.grew(self, size)
            if size > self._server.options.outbound_bytes_max:
                self._server.overrun(self)
                transport.abort()
