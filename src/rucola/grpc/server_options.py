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
            for which more than their share waits get no new calls.
        backlog: number of connections that the system holds before they are accepted.
        tls: encryption; None accepts plain connections only. The server announces ``h2`` (ALPN) with its certificate.
    """

    http2: Http2Limits = field(default_factory=Http2Limits)
    held_bytes_max: int = 64 * 1024 * 1024
    unsent_bytes_max: int = 64 * 1024 * 1024
    backlog: int = 1024
    tls: ServerTls | None = None
