"""A connection to a server in the same process, without a socket.

The server sees an ordinary ``Channel``: its limits, its turns and its access control apply. Requests reach it as frames
in a ``FrameBatch``, responses come back as bytes. Neither side calls the other one from within its own calls: what
the server sends is delivered in the next iteration of the event loop.

Event loop only.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Iterable
from typing import Any, NamedTuple, Protocol

from rucola.common.columns import ROW_WIDTH
from rucola.common.kernel_columns import FRAME_FLAG, FRAME_OPAQUE
from rucola.errors import RemotingClosedError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.protocol.shared_reader import ReadSpace, SharedFrameReader
from rucola.remoting.channel import Channel
from rucola.remoting.response_future import ResponseFuture, ResponseTable, Waiter
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

OPAQUE_MAX = 0x7FFFFFFF
Part = bytes | bytearray | memoryview


class Peer(NamedTuple):
    """The client for which a link speaks, as the server shall see it.

    Attributes:
        host: its IP address.
        port: its port.
        secure: whether its own connection is encrypted.
    """

    host: str
    port: int
    secure: bool = False


class Joined(Protocol):
    """A server that can be joined."""

    def join(self, transport: asyncio.Transport) -> Channel:
        """Takes the server's end of a connection."""


class LinkOwner(Protocol):
    """Who uses a link."""

    def request_received(self, command: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand | None] | None:
        """Handles a request of the server; see ``remoting.client.Processor``."""

    def link_resumed(self) -> None:
        """Called when the server takes requests again."""

    def link_lost(self) -> None:
        """Called once, when the connection has ended."""


class MemoryLink:
    """The client's end.

    Args:
        server: the server.
        peer: the client.
        owner: handles what the server asks for.
        space: memory for reading what the server sends; many links may share it.
    """

    def __init__(self, server: Joined, peer: Peer, owner: LinkOwner, space: ReadSpace) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._table = ResponseTable(self._loop, "memory")
        self._reader = SharedFrameReader(space)
        self._opaque = 0
        self._waiting: deque[bytes | memoryview] = deque()
        self._arrived: list[Part] = []
        self._tasks: set[asyncio.Future[None]] = set()
        self._end = _ServerEnd(self, peer)
        self.channel = server.join(self._end)

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.channel.closed or self._end.is_ended

    @property
    def is_paused(self) -> bool:
        """Whether the server takes no requests at present; ``LinkOwner.link_resumed`` says when it does again."""
        return self.channel.inbound.reasons != 0

    def next_opaque(self) -> int:
        """A number that no waiting request has."""
        self._opaque = self._opaque % OPAQUE_MAX + 1
        return self._opaque

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        """Sends a request and waits for the response, whatever its code. ``address`` is not used.

        Raises:
            RemotingTimeoutError: no response in time.
            RemotingClosedError: the connection ended before the response.
        """
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self.request(command, ResponseFuture(future), timeout_ms)
        return await future

    def request(self, command: RemotingCommand, waiter: Waiter, timeout_ms: int) -> int:
        """Sends a request; ``waiter`` gets the response or an error. Returns the number of the request.

        Raises:
            RemotingClosedError: the connection has ended.
        """
        self.expect(opaque := self.next_opaque(), waiter, timeout_ms)
        command.opaque = opaque
        self._hand_over(command.encode())
        return opaque

    def expect(self, opaque: int, waiter: Waiter, timeout_ms: int) -> None:
        """Gives the response to request ``opaque`` to ``waiter``.

        Raises:
            RemotingClosedError: the connection has ended.
        """
        if self.is_closed:
            raise RemotingClosedError("memory")
        self._table.add(opaque, waiter, timeout_ms)

    def forget(self, opaque: int) -> None:
        """Drops the response to a request."""
        self._table.take(opaque)

    def serve(self, batch: FrameBatch) -> bool:
        """Hands frames to the server. Returns whether ``batch`` may be used again; if not, the server keeps it until it
        has the time. Not while the link ``is_paused``.
        """
        inbound = self.channel.inbound
        inbound.serve(batch)
        return not inbound.reasons

    def move(self, port: int) -> None:
        """Notes that the client has another port now. A client with another IP address needs another link, because the
        server may judge it by that.
        """
        self._end.move(port)
        self.channel.moved()

    def close(self) -> None:
        """Ends the connection; waiting requests fail with ``RemotingClosedError``."""
        self._end.close()

    # --- for the server's end

    def write(self, parts: Iterable[Part]) -> None:
        """Takes what the server sends."""
        if not self._arrived:
            self._loop.call_soon(self._deliver)
        self._arrived.extend(parts)

    def resumed(self) -> None:
        """The server takes requests again."""
        self._loop.call_soon(self._resume)

    def lost(self) -> None:
        """The connection has ended."""
        self.channel.inbound.connection_lost(None)
        self._waiting.clear()
        self._reader.close()
        self._table.close()
        for task in list(self._tasks):
            task.cancel()
        self._owner.link_lost()

    # --- details

    def _resume(self) -> None:
        if not self.is_closed:
            self._feed()
            self._owner.link_resumed()

    def _hand_over(self, frame: bytes) -> None:
        """Hands a frame to the server, together with others of this iteration of the event loop."""
        if not self._waiting:
            self._loop.call_soon(self._feed)
        self._waiting.append(frame)

    def _feed(self) -> None:
        """Hands the waiting frames to the server, as long as it takes them."""
        inbound, waiting = self.channel.inbound, self._waiting
        while waiting and not inbound.reasons and not self.is_closed:
            view = inbound.get_buffer(len(waiting[0]))
            if len(waiting[0]) > len(view):
                size = len(view)
                view[:] = waiting[0][:size]
                waiting[0] = memoryview(waiting[0])[size:]
            else:
                size = 0
                while waiting and size + len(waiting[0]) <= len(view):
                    frame = waiting.popleft()
                    view[size : size + len(frame)] = frame
                    size += len(frame)
            inbound.buffer_updated(size)

    def _deliver(self) -> None:
        parts, self._arrived = self._arrived, []
        if self.channel.closed:
            return
        rest = memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
        while rest:
            view = self._reader.buffer()
            size = min(len(view), len(rest))
            view[:size] = rest[:size]
            rest = rest[size:]
            batch = self._reader.received(size)
            while batch is not None:
                batch.send_answers = None  # of what was in the memory before
                self._dispatch(batch)
                batch = self._reader.more()

    def _dispatch(self, batch: FrameBatch) -> None:
        table = batch.table
        for base in range(0, batch.count * ROW_WIDTH, ROW_WIDTH):
            row = base // ROW_WIDTH
            if not table[base + FRAME_FLAG] & FLAG_RESPONSE:
                self._run(self._process(batch.command(row)))
            elif (waiter := self._table.take(table[base + FRAME_OPAQUE])) is not None:
                try:
                    waiter.answered(batch, row)
                except Exception as error:  # noqa: BLE001 - a defect must not keep the other responses back
                    event(logger, logging.ERROR, "response not handled", error)

    async def _process(self, command: RemotingCommand) -> None:
        try:
            result = self._owner.request_received(command)
            answer = await result if inspect.isawaitable(result) else result
        except Exception as error:  # noqa: BLE001 - a defect must not leave the server without an answer
            event(logger, logging.ERROR, "request failed", error, code=command.code)
            answer = command.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        if answer is not None and not command.is_oneway and not self.is_closed:
            self._hand_over(answer.encode())

    def _run(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _ServerEnd(asyncio.Transport):
    """What the server takes for the transport of a socket.

    Attributes:
        is_ended: whether nothing can be sent any more.
    """

    def __init__(self, link: MemoryLink, peer: Peer) -> None:
        super().__init__({"ssl_object": True if peer.secure else None})
        self._link = link
        self._peer = peer
        self.is_ended = False

    def move(self, port: int) -> None:
        """The client has another port now."""
        self._peer = self._peer._replace(port=port)

    def get_write_buffer_size(self) -> int:
        """Nothing waits here: the client takes all."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits here."""

    def write(self, data: Part) -> None:
        """Sends to the client."""
        if not self.is_ended:
            self._link.write((data,))

    def writelines(self, list_of_data: Iterable[Part]) -> None:
        """Sends to the client."""
        if not self.is_ended:
            self._link.write(list_of_data)

    def pause_reading(self) -> None:
        """The client looks at ``Inbound.reasons`` before it sends."""

    def resume_reading(self) -> None:
        """The server takes requests again."""
        self._link.resumed()

    def is_closing(self) -> bool:
        """Whether the connection ends."""
        return self.is_ended

    def close(self) -> None:
        """Ends the connection."""
        if not self.is_ended:
            self.is_ended = True
            asyncio.get_running_loop().call_soon(self._link.lost)

    def abort(self) -> None:
        """Ends the connection."""
        self.close()

    def can_write_eof(self) -> bool:
        """It cannot."""
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Address and encryption of the client."""
        return self._peer[:2] if name == "peername" else super().get_extra_info(name, default)
