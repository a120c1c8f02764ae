"""One accepted connection, as the handlers of a server see it.

``Outbound`` is its writing half, ``Inbound`` its reading half. Event loop only.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from rucola.common.hosts import host_bytes, join_address
from rucola.errors import RemotingClosedError
from rucola.protocol.command import FLAG_ONEWAY, RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.protocol.shared_reader import SharedFrameReader
from rucola.remoting.fairness.read_pauses import OWED, OWES_LITTLE, OWES_MUCH, SLOW_PEER
from rucola.remoting.fairness.turn import ANSWER_BYTES
from rucola.remoting.inbound import Inbound, InboundOwner, RowsHandler
from rucola.remoting.outbound import Outbound, OutboundOwner
from rucola.remoting.response_future import ResponseFuture, ResponseTable

_REQUEST_BYTES = 512
"""Bytes of memory that a waiting request needs, in addition to the bytes that ``owe`` receives as ``size``."""


class FramesHandler(RowsHandler["Channel"], Protocol):
    """The handler of a server's frames."""

    def channel_closed(self, channel: Channel) -> None:
        """Called once per channel, when ``channel`` has ended."""


class ChannelOwner(InboundOwner["Channel"], OutboundOwner, Protocol):
    """The server of a channel, as the channel sees it."""

    def next_opaque(self) -> int:
        """Correlation id of the server's next request to a client."""

    def opened(self, channel: Channel) -> None:
        """Called when ``channel`` was accepted."""

    def closed(self, channel: Channel) -> None:
        """Called when ``channel`` has ended."""


class Channel(Outbound):
    """A client's connection, from the server's view.

    ``RemotingServer`` creates one for every accepted connection. A channel ends when either side closes it, after an
    undecodable frame, or after a timeout. ``handler.channel_closed`` is then called exactly once.

    Attributes:
        inbound: the reading half, which is the protocol of the event loop.
        host: the peer's address in the store's format: 4 or 16 address bytes, then the port as int32.
        secure: whether the connection is encrypted.
        verified: whether the peer has shown a valid certificate.
        attributes: data that the handler keeps with this connection.
        closed: whether the connection is gone.
        costly: whether the connection's last request used much processor time. If so, its next request is served only
            in a turn (iteration) of the event loop that has time left (see ``Turn``). Also True before the first
            request, because many new connections may begin with a costly request.
        invokes: requests of the server that wait for responses of the client; None if there never was one.
    """

    __slots__ = ("_owed", "_turn", "attributes", "closed", "costly", "host", "inbound", "invokes", "secure", "verified")

    _server: ChannelOwner

    def __init__(self, server: ChannelOwner, loop: asyncio.AbstractEventLoop, reader: SharedFrameReader) -> None:
        super().__init__(server, loop)
        self._turn = server.turn
        self._owed = 0
        self.costly = True
        self.invokes: ResponseTable | None = None
        self.closed = False
        self.host = b""
        self.secure = False
        self.verified = False
        self.attributes: dict[Any, Any] = {}
        self.inbound = Inbound(self, server, loop, reader)

    def owe(self, size: int) -> None:
        """Counts a request that waits in the server; ``size`` is the number of bytes of the request or its response
        that stay in memory. When the waiting requests take more than ``outbound_bytes_high``, reading pauses until they
        take at most a quarter of it.
        """
        self._owed += size + _REQUEST_BYTES
        if self._owed > self._server.options.outbound_bytes_high and not self.inbound.reasons & OWED:
            self.inbound.note(OWES_MUCH)

    def settle(self, size: int) -> None:
        """Releases a request that ``owe`` counted with the same ``size``, because it was answered or will never be
        answered.
        """
        self._owed -= size + _REQUEST_BYTES
        reasons = self.inbound.reasons
        if reasons and reasons & OWED and self._owed <= self._server.options.outbound_bytes_high // 4:
            self.inbound.note(OWES_LITTLE)

    def note_request(self) -> bool:
        """Notes that one more request of this read could be served. Returns whether it should wait for a later turn of
        the event loop; see ``postpone``.
        """
        self._gathered_bytes += sum(map(len, self._parts[self._counted :]))
        self._counted = len(self._parts)
        return self._gathered_bytes > ANSWER_BYTES or self._turn.note_request(self._loop)

    def is_turn_over(self) -> bool:
        """As ``note_request``, for what is served without a request and gets no response."""
        return self._turn.note_request(self._loop)

    def note_cost(self, seconds: float) -> None:
        """Sets ``costly`` if the last request used much processor time, otherwise clears it. ``Turn`` estimates this
        time; ``seconds`` is the elapsed time of the request.
        """
        self.costly = self._turn.was_costly(seconds, self._loop)

    def postpone(self, batch: FrameBatch, row: int) -> None:
        """Postpones row ``row`` and all rows after it: ``handler.serve_rows`` gets a copy of them in a later turn.

        Reading pauses until these rows are served. The rows also wait while the peer does not accept its responses.
        """
        self.inbound.postpone(batch, row)

    async def invoke(self, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Sends a request to the client and waits for the response.

        Clients drop unknown requests, so a timeout is an ordinary outcome (protocol.md 2.6).

        Args:
            command: the request; its opaque is set here.
            timeout_ms: how long to wait.

        Raises:
            RemotingTimeoutError: no response in time.
            RemotingClosedError: the connection ended first.
        """
        if self.closed:
            raise RemotingClosedError(self.remote_address)
        if self.invokes is None:
            self.invokes = ResponseTable(self._loop, self.remote_address)
        command.opaque = self._server.next_opaque()
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self.invokes.add(command.opaque, ResponseFuture(future), timeout_ms)
        self.send(command.encode())
        return await future

    def invoke_oneway(self, command: RemotingCommand) -> None:
        """Sends the client a oneway request; does nothing if the connection is closed."""
        if self.closed:
            return
        command.opaque = self._server.next_opaque()
        command.flag |= FLAG_ONEWAY
        self.send(command.encode())

    def send_oneway(self, frame: bytes) -> None:
        """Sends a frame that was encoded once for many clients; otherwise like ``invoke_oneway``."""
        if not self.closed:
            self.send(frame)

    @property
    def begun_bytes(self) -> int:
        """Number of received bytes of an incomplete frame."""
        return self.inbound.begun_bytes

    @property
    def is_read(self) -> bool:
        """Whether the server reads bytes that arrive; if not, reading is paused and the peer has to wait."""
        return not self.inbound.reasons

    @property
    def unread_bytes(self) -> int:
        """Number of unsent bytes of responses for a slow peer; 0 unless reading is paused because of them."""
        return self.buffered_bytes if self.inbound.reasons & SLOW_PEER else 0

    @property
    def local_address(self) -> str:
        """The address that the peer has connected to, ``ip:port``."""
        return readable_address(None if self._transport is None else self._transport.get_extra_info("sockname"))

    @property
    def descriptor(self) -> int:
        """Descriptor of the socket; -1 if there is none."""
        used = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if used is None else int(used.fileno())

    # called by the reading half

    def connected(self, transport: asyncio.Transport) -> None:
        """Called when the connection was accepted."""
        super().connected(transport)
        self._note_address(transport)
        self.secure = transport.get_extra_info("ssl_object") is not None
        self.verified = self.secure and bool(transport.get_extra_info("peercert"))
        self._server.opened(self)

    def moved(self) -> None:
        """Called when the peer of a connection within the process has another port."""
        if self._transport is not None:
            self._note_address(self._transport)

    def ended(self) -> None:
        """Called once, when the connection is gone."""
        super().ended()
        self.closed = True
        if self.invokes is not None:
            self.invokes.close()
        self._server.closed(self)
        # The values may refer to this channel. Only a garbage collection would free such a cycle. If the channel has
        # already survived a full collection, the cycle would even stay until the process ends (``runtime.collector``).
        self.attributes.clear()

    def _note_address(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        self.host, self.remote_address = stored_host(peer), readable_address(peer)


def stored_host(peer: tuple[Any, ...] | None) -> bytes:
    """A socket address as a record stores it; an IPv4 client of a dual-stack socket counts as IPv4, as with Java."""
    if not peer:
        return bytes(8)
    address = str(peer[0])
    if "." in address:
        address = address.removeprefix("::ffff:")
    return host_bytes(address, int(peer[1]))


def readable_address(peer: tuple[Any, ...] | None) -> str:
    """A socket address as ``ip:port``, IPv6 in brackets."""
    return join_address(str(peer[0]), int(peer[1])) if peer else "unknown"
