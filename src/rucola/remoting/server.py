"""The remoting server: accepts connections, hands their frames to one handler, closes what is silent or damaged.

Sources: protocol.md 1.7-1.10; RocketMQ 5.3.3, NettyRemotingServer and NettyServerConfig for the limits.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import socket
from dataclasses import dataclass
from typing import Protocol

from rucola.common.hosts import join_address
from rucola.common.tls_config import TlsConfig
from rucola.errors import AddressInUseError, ConfigError, FormatError
from rucola.protocol.frame import FrameBatch, FrameReader
from rucola.remoting.channel import Channel, Part
from rucola.remoting.connection_watch import ConnectionWatch
from rucola.remoting.large_frames import RETRY_S, LargeFrames
from rucola.remoting.linger import Linger
from rucola.remoting.tls_listener import ServerTls, TlsListener
from rucola.remoting.turn import Turn
from rucola.runtime.logs import event
from rucola.runtime.supervision import PeriodicWork, Supervisor
from rucola.runtime.tls import server_context

__all__ = ["Channel", "FramesHandler", "Part", "RemotingServer", "ServerOptions", "ServerTls", "server_tls"]

logger = logging.getLogger(__name__)

_LOG_INTERVAL_S = 10.0
"""Peers that send rubbish can do so thousands of times a second; one line in this time tells it."""


def server_tls(config: TlsConfig) -> ServerTls | None:
    """What the options of a port say about TLS.

    Raises:
        ConfigError: a file cannot be used.
    """
    if config.tls_mode == "disabled":
        return None
    context = server_context(
        config.tls_cert_path, config.tls_key_path, config.tls_trust_cert_path, config.tls_need_client_auth
    )
    return ServerTls(context, permissive=config.tls_mode == "permissive")


class FramesHandler(Protocol):
    """What a server does with frames."""

    def frames_received(self, channel: Channel, batch: FrameBatch) -> None:
        """Handle all complete frames of one read; ``batch`` is valid during this call, and while rows are put off.

        Rows with bit 0 of FLAG set are answers to ``Channel.invoke``, already delivered: skip them.
        """

    def rest_received(self, channel: Channel, batch: FrameBatch, first: int) -> None:
        """Go on at row ``first``, which was given to ``channel.put_off``."""

    def channel_closed(self, channel: Channel) -> None:
        """``channel`` is gone; called once per channel."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Limits of one server.

    Attributes:
        idle_timeout_ms: a connection without a byte in either direction for this long is closed
            (serverChannelMaxIdleTimeSeconds, 120 s). Looked at every eighth of it or sooner, so it lasts that longer.
        frame_timeout_ms: a frame that was begun must be complete by then, plus the time that its bytes take at
        frame_bytes_per_s_min: the slowest rate of a peer that counts as sending.
        stalled_timeout_ms: a peer that is not read because of its unsent answers, and takes none so long, is closed.
        connections_max: connections at a time; connections_per_address_max: of them from one address.
        receive_bytes: size of each connection's receive buffer; it grows for a larger frame.
        begun_bytes_max: of all connections together, of frames larger than that which are not complete.
        outbound_bytes_high: unsent answers above which the connection is not read.
        outbound_bytes_max: unsent answers above which the connection is dropped.
        close_grace_ms: how long ``RemotingServer.close`` waits for unsent answers.
        backlog: connections the system may hold before they are accepted (serverSocketBacklog, 1024).
        tls: encryption, None for plain connections only.
    """

    idle_timeout_ms: int = 120_000
    frame_timeout_ms: int = 15_000
    frame_bytes_per_s_min: int = 16 * 1024
    stalled_timeout_ms: int = 30_000
    connections_max: int = 8192
    connections_per_address_max: int = 4096
    receive_bytes: int = 256 * 1024
    begun_bytes_max: int = 128 * 1024 * 1024
    outbound_bytes_high: int = 1024 * 1024
    outbound_bytes_max: int = 256 * 1024 * 1024
    close_grace_ms: int = 3_000
    backlog: int = 1024
    tls: ServerTls | None = None


class RemotingServer:
    """Listens on one address.

    Args:
        handler: takes the frames of all connections, on the event loop.
        host: address to listen on.
        port: port to listen on; 0 takes a free one, see ``port`` after ``start``.
        options: limits.
        supervisor: of what runs by itself.
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
        self.large_frames = LargeFrames(self.options.begun_bytes_max)
        self._room_timer: asyncio.TimerHandle | None = None
        self._watch = ConnectionWatch(self.options)
        self._opaques = itertools.count(1)
        self._server: asyncio.Server | TlsListener | None = None
        self._supervisor = supervisor or Supervisor()
        self._looking: PeriodicWork | None = None
        self._all_closed: asyncio.Event | None = None
        self._logged_at = -_LOG_INTERVAL_S
        self._not_logged = 0

    @property
    def address(self) -> str:
        """Where this server listens, as ``host:port``."""
        return join_address(self.host, self.port)

    async def start(self) -> None:
        """Listen.

        Raises:
            AddressInUseError: another process listens there.
            ConfigError: the address cannot be listened on for another reason.
        """
        loop = asyncio.get_running_loop()
        options = self.options
        try:
            if options.tls is None:
                self._server = await loop.create_server(
                    lambda: Channel(self, loop, FrameReader(options.receive_bytes)),
                    self.host,
                    self.port,
                    backlog=options.backlog,
                )
            else:
                family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
                listening = socket.create_server((self.host, self.port), family=family, backlog=options.backlog)
                self._server = TlsListener(
                    listening,
                    lambda: Channel(self, loop, FrameReader(options.receive_bytes)),
                    options.tls,
                    self._log,
                    self._supervisor,
                )
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUseError(self.address) from error
            raise ConfigError(
                "listen address", self.address, f"an address of this machine and a port open to this user ({error})"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._looking = self._supervisor.every("look at connections", lambda: self._watch.period_s, self._look, loop)

    async def close(self) -> None:
        """Stop accepting, send what is gathered, close every connection; returns when all are closed."""
        if self._looking is not None:
            await self._looking.stop()
        if self._room_timer is not None:
            self._room_timer.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None
        if not self.channels:
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
        """Stop accepting and cut every connection with what is unsent. ``close`` follows."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for channel in list(self.channels):
            channel.abort()

    def next_opaque(self) -> int:
        """Correlation id of the next request from here to a client."""
        return next(self._opaques) & 0x7FFFFFFF

    # called by the channels

    def opened(self, channel: Channel) -> None:
        """``channel`` was accepted."""
        if self._server is None:
            channel.abort()  # accepted by the system before close(), reported after it
        self.channels.add(channel)
        too_many = self._watch.opened(channel)
        if too_many:
            self._log(channel.remote_address, too_many)
            channel.abort()

    def closed(self, channel: Channel) -> None:
        """``channel`` is gone."""
        self.channels.discard(channel)
        self._watch.closed(channel)
        self.large_frames.ended(channel)
        self.handler.channel_closed(channel)
        if not self.channels and self._all_closed is not None:
            self._all_closed.set()

    def has_room(self, channel: Channel, size: int) -> bool:
        """Whether ``channel``, which has ``size`` bytes of a large frame, may be read on; else it is told later."""
        loop = asyncio.get_running_loop()
        if self.large_frames.grew(channel, size, loop.time()):
            return True
        if self._room_timer is None:
            self._room_timer = loop.call_later(RETRY_S, self._look_for_room)
        return False

    def _look_for_room(self) -> None:
        loop = asyncio.get_running_loop()
        for channel in self.large_frames.slow(loop.time()):
            self._log(channel.remote_address, "a large frame that does not come on while others wait for its room")
            self.large_frames.ended(channel)
            channel.abort()
        for channel in self.large_frames.admit():
            channel.room_found()
        self._room_timer = loop.call_later(RETRY_S, self._look_for_room) if self.large_frames.waiting else None

    def refused(self, channel: Channel, error: FormatError) -> None:
        """``channel`` sent something that is no frame."""
        self._log(channel.remote_address, str(error))

    def overrun(self, channel: Channel) -> None:
        """``channel`` takes its answers too slowly."""
        self._log(channel.remote_address, f"more than {self.options.outbound_bytes_max} bytes of answers not taken")

    def _log(self, peer: str, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._logged_at < _LOG_INTERVAL_S:
            self._not_logged += 1
            return
        event(
            logger,
            logging.WARNING,
            "connection closed",
            peer=peer,
            reason=reason,
            not_logged=self._not_logged,
        )
        self._logged_at, self._not_logged = now, 0

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        limit = now - self.options.idle_timeout_ms / 1000
        for channel in list(self.channels):
            overdue = self._watch.overdue(channel, now)
            if overdue:
                self._log(channel.remote_address, overdue)
                channel.abort()
            elif channel.active:
                channel.active = False
                channel.idle_since = now
            elif channel.idle_since <= limit:
                event(logger, logging.INFO, "connection idle", peer=channel.remote_address)
                channel.abort()
