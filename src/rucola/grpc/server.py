"""The server: listens, and offers methods to the clients of all connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from rucola.common.hosts import join_address
from rucola.grpc.connection import GrpcConnection
from rucola.grpc.metadata import ENCODING, FIELDS, TIMEOUT
from rucola.grpc.methods import Method
from rucola.grpc.server_options import GrpcServerOptions
from rucola.grpc.status import GrpcError, StatusCode
from rucola.grpc.time_limits import TimeLimits
from rucola.http2.event_space import EventSpace
from rucola.remoting.fairness.connection_count import ConnectionCount, count_connections
from rucola.remoting.fairness.postponed_reads import PostponedReads
from rucola.remoting.fairness.steps import Steps, in_turns
from rucola.remoting.fairness.turn import Turn
from rucola.remoting.listening import accept, listen
from rucola.remoting.peer_log import PeerLog
from rucola.remoting.tls_listener import ServerTls, TlsListener
from rucola.runtime.supervision import PeriodicWork, Supervisor

_GREETING = b"This is a gRPC port. It speaks HTTP/2; clients of gRPC connect here.\n"


class GrpcServer:
    """Listens on one address. Event loop only.

    Args:
        methods: what is offered, by path: ``/package.Service/Method``.
        host: address to listen on.
        port: port to listen on; 0 chooses a free port, and after ``start``, the attribute ``port`` is its number.
        monotonic: the clock, in seconds.
        wanted: names of the fields that the methods want of each request, in lower case.
        options: limits and encryption.
        supervisor: counts and logs unexpected errors.

    Attributes:
        connections: the open connections.
        metadata_columns: columns of timeout, encoding and the wanted fields in ``space``.
        space: memory that the connections share.
        time_limits: what ends connections and streams that are too slow.
        is_crowded: whether there are so many unsent bytes or streams that some clients must wait.
        is_stopping: whether no more calls are taken.
        options: as given.
        ends: number of connections that were closed because of what their clients did, by reason.
        held_bytes: bytes of requests that are not complete.
        stream_count: open streams of all connections.
        turn: the current turn of the event loop.
        postponed: connections whose requests wait for a later turn.
        unsent_bytes: bytes of answers that clients do not take.
    """

    greeting = _GREETING
    """Text for browsers."""

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        host: str,
        port: int,
        monotonic: Callable[[], float],
        wanted: Sequence[bytes] = (),
        options: GrpcServerOptions | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.methods, self.host, self.port = methods, host, port
        self.options = options or GrpcServerOptions()
        names = list(dict.fromkeys([*FIELDS, *wanted]))
        self.metadata_columns = EventSpace.columns([TIMEOUT, ENCODING, *(names.index(name) for name in wanted)])
        self.space = EventSpace(names, self.options.http2)
        self.connections: set[GrpcConnection] = set()
        self.is_stopping = False
        self.loop: asyncio.AbstractEventLoop
        self._monotonic = monotonic
        self.turn = Turn()
        self.postponed = PostponedReads(self.turn)
        self.held_bytes = self.unsent_bytes = self.stream_count = self._ended_calls = 0
        self.is_crowded = False
        self.ends: Counter[str] = Counter()
        self._server: asyncio.Server | TlsListener | None = None
        self._supervisor = supervisor or Supervisor()
        self._log = PeerLog()
        self._count = ConnectionCount(self.options)
        self.time_limits = TimeLimits(self.options, self.now_ms, self._log, self.note_end)
        self._looking: PeriodicWork | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_closed: asyncio.Event | None = None

    @property
    def address(self) -> str:
        """The address of this server, as ``host:port``."""
        return join_address(self.host, self.port)

    async def start(self, listening: socket.socket | None = None) -> None:
        """Starts to listen.

        Args:
            listening: a socket that listens already, in place of the address; ``stop`` closes it.

        Raises:
            AddressInUseError: another process listens there.
            ConfigError: the address cannot be used for another reason.
        """
        self.loop = asyncio.get_running_loop()
        options = self.options
        self._count = count_connections(options)
        tls = None if options.tls is None else _with_alpn(options.tls)
        if listening is None:
            self._server = await listen(
                self._connection, self.host, self.port, options.backlog, tls, self._not_opened, self._supervisor
            )
        else:
            self._server = await accept(
                self._connection, listening, options.backlog, tls, self._not_opened, self._supervisor
            )
        self.port = self._server.sockets[0].getsockname()[1]
        self._looking = self._supervisor.every(
            "look at gRPC connections", lambda: self.time_limits.period_s, self.time_limits.look, self.loop
        )

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Takes no more calls, waits for those that are open, and closes all connections.

        Args:
            timeout_s: seconds after which connections are closed although calls are open.
        """
        self.is_stopping = True
        if self._server is not None:
            self._server.close()
        self._all_closed = asyncio.Event()
        await in_turns(self._each(GrpcConnection.shut_down))
        if self.connections:
            try:
                await asyncio.wait_for(self._all_closed.wait(), timeout_s)
            except TimeoutError:
                await in_turns(self._each(GrpcConnection.abort))
                await self._all_closed.wait()
        if self._looking is not None:
            await self._looking.stop()
        for task in list(self._tasks):
            task.cancel()

    def drop(self) -> None:
        """Closes the port and cuts every connection at once; ``stop`` must follow."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()

    @property
    def calls(self) -> int:
        """Number of calls that clients have begun."""
        return self._ended_calls + sum(connection.calls_begun for connection in self.connections)

    # --- for connections

    def now_ms(self) -> int:
        """The time in ms, of a clock that does not go back."""
        return int(self._monotonic() * 1000)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs what a handler waits for."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def hold(self, connection: GrpcConnection, count: int) -> None:
        """Notes that a connection holds so many more bytes of unfinished requests; negative when they are released."""
        self.held_bytes += count
        while self.held_bytes > self.options.held_bytes_max:
            most = connection
            if connection.held_bytes * len(self.connections) < self.options.held_bytes_max:  # less than its share
                most = max(self.connections, key=lambda one: one.held_bytes)
            call = most.largest
            if call is None or not call.held_bytes:
                break
            most.refuse(call, GrpcError(StatusCode.RESOURCE_EXHAUSTED, "the server holds too many large requests"))
            most.flush_soon()

    def note(self, unsent_bytes: int, streams: int) -> None:
        """Notes that so many more bytes of answers wait for a client, and that so many more streams are open."""
        self.unsent_bytes += unsent_bytes
        self.stream_count += streams
        options = self.options
        self.is_crowded = self.unsent_bytes > options.unsent_bytes_max or self.stream_count > options.streams_max

    def opened(self, connection: GrpcConnection, descriptor: int) -> None:
        """Takes a connection that was accepted, or closes it at once if there are too many."""
        self.connections.add(connection)
        self.time_limits.opened(connection)
        too_many = self._count.opened(connection.host, descriptor)
        if too_many or self.is_stopping:  # accepted before ``stop``, but reported afterwards
            self._log.closed(connection.address, too_many or "the server stops")
            connection.abort()
        if too_many:
            self.note_end("too many")

    def note_end(self, reason: str) -> None:
        """Counts a connection that is closed because of what its client did."""
        self.ends[reason] += 1

    def lost(self, connection: GrpcConnection) -> None:
        """Forgets a connection that is closed."""
        self._ended_calls += connection.calls_begun
        self.connections.discard(connection)
        self.time_limits.closed(connection)
        self._count.closed(connection.host)
        if not self.connections and self._all_closed is not None:
            self._all_closed.set()

    # --- details

    def _not_opened(self, peer: str, reason: str) -> None:
        self.note_end("no TLS")
        self._log.closed(peer, reason)

    def _connection(self) -> GrpcConnection:
        return GrpcConnection(self)

    def _each(self, act: Callable[[GrpcConnection], None]) -> Steps[None]:
        for connection in list(self.connections):
            act(connection)
            yield


def _with_alpn(tls: ServerTls) -> ServerTls:
    """Returns the settings with the announcement that the port speaks HTTP/2."""
    given = tls.context

    def context() -> ssl.SSLContext:
        made = given if isinstance(given, ssl.SSLContext) else given()
        made.set_alpn_protocols(["h2"])
        return made

    return ServerTls(context() if isinstance(given, ssl.SSLContext) else context, tls.permissive)
