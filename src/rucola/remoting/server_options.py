"""Limits of a remoting server.

Source: RocketMQ 5.3.3, NettyServerConfig.
"""

from __future__ import annotations

from dataclasses import dataclass

from rucola.remoting.tls_listener import ServerTls


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Limits of one server.

    Attributes:
        idle_timeout_ms: a connection without a byte in either direction for this long is closed
            (serverChannelMaxIdleTimeSeconds, 120 s). The check runs every eighth of this time or more often, so the
            connection may stay open for that much longer.
        frame_timeout_ms: longest time for a frame, in addition to the time that its received bytes take at
            ``frame_bytes_per_s_min``.
        frame_bytes_per_s_min: the lowest accepted rate of a sending peer.
        stalled_timeout_ms: a connection whose peer has accepted none of its unsent responses for this long is closed.
        connections_max: maximum number of connections; connections_per_address_max: the same for one address.
        receive_bytes: largest read; the connections share its buffer.
        begun_bytes_max: maximum number of bytes of all incomplete frames that have buffers of their own.
        outbound_bytes_high: bytes of unsent responses at which reading from the connection pauses.
        outbound_bytes_max: bytes of unsent responses at which the connection is dropped.
        outbound_total_max: bytes of unsent responses of all connections together at which the connections with the most
            unsent bytes are dropped.
        close_grace_ms: how long ``RemotingServer.close`` waits for unsent responses.
        backlog: number of connections that the system holds before they are accepted (serverSocketBacklog, 1024).
        tls: encryption; None accepts plain connections only.
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
    outbound_bytes_max: int = 128 * 1024 * 1024
    outbound_total_max: int = 192 * 1024 * 1024
    close_grace_ms: int = 3_000
    backlog: int = 1024
    tls: ServerTls | None = None
