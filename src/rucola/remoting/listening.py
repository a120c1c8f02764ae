"""Listens on an address, with or without TLS."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable

from rucola.common.hosts import join_address
from rucola.errors import AddressInUseError, ConfigError
from rucola.remoting.tls_listener import ServerTls, TlsListener
from rucola.runtime.supervision import Supervisor

_ACCEPTED_TOGETHER = 64
"""Number of connections that one iteration of the event loop accepts. A connection that is refused still holds its
descriptor until the next iteration.
"""


async def listen(
    protocol: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    backlog: int,
    tls: ServerTls | None,
    failed: Callable[[str, str], None],
    supervisor: Supervisor,
) -> asyncio.Server | TlsListener:
    """Returns what accepts connections from now on; its ``close`` ends that.

    Args:
        protocol: creates the protocol of a connection.
        host: address to listen on.
        port: port to listen on; 0 chooses a free port.
        backlog: number of connections that the system holds before they are accepted.
        tls: certificate and mode; None accepts plain connections only.
        failed: called with peer and reason if a handshake fails or is refused.
        supervisor: counts and logs unexpected errors.

    Raises:
        AddressInUseError: another process listens there.
        ConfigError: the address cannot be used for another reason.
    """
    try:
        if tls is None:
            return await _listen_plainly(protocol, host, port, backlog)
    except OSError as error:
        raise _refused(host, port, error) from error
    return TlsListener(bound(host, port, backlog), protocol, tls, failed, supervisor)


def bound(host: str, port: int, backlog: int) -> socket.socket:
    """Returns a socket that listens; nothing accepts its connections before ``accept``.

    Args:
        host: address to listen on.
        port: port to listen on; 0 chooses a free port.
        backlog: number of connections that the system holds before they are accepted.

    Raises:
        AddressInUseError: another process listens there.
        ConfigError: the address cannot be used for another reason.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise _refused(host, port, error) from error


async def accept(
    protocol: Callable[[], asyncio.BaseProtocol],
    listening: socket.socket,
    backlog: int,
    tls: ServerTls | None,
    failed: Callable[[str, str], None],
    supervisor: Supervisor,
) -> asyncio.Server | TlsListener:
    """Does what ``listen`` does, with the socket of ``bound``, which the result closes."""
    if tls is not None:
        return TlsListener(listening, protocol, tls, failed, supervisor)
    server = await asyncio.get_running_loop().create_server(protocol, sock=listening, backlog=_ACCEPTED_TOGETHER)
    return _with_backlog(server, backlog)


def _refused(host: str, port: int, error: OSError) -> AddressInUseError | ConfigError:
    """The error to raise if the system refuses an address."""
    address = join_address(host, port)
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(address)
    allowed = f"an address of this machine and a port this user may open ({error})"
    return ConfigError("listen address", address, allowed)


async def _listen_plainly(
    protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int, backlog: int
) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(protocol, host, port, backlog=_ACCEPTED_TOGETHER)
    return _with_backlog(server, backlog)


def _with_backlog(server: asyncio.Server, backlog: int) -> asyncio.Server:
    # asyncio passes its ``backlog`` to ``listen``, and accepts up to ``backlog`` connections in one iteration. The
    # queue in the operating system should be longer, so ``listen`` is called again.
    for each in server.sockets:
        with each.dup() as listening:
            listening.listen(backlog)
    return server
