"""Takes a port before a server starts: an HTTP server then begins with a socket that already listens."""

from __future__ import annotations

import errno
import socket

from rucola.common.hosts import join_address
from rucola.errors import AddressInUseError, ConfigError

_BACKLOG = 128


def bound_socket(host: str, port: int, host_option: str, port_option: str) -> socket.socket:
    """Returns a socket that listens on ``host`` and ``port``.

    Args:
        port: 0 for any free port.
        host_option, port_option: the options that errors name.

    Raises:
        AddressInUseError: another process uses the port.
        ConfigError: listening on the address fails for another reason.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        address = join_address(host, port)
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(address, port_option) from error
        raise ConfigError(host_option, address, f"an address of this machine ({error})") from error
    return listener
