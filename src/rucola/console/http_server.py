"""The HTTP server of the console: uvicorn with bounds. Bound before anything else starts."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rucola.common.hosts import join_address
from rucola.errors import AddressInUseError, ConfigError

CONNECTIONS_MAX: Final = 256
REQUEST_S: Final = 10.0
"""Seconds that a connection has to send a whole request, and may be idle."""
_BACKLOG: Final = 128
_STOP_S: Final = 2


class ConsoleHttp:
    """One listener. Call ``bind``, ``start`` and ``stop``, once each."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
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
        listener = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._host, self._port))
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE:
                raise AddressInUseError(self.address, "--port") from error
            raise ConfigError("--host", self.address, f"an address of this machine ({error})") from error
        self._port = listener.getsockname()[1]
        self._socket = listener

    def start(self, application: Any) -> None:
        """Begins to serve."""
        assert self._socket is not None
        config = uvicorn.Config(
            application,
            http=_BoundedProtocol,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_STOP_S,
        )
        config.load()
        self._server = _Server(config)
        self._task = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        """Stops listening; answers that are being made have ``_STOP_S`` seconds."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await asyncio.wait([self._task])
        if self._socket is not None:
            self._socket.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the command handles signals, so uvicorn must not


class _BoundedProtocol(H11Protocol):
    """Closes connections beyond the limit, and connections that take too long to send a request."""

    _overdue: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_request()
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._overdue.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._overdue.cancel()
        self._expect_request()

    def _expect_request(self) -> None:
        self._overdue = self.loop.call_later(REQUEST_S, self._close_unless_answering)

    def _close_unless_answering(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
