"""Connections that begin a request and do not end it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from rucola.runtime.bounded_server import BoundedServer

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"


async def application(_scope: Any, receive: Any, send: Any) -> None:
    """Answers when it has the whole body."""
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        if not event["more_body"]:
            break
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@pytest.mark.parametrize("sent", [b"", HEAD[:20], HEAD, HEAD + b"three"])
def test_a_request_that_does_not_end_is_closed(sent: bytes) -> None:
    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server = BoundedServer(application, 8, 0.1, 1)
            serving = asyncio.ensure_future(server.serve([listening]))
            host, port = listening.getsockname()
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(HEAD + b"the whole")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()
            server.should_exit = True
            await serving

    asyncio.run(scene())
