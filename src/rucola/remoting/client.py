"""The remoting client: one connection per address, opened on first use and reopened after a loss.

Requests are pipelined: everything sent within one iteration of the event loop is collected and sent with few writes.
Responses are matched by ``opaque`` in any order. Sources: protocol.md 1.7, 1.8; RocketMQ 5.3.3, NettyRemotingClient.

Task rule: a client belongs to the event loop it was first used on.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import chain, repeat
from ssl import SSLContext
from typing import TYPE_CHECKING, cast

from rucola.common.columns import ROW_WIDTH
from rucola.common.hosts import split_address
from rucola.common.kernel_columns import FRAME_FLAG, FRAME_OPAQUE
from rucola.errors import FormatError, RemotingClosedError, RemotingUnansweredError
from rucola.protocol.codes import ResponseCode, request_name
from rucola.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from rucola.protocol.frame import FrameBatch, FrameReader
from rucola.remoting.response_future import ResponseFuture, ResponseTable, Waiter
from rucola.runtime.logs import event

if TYPE_CHECKING:
    from rucola.remoting.signer import RequestSigner

logger = logging.getLogger(__name__)

Processor = Callable[[str, RemotingCommand], RemotingCommand | Awaitable[RemotingCommand | None] | None]
"""Handles a server's request: takes the server's address and the request. The result is sent as the response, unless it
is None or the request was oneway.
"""

_WRITE_AT_BYTES = 64 * 1024
_WRITE_AT_PARTS = 64
"""Limits of the collected frames in bytes and in parts; a message counts as two parts, header and body. Frames that
reach either limit are sent at once, before the iteration of the event loop ends. Thus the server has work during a long
iteration of the client's event loop; otherwise it would be idle until the iteration ends. Smaller values cost both
sides CPU time for writes and reads.
"""
_LOOP_LATE_S = 0.5
"""A timer that fires this many seconds too late was delayed by the application."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Limits of one client.

    Attributes:
        connect_timeout_ms: longest time for a connection attempt (connectTimeoutMillis, 3 s).
        receive_bytes: size of each connection's receive buffer; it grows for a larger frame.
        silence_ms: if requests expire on a connection and nothing at all has arrived for this long, the connection is
            closed.
        closing_ms: how long ``close`` waits for a peer to accept the unsent bytes.
        signer: signs every request; None sends unsigned requests.
        tls: encrypts every connection and verifies the server; None uses plain connections.
    """

    connect_timeout_ms: int = 3_000
    receive_bytes: int = 256 * 1024
    silence_ms: int = 3_000
    closing_ms: int = 1_000
    signer: RequestSigner | None = None
    tls: SSLContext | None = None


class RemotingClient:
    """Connections to any number of servers.

    Args:
        options: limits.
        on_connected: called with the address of every opened connection.
        on_unreachable: called with the address of every connection that could not be opened.
    """

    def __init__(
        self,
        options: ClientOptions | None = None,
        on_connected: Callable[[str], None] | None = None,
        on_unreachable: Callable[[str], None] | None = None,
    ) -> None:
        self.options = options or ClientOptions()
        self.processors: dict[int, Processor] = {}
        self.on_connected, self.on_unreachable = on_connected, on_unreachable
        self._connections: dict[str, ClientConnection] = {}
        # Returns the next correlation id. An id recurs only after 2**31 - 1 calls; by then, the earlier request
        # with this id no longer waits. The function is written in C, because it is called for every message.
        self.next_opaque: Callable[[], int] = chain.from_iterable(repeat(range(1, 1 << 31))).__next__
        self._closed = False
        self._signer = self.options.signer
        self.tasks: set[asyncio.Future[None]] = set()

    def register_processor(self, code: int, processor: Processor) -> None:
        """Registers ``processor`` for the servers' requests with ``code``."""
        self.processors[code] = processor

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int = 3_000) -> RemotingCommand:
        """Sends a request and waits for the response, whatever its code.

        Args:
            address: the server as ``host:port``.
            command: the request; its opaque is set here.
            timeout_ms: how long to wait for the response, connecting included.

        Raises:
            RemotingConnectError: no server listens there, or connecting took too long.
            RemotingTimeoutError: no response in time.
            RemotingClosedError: the connection ended before the response, or this client is closed.
        """
        command.opaque = self.next_opaque()
        try:
            return await self.submit(address, command.encode(), command.opaque, timeout_ms)
        except RemotingUnansweredError as error:
            error.set_operation(request_name(command.code))
            raise

    def invoke_oneway(self, address: str, command: RemotingCommand) -> None:
        """Sends a request that gets no response. The request is lost silently if the connection is lost."""
        command.opaque = self.next_opaque()
        command.flag |= FLAG_ONEWAY
        self.send_oneway(address, command.encode())

    def send_oneway(self, address: str, frame: bytes) -> None:
        """Like ``invoke_oneway`` for an encoded frame whose oneway bit is set."""
        if self._signer is not None:
            frame = self._signer.sign(frame, address)
        self._connection(address).send(frame)

    def submit(
        self, address: str, frame: bytes, opaque: int, timeout_ms: int = 3_000
    ) -> asyncio.Future[RemotingCommand]:
        """Sends an encoded request; the future receives the response or one of the errors of ``invoke``.

        Args:
            address: the server as ``host:port``.
            frame: the whole frame.
            opaque: the correlation id in it, from ``next_opaque``.
            timeout_ms: how long to wait for the response, connecting included.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[RemotingCommand] = loop.create_future()
        waiter = ResponseFuture(future)
        waiter.wait_for(timeout_ms, loop.time())
        self.request(address, opaque, waiter, frame)
        return future

    def request(self, address: str, opaque: int, waiter: Waiter, frame: bytes, body: bytes = b"") -> None:
        """Like ``submit``, but with a waiter of the caller, whose deadline is already set. Creates no future.

        Args:
            address: the server as ``host:port``.
            opaque: the correlation id in the frame, from ``next_opaque``.
            waiter: gets the response or an error.
            frame: the whole frame, or all of it before ``body``.
            body: the rest of the frame.
        """
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connection(address)
        if self._signer is not None:
            frame, body = self._signer.sign(frame + body, address), b""
        table = connection.table
        table.waiting[opaque] = waiter
        if waiter.deadline < table.timer_at:
            table.expire_at(waiter.deadline)
        connection.send(frame, body)

    @property
    def addresses(self) -> list[str]:
        """Addresses of the servers to which a connection is open or being opened."""
        return list(self._connections)

    def unsent_bytes(self, address: str) -> int:
        """Number of bytes that the server at ``address`` has not taken yet."""
        connection = self._connections.get(address)
        return 0 if connection is None else connection.unsent_bytes

    async def close(self) -> None:
        """Closes all connections; waiting requests fail with ``RemotingClosedError``."""
        self._closed = True
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if connections:
            gone = [asyncio.ensure_future(connection.gone.wait()) for connection in connections]
            await asyncio.wait(gone, timeout=self.options.closing_ms / 1000)
            for connection in connections:
                # Otherwise a peer that accepts no bytes would delay ``close`` until the operating system gives up.
                connection.abort()
            await asyncio.gather(*gone)

    def lost(self, connection: ClientConnection) -> None:
        """Called by ``connection`` when it has ended: the next request to its address opens a new connection."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]

    def _connection(self, address: str) -> ClientConnection:
        connection = self._connections.get(address)
        if connection is None:
            if self._closed:
                raise RemotingClosedError(address)
            connection = ClientConnection(self, address, asyncio.get_running_loop())
            self._connections[address] = connection
            self.run(connection.open())
        return connection

    def run(self, work: Awaitable[None]) -> None:
        """Keeps a reference to ``work`` until it ends or the client closes; logs its failure."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[None]) -> None:
        self.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            event(logger, logging.ERROR, "background work of the client failed", error)


class ClientConnection(asyncio.BufferedProtocol):
    """A client's connection to one address. After its loss, the next request opens a new ``ClientConnection``."""

    __slots__ = (
        "_client",
        "_closing",
        "_connected_at",
        "_gathered",
        "_heard_at",
        "_in_doubt",
        "_loop",
        "_parts",
        "_reader",
        "_silent_since",
        "_transport",
        "address",
        "gone",
        "table",
    )

    def __init__(self, client: RemotingClient, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self._reader = FrameReader(client.options.receive_bytes)
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._parts: list[bytes] = []
        self._gathered = -1  # number of bytes in _parts; -1: no flush is scheduled
        self.address = address
        self.gone = asyncio.Event()
        self.table = ResponseTable(loop, address, self._expired)
        self._connected_at = math.inf
        self._heard_at = -math.inf
        self._in_doubt = False
        # When the earliest expired request was sent. Requests that were sent before bytes last arrived do not count.
        self._silent_since = math.inf

    async def open(self) -> None:
        """Connects. On failure every request that waits for this connection fails with ``RemotingConnectError``."""
        timeout_ms = self._client.options.connect_timeout_ms
        try:
            host, port = split_address(self.address)
            async with asyncio.timeout(timeout_ms / 1000):
                tls = self._client.options.tls
                await self._loop.create_connection(lambda: self, host, port, ssl=tls)
            return
        except TimeoutError:
            reason = f"no connection within {timeout_ms} ms"
        except Exception as error:  # noqa: BLE001 - also OverflowError and others for an address that a peer has sent
            reason = str(error) or type(error).__name__
        except asyncio.CancelledError:
            self.close()
            self._ended()
            raise
        self._client.lost(self)
        if self._client.on_unreachable is not None:
            self._client.on_unreachable(self.address)
        self._ended(reason)

    def send(self, frame: bytes, body: bytes = b"") -> None:
        """Sends a frame together with other frames of this iteration of the event loop. If ``body`` is given, ``frame``
        is only the part before it.
        """
        parts = self._parts
        parts.append(frame)
        if body:
            parts.append(body)
        if self._gathered < 0:
            self._gathered = 0
            self._loop.call_soon(self._flush)
        self._gathered += len(frame) + len(body)
        if self._transport is not None and (len(parts) >= _WRITE_AT_PARTS or self._gathered > _WRITE_AT_BYTES):
            self._transport.write(b"".join(parts))
            parts.clear()
            self._gathered = 0

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that the server has not taken yet."""
        written = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return written + max(self._gathered, 0)

    def close(self) -> None:
        """Sends the collected frames and closes. A connection that is being opened closes as soon as it is open."""
        self._closing = True
        if self._transport is None:
            self._ended()
        else:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Closes without sending the remaining frames; does nothing if the connection is closed."""
        if self._transport is not None:
            self._transport.abort()

    def _expired(self, late: list[Waiter]) -> None:
        """Closes a connection on which nothing is answered any more, so that the next request or retry opens a new
        connection.

        A single short timeout proves little, and a connection that answers other requests is only slow. So the
        connection is closed only if an expired request was sent at least ``silence_ms`` ago and nothing at all has
        arrived since then. Silence before that request was sent proves nothing: either no request was waiting, or the
        server held pulls as the client had asked.

        If the application has blocked the event loop, responses may have arrived unread; they are read first.
        """
        transport = self._transport
        if transport is None:
            return  # the connection is still being opened, or already gone
        if self._silent_since < self._heard_at:
            self._silent_since, self._in_doubt = math.inf, False
        for waiter in late:
            since = max(waiter.deadline - waiter.timeout_ms / 1000, self._connected_at)
            if since >= self._heard_at:
                self._silent_since = min(self._silent_since, since)
        now = self._loop.time()
        silent_s = now - self._silent_since
        if silent_s * 1000 >= self._client.options.silence_ms:
            if not self._in_doubt and now - min(waiter.deadline for waiter in late) > _LOOP_LATE_S:
                self._in_doubt = True
                return
            reason = f"nothing was received for {silent_s:.1f} s while requests expired"
            event(logger, logging.WARNING, "connection closed", peer=self.address, reason=reason)
            self._client.lost(self)
            transport.abort()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._connected_at = self._loop.time()
        self._transport = cast(asyncio.Transport, transport)
        self._flush()
        if self._closing:
            self._transport.close()
        elif self._client.on_connected is not None:
            self._client.on_connected(self.address)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the event loop: returns the buffer for the next bytes."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the event loop: ``nbytes`` arrived."""
        self._heard_at = self._loop.time()
        try:
            batch = self._reader.received(nbytes)
            if batch is not None:
                self._dispatch(batch)
        except FormatError as error:
            event(logger, logging.WARNING, "connection closed", peer=self.address, reason=error)
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop, once."""
        self._client.lost(self)
        self._ended()

    def _ended(self, connect_error: str | None = None) -> None:
        self._transport = None
        self._parts.clear()
        self.table.close(connect_error)
        self.gone.set()

    def _flush(self) -> None:
        if self._transport is not None:
            parts, self._gathered = self._parts, -1
            if parts:
                self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
                parts.clear()

    def _dispatch(self, batch: FrameBatch) -> None:
        table, end, take = batch.table, batch.count * ROW_WIDTH, self.table.waiting.pop
        flags, opaques = table[FRAME_FLAG:end:ROW_WIDTH], table[FRAME_OPAQUE:end:ROW_WIDTH]
        for row, flag in enumerate(flags):
            if flag & FLAG_RESPONSE:
                waiter = take(opaques[row], None)
                if waiter is not None:
                    waiter.answered(batch, row)
            else:
                self._request_received(batch.command(row))

    def _request_received(self, command: RemotingCommand) -> None:
        processor = self._client.processors.get(command.code)
        if processor is None:
            remark = f" request type {command.code} not supported"
            self._answer(command, command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        self._client.run(self._process(processor, command))

    async def _process(self, processor: Processor, command: RemotingCommand) -> None:
        try:
            result = processor(self.address, command)
            answer = await result if inspect.isawaitable(result) else result
            self._answer(command, answer)
        except Exception as error:  # noqa: BLE001 - a defect must not leave the peer without an answer
            event(logger, logging.ERROR, "request failed", error, peer=self.address, code=command.code)
            self._answer(command, command.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"))

    def _answer(self, command: RemotingCommand, answer: RemotingCommand | None) -> None:
        if answer is not None and not command.is_oneway and not self.gone.is_set():
            self.send(answer.encode())
