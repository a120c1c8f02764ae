"""The TLS listener continues after a connection that met a defect."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rucola.remoting import tls_listener
from rucola.remoting.tls_listener import TlsListener
from rucola.runtime.supervision import Supervisor


def test_a_connection_is_accepted_after_one_that_met_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, a defect stopped the listener: no client could connect any more, and no log line said so."""

    async def scene() -> None:
        opened = asyncio.Event()

        class Opened(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                opened.set()
                transport.close()

        failures = iter([ValueError("a defect")])
        accept = TlsListener._accept_one

        async def first_one_fails(self: TlsListener) -> None:
            for failure in failures:
                raise failure
            await accept(self)

        monkeypatch.setattr(tls_listener, "_PAUSE_S", 0.001)
        monkeypatch.setattr(TlsListener, "_accept_one", first_one_fails)
        listening = socket.create_server(("127.0.0.1", 0))
        supervisor, tls = Supervisor(), cast(Any, SimpleNamespace(permissive=True, context=None))
        listener = TlsListener(listening, Opened, tls, lambda peer, reason: None, supervisor)
        try:
            async with asyncio.timeout(30):
                _, writer = await asyncio.open_connection(*listening.getsockname())
                writer.write(b"\0")
                await opened.wait()
                writer.close()
        finally:
            listener.close()
        assert supervisor.failures == {"acceptance of connections": 1}

    asyncio.run(scene())
