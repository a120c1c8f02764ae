"""The HTTP server of the console: uvicorn with bounds. Bound before anything else starts."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from rucola.common.hosts import join_address
from rucola.runtime.bound_socket import bound_socket
from rucola.runtime.bounded_server import BoundedServer

CONNECTIONS_MAX: Final = 256
REQUEST_S: Final = 10.0
"""Seconds that a connection has to send a whole request, and may be idle."""
_STOP_S: Final = 2


class ConsoleHttp:
    """One listener. Call ``bind``, ``start`` and ``stop``, once each."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._socket: socket.socket | None = None
        self._server: BoundedServer | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Its port."""
        return self._port

    @property
    def address(self) -> str:
        """Its address, ``host:port``."""
        return join_address(self._host, self._port)

    def bind(self) -> None:
        """Takes the port.

        Raises:
            AddressInUseError: another process uses the port.
            ConfigError: listening on the address fails for another reason.
        """
        self._socket = bound_socket(self._host, self._port, "--host", "--port")
        self._port = self._socket.getsockname()[1]

    def start(self, application: Any) -> None:
        """Begins to serve."""
        assert self._socket is not None
        self._server = BoundedServer(application, CONNECTIONS_MAX, REQUEST_S, _STOP_S)
        self._task = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Stops listening; answers that are being made have ``_STOP_S`` seconds."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await asyncio.wait([self._task])
        if self._socket is not None:
            self._socket.close()
