"""The remoting server: accepts connections, passes their frames to one handler, and closes connections that are silent
or send invalid data.

Sources: protocol.md 1.7-1.10; RocketMQ 5.3.3, NettyRemotingServer and NettyServerConfig for the limits.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque

from rucola.common.hosts import join_address
from rucola.common.tls_config import TlsConfig
from rucola.errors import FormatError
from rucola.protocol.shared_reader import ReadSpace, SharedFrameReader
from rucola.remoting.channel import Channel, FramesHandler
from rucola.remoting.fairness.connection_count import ConnectionCount, count_connections
from rucola.remoting.fairness.connection_watch import ConnectionWatch
from rucola.remoting.fairness.large_frames import RETRY_S, LargeFrames
from rucola.remoting.fairness.linger import Linger
from rucola.remoting.fairness.postponed_reads import PostponedReads
from rucola.remoting.fairness.read_pauses import ROOM_GIVEN
from rucola.remoting.fairness.turn import Turn
from rucola.remoting.fairness.unsent_bytes import UnsentBytes
from rucola.remoting.listening import listen
from rucola.remoting.outbound import Outbound
from rucola.remoting.peer_log import PeerLog
from rucola.remoting.server_options import ServerOptions
from rucola.remoting.tls_listener import ServerTls, TlsListener
from rucola.runtime.logs import event
from rucola.runtime.supervision import PeriodicWork, Supervisor
from rucola.runtime.tls import server_context

__all__ = ["Channel", "FramesHandler", "RemotingServer", "ServerOptions", "ServerTls", "server_tls"]

logger = logging.getLogger(__name__)


def server_tls(config: TlsConfig) -> ServerTls | None:
    """The TLS options of a port.

    Raises:
        ConfigError: a file cannot be used.
    """
    if config.tls_mode == "disabled":
        return None
    context = server_context(
        config.tls_cert_path, config.tls_key_path, config.tls_trust_cert_path, config.tls_need_client_auth
    )
    return ServerTls(context, permissive=config.tls_mode == "permissive")


class RemotingServer:
    """Listens on one address.

    Args:
        handler: handles the frames of all connections, on the event loop.
        host: address to listen on.
        port: port to listen on; 0 chooses a free port, and after ``start``, the attribute ``port`` is its number.
        options: limits.
        supervisor: supervises the periodic work.
    """

    def __init__(
        self,
        handler: FramesHandler,
        host: str,
        port: int,
        options: ServerOptions | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.handler = handler
        self.host = host
        self.port = port
        self.options = options or ServerOptions()
        self.channels: set[Channel] = set()
        self.linger = Linger()
        self.turn = Turn()
        self.postponed = PostponedReads(self.turn)
        self._ended: deque[Channel] = deque()
        self._forgetting = False
        self.large_frames: LargeFrames[Channel] = LargeFrames(self.options.begun_bytes_max)
        self.unsent: UnsentBytes[Outbound] = UnsentBytes(self.options.outbound_total_max)
        self._room_timer: asyncio.TimerHandle | None = None
        self._space = ReadSpace(self.options.receive_bytes)
        self._count, self._watch = ConnectionCount(self.options), ConnectionWatch(self.options)
        self._opaques = itertools.count(1)
        self._server: asyncio.Server | TlsListener | None = None
        self._supervisor = supervisor or Supervisor()
        self._looking: PeriodicWork | None = None
        self._all_closed: asyncio.Event | None = None
        self._log = PeerLog()

    @property
    def refused_connections(self) -> int:
        """Number of connections that were closed as soon as they were accepted, because there were too many."""
        return self._count.refused

    @property
    def address(self) -> str:
        """The address of this server, as ``host:port``."""
        return join_address(self.host, self.port)

    async def start(self) -> None:
        """Starts to listen.

        Raises:
            AddressInUseError: another process listens there.
            ConfigError: the address cannot be used for another reason.
        """
        loop = asyncio.get_running_loop()
        options = self.options
        self._count = count_connections(options)
        self._server = await listen(
            lambda: Channel(self, loop, SharedFrameReader(self._space)).inbound,
            self.host,
            self.port,
            options.backlog,
            options.tls,
            self._log.closed,
            self._supervisor,
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._looking = self._supervisor.every("look at connections", lambda: self._watch.period_s, self._look, loop)

    def join(self, transport: asyncio.Transport) -> Channel:
        """Takes the server's end of a connection from within this process. The server must have been started."""
        channel = Channel(self, asyncio.get_running_loop(), SharedFrameReader(self._space))
        channel.inbound.connection_made(transport)
        return channel

    async def close(self) -> None:
        """Stops accepting, sends the unsent responses, and closes every connection; returns when all are closed.
        Connections that are still open after ``close_grace_ms`` are cut.
        """
        if self._looking is not None:
            await self._looking.stop()
        if self._room_timer is not None:
            self._room_timer.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None
        if not self.channels and not self._ended:
            return
        self._all_closed = asyncio.Event()
        for channel in list(self.channels):
            channel.close()
        try:
            await asyncio.wait_for(self._all_closed.wait(), self.options.close_grace_ms / 1000)
        except TimeoutError:
            for channel in list(self.channels):
                channel.abort()
            await self._all_closed.wait()

    def drop(self) -> None:
        """Stops accepting and cuts every connection, discarding unsent bytes. Call ``close`` next."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for channel in list(self.channels):
            channel.abort()

    def next_opaque(self) -> int:
        """Correlation id of the server's next request to a client."""
        return next(self._opaques) & 0x7FFFFFFF

    # called by the channels

    def opened(self, channel: Channel) -> None:
        """Called when ``channel`` was accepted."""
        if self._server is None:
            channel.abort()  # accepted before close(), but reported afterwards
        self.channels.add(channel)
        too_many = self._count.opened(channel.host, channel.descriptor)
        if too_many:
            self._log.closed(channel.remote_address, too_many)
            channel.abort()

    def closed(self, channel: Channel) -> None:
        """Called when ``channel`` has ended."""
        self.channels.discard(channel)
        self._count.closed(channel.host)
        self.large_frames.ended(channel)
        self.unsent.ended(channel)
        self._ended.append(channel)
        if not self._forgetting:
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Calls the handler's ``channel_closed`` for each ended connection; thousands of connections that end together
        take several iterations of the event loop.
        """
        loop = asyncio.get_running_loop()
        self._forgetting = False
        while self._ended:
            if self.turn.note_request(loop):
                self._forgetting = True
                loop.call_soon(self._forget_ended)
                return
            self.handler.channel_closed(self._ended.popleft())
        if not self.channels and self._all_closed is not None:
            self._all_closed.set()

    def large_frame_ended(self, channel: Channel) -> None:
        """Called when a large frame of ``channel`` is complete."""
        self.large_frames.ended(channel)

    def ask_for_room(self, channel: Channel, size: int, needed: int) -> bool:
        """Asks for memory for ``channel``, which has received ``size`` of the ``needed`` bytes of a large frame.

        Returns:
            Whether more bytes may be read. If not, the server resumes the channel later.
        """
        loop = asyncio.get_running_loop()
        if self.large_frames.grew(channel, size, needed, loop.time()):
            return True
        if self._room_timer is None:
            self._room_timer = loop.call_later(RETRY_S, self._look_for_room)
        return False

    def _look_for_room(self) -> None:
        loop = asyncio.get_running_loop()
        for channel in self.large_frames.slow(loop.time()):
            self._log.closed(
                channel.remote_address, "a large frame makes no progress while other connections wait for memory"
            )
            self.large_frames.ended(channel)
            channel.abort()
        for channel in self.large_frames.admit(loop.time()):
            channel.inbound.note(ROOM_GIVEN)
        self._room_timer = loop.call_later(RETRY_S, self._look_for_room) if self.large_frames.waiting else None

    def refused(self, channel: Channel, error: FormatError) -> None:
        """Called when ``channel`` sent something that is not a frame."""
        self._log.closed(channel.remote_address, str(error))

    def overrun(self, channel: Outbound) -> None:
        """Called when ``channel`` accepts its responses too slowly."""
        self._log.closed(
            channel.remote_address, f"more than {self.options.outbound_bytes_max} bytes of unread responses"
        )

    def grew(self, channel: Outbound, size: int) -> None:
        """Called when ``channel`` has ``size`` bytes of unsent responses; closes the channels with the most unsent
        bytes if all channels together have too many.
        """
        for each in self.unsent.grew(channel, size):
            limit = self.options.outbound_total_max
            self._log.closed(each.remote_address, f"more than {limit} bytes of unread responses of all connections")
            each.abort()

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        limit = now - self.options.idle_timeout_ms / 1000
        for channel in list(self.channels):
            progress, overdue = channel.progress, self._watch.overdue(channel, now)
            if overdue:
                self._log.closed(channel.remote_address, overdue)
                channel.abort()
            elif progress.active:
                progress.active = False
                progress.idle_since = now
            elif progress.idle_since <= limit:
                event(logger, logging.INFO, "connection idle", peer=channel.remote_address)
                channel.abort()
