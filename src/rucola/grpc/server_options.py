"""Limits of a gRPC server."""

from __future__ import annotations

from dataclasses import dataclass, field

from rucola.http2.limits import Http2Limits
from rucola.remoting.tls_listener import ServerTls


@dataclass(frozen=True, slots=True)
class GrpcServerOptions:
    """Limits of one server.

    Attributes:
        http2: limits of each connection.
        held_bytes_max: limit for the bytes of requests that are not complete, of all connections. Above it, the largest
            request of a connection that holds more than its share is refused.
        unsent_bytes_max: limit for the bytes of answers that clients do not take, of all connections. Above it, clients
            for which more than their share waits get no new calls, and conversations no more answers.
        streams_max: limit for the open streams of all connections. Above it, clients that have more than their share
            get no new calls.
        preface_timeout_ms: a connection whose preface and SETTINGS are not complete after this time is closed.
        idle_timeout_ms: a connection without a byte in either direction for this long is closed, with GOAWAY.
        frame_timeout_ms: longest time for a frame or a request, in addition to the time that its received bytes take at
            ``frame_bytes_per_s_min``. A request that takes longer is refused; for a frame, the connection is closed.
        frame_bytes_per_s_min: the lowest accepted rate of a sending client.
        stalled_timeout_ms: a stream whose client has taken none of its unsent bytes for this long is reset; if the
            socket takes nothing, the connection is closed.
        connections_max: maximum number of connections.
        connections_per_address_max: the same for one address.
        backlog: number of connections that the system holds before they are accepted.
        tls: encryption; None accepts plain connections only. The server announces ``h2`` (ALPN) with its certificate.
    """

    http2: Http2Limits = field(default_factory=Http2Limits)
    held_bytes_max: int = 64 * 1024 * 1024
    unsent_bytes_max: int = 64 * 1024 * 1024
    streams_max: int = 128 * 1024
    preface_timeout_ms: int = 10_000
    idle_timeout_ms: int = 120_000
    frame_timeout_ms: int = 15_000
    frame_bytes_per_s_min: int = 16 * 1024
    stalled_timeout_ms: int = 20_000
    connections_max: int = 8192
    connections_per_address_max: int = 4096
    backlog: int = 1024
    tls: ServerTls | None = None
