"""A uvicorn server with bounds: few connections, and little time for each request. Its import takes a tenth of a
second, so it is imported when the first connection comes, or in a process that serves nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol


class BoundedServer(uvicorn.Server):
    """A server of one ASGI application. ``serve`` runs it; ``should_exit`` ends it.

    Args:
        application: the application.
        connections_max: number of connections beyond which new ones are closed.
        request_s: seconds that a connection has to send a whole request, and may be idle.
        stop_s: seconds that running requests have at the end.
    """

    def __init__(self, application: Any, connections_max: int, request_s: float, stop_s: int) -> None:
        config = uvicorn.Config(
            application,
            http=_bounded(connections_max, request_s),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=stop_s,
        )
        config.load()
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing: the command handles signals, so uvicorn must not."""
        yield


def _bounded(connections_max: int, request_s: float) -> type[H11Protocol]:
    class BoundedProtocol(H11Protocol):
        """Closes connections beyond the limit, and connections that take too long to send a request."""

        _overdue: asyncio.TimerHandle

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect_request()
            if len(self.connections) > connections_max:
                transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._overdue.cancel()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._overdue.cancel()
            self._expect_request()

        def _expect_request(self) -> None:
            self._overdue = self.loop.call_later(request_s, self._close_unless_answering)

        def _close_unless_answering(self) -> None:
            # A cycle begins with the headers of a request; its body may still be on its way.
            if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
                self.transport.abort()

    return BoundedProtocol
