"""Health and metrics over HTTP: ``/livez``, ``/readyz``, ``/metrics``.

``bind`` reserves the port before anything else starts. The HTTP libraries are imported in a thread at the first
request, so that the event loop does not wait and a broker without HTTP requests does not load them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from rucola.common.hosts import join_address
from rucola.errors import AddressInUseError
from rucola.runtime.bound_socket import bound_socket

CONNECTIONS_MAX = 64
"""Largest number of open connections; further connections are closed immediately."""
REQUEST_S = 5.0
"""Time limit for a connection to send a whole request."""
_STOP_S = 1
"""How long ``stop`` waits for requests in progress."""


class Health(NamedTuple):
    """State of the servers in this process.

    Attributes:
        trouble: returns why the servers are not ready; an empty text if they are.
        metrics: returns the text of the metrics and its content type; the first call imports the libraries.
        remark: returns what is wrong although the servers are ready; an empty text if nothing is.
    """

    trouble: Callable[[], str]
    metrics: Callable[[], Awaitable[tuple[bytes, str]]]
    remark: Callable[[], str] = str


class SharedMetrics:
    """Collects metrics for several requests together, because every running collection slows down the event loop. A
    response never holds figures from before its request. Event loop only.
    """

    def __init__(self, collect: Callable[[], Awaitable[tuple[bytes, str]]]) -> None:
        self._collect = collect
        self._one = asyncio.Lock()
        self._next: asyncio.Task[tuple[bytes, str]] | None = None
        """The collection that begins after the current one; requests that come until then share it."""

    async def get(self) -> tuple[bytes, str]:
        """The text of the metrics and its content type. Raises whatever the collection raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._collect_next())
        return await asyncio.shield(self._next)

    async def _collect_next(self) -> tuple[bytes, str]:
        async with self._one:
            self._next = None
            return await self._collect()


class HttpServer:
    """One HTTP listener. Call ``bind``, ``start`` and ``stop``, once each."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._socket: socket.socket | None = None
        self._server: Any = None
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Its address, ``host:port``."""
        return join_address(self._host, self._port)

    def bind(self) -> None:
        """Reserves the port.

        Raises:
            AddressInUseError: another process uses the port.
            ConfigError: listening on the address fails for another reason.
        """
        self._socket = bound_socket(self._host, self._port, "--http-port", "--http-port")
        self._port = self._socket.getsockname()[1]

    def start(self, health: Health) -> None:
        """Starts to serve requests."""
        assert self._socket is not None
        loop = asyncio.get_running_loop()

        def first_connection() -> None:
            loop.remove_reader(descriptor)
            self._task = loop.create_task(self._serve(health))

        descriptor = self._socket.fileno()
        loop.add_reader(descriptor, first_connection)

    def close(self) -> None:
        """Releases the port if ``start`` was not called."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def stop(self) -> None:
        """Stops listening."""
        if self._socket is None:
            return
        if self._task is None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
        elif self._server is None:
            self._task.cancel()
        else:
            self._server.should_exit = True
            await asyncio.wait([self._task])
        self._socket.close()

    async def _serve(self, health: Health) -> None:
        self._server = await asyncio.to_thread(_server_of, health)
        await self._server.serve(sockets=[self._socket])


def in_use(host: str, port: int, option: str) -> AddressInUseError | None:
    """The error of an address that another process uses; None if a server may listen there."""
    tried = HttpServer(host, port)
    try:
        tried.bind()
    except AddressInUseError as error:
        return AddressInUseError(error.address, option)
    tried.close()
    return None


def _server_of(health: Health) -> Any:
    """A server for the HTTP application; imports uvicorn and h11."""
    from rucola.runtime.bounded_server import BoundedServer

    return BoundedServer(_application(health), CONNECTIONS_MAX, REQUEST_S, _STOP_S)


def _application(health: Health) -> Any:
    """The ASGI application."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    async def livez(_request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_request: Request) -> Response:
        trouble = health.trouble()
        text = trouble or ", ".join(filter(None, ("ok", health.remark())))
        return PlainTextResponse(f"{text}\n", status_code=503 if trouble else 200)

    shared = SharedMetrics(health.metrics)

    async def metrics(_request: Request) -> Response:
        content, content_type = await shared.get()
        return Response(content, headers={"content-type": content_type})

    return Starlette(routes=[Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)])
