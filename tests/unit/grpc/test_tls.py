"""Plain and encrypted clients on one port, and the certificate that signs itself."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.unit.grpc.services import Service, served
from tests.unit.http2.wire import data, headers, split

from rucola.errors import ConfigError
from rucola.grpc import self_signed
from rucola.grpc.call import GrpcCall
from rucola.grpc.self_signed import self_signed_tls
from rucola.grpc.server_options import GrpcServerOptions
from rucola.http2.frames import PREFACE, FrameType, frame_head
from rucola.http2.hpack import encode_block
from rucola.remoting import tls_listener

ECHO = encode_block(
    [
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":path", b"/t.T/Who"),
        (b":authority", b"x"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
)
HELLO = b"\0\0\0\0\x05hello"


class Who(Service):
    """Says whether the client is encrypted."""

    def methods(self) -> dict[bytes, Any]:
        from rucola.grpc.methods import UnaryMethod

        return {**super().methods(), b"/t.T/Who": UnaryMethod(self.who)}

    def who(self, call: GrpcCall, request: bytes) -> bytes:
        return f"{call.secure} {call.address.rpartition(':')[0]}".encode()


OPTIONS = GrpcServerOptions(tls=self_signed_tls(["broker.example", "10.1.2.3"]))


def trusting(alpn: bool = True) -> ssl.SSLContext:
    """The context of a client that believes every certificate, as RocketMQ's do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(["h2"])
    return context


async def ask(port: int, context: ssl.SSLContext | None) -> tuple[bytes, str | None]:
    """Calls Who with frames of our own; returns the response, and the protocol that was chosen with ALPN."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(PREFACE + frame_head(0, FrameType.SETTINGS, 0, 0) + headers(1, ECHO) + data(1, HELLO, True))
    got = b""
    while not any(kind == FrameType.DATA for kind, *_ in split(got)):
        more = await reader.read(65536)
        assert more, "the server has closed"
        got += more
    chosen = writer.get_extra_info("ssl_object")
    writer.close()
    (payload,) = [payload for kind, _, _, payload in split(got) if kind == FrameType.DATA]
    return payload[5:], chosen and chosen.selected_alpn_protocol()


def test_plain_and_encrypted_clients_on_one_port() -> None:
    async def scene() -> None:
        async with served(Who(), OPTIONS) as server:
            assert await ask(server.port, None) == (b"False 127.0.0.1", None)
            assert await ask(server.port, trusting()) == (b"True 127.0.0.1", "h2")
            assert await ask(server.port, trusting(alpn=False)) == (b"True 127.0.0.1", None)

    asyncio.run(scene())


def test_a_library_verifies_the_certificate() -> None:
    """grpcio trusts nothing but the certificate, and wants the name that it has asked for."""

    async def scene() -> None:
        async with served(Who(), OPTIONS) as server:
            address = ("127.0.0.1", server.port)
            pem = await asyncio.to_thread(ssl.get_server_certificate, address)
            for name in ("localhost", "broker.example", "10.1.2.3"):
                credentials = grpc.ssl_channel_credentials(pem.encode())
                options = [("grpc.ssl_target_name_override", name)]
                async with grpc.aio.secure_channel(server.address, credentials, options) as channel:
                    call = channel.unary_unary("/t.T/Who")
                    assert await call(b"", timeout=60) == b"True 127.0.0.1"

    asyncio.run(scene())


def test_the_certificate_is_made_once_and_only_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = self_signed.pem_of
    monkeypatch.setattr(self_signed, "pem_of", lambda names: made.append(names) or make(names))

    async def scene() -> None:
        async with served(Who(), GrpcServerOptions(tls=self_signed_tls())) as server:
            await ask(server.port, None)
            assert made == []
            await asyncio.gather(*(ask(server.port, trusting()) for _ in range(3)))
            await ask(server.port, trusting())
            assert made == [("localhost", "127.0.0.1", "::1")]

    asyncio.run(scene())


def test_a_certificate_that_cannot_be_made_costs_the_client_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    make = self_signed.pem_of
    failures = [ConfigError("tlsCertPath", "", "a reason")]

    def fail(names: Any) -> bytes:
        if failures:
            raise failures.pop()
        return make(names)

    monkeypatch.setattr(self_signed, "pem_of", fail)

    async def scene() -> None:
        async with served(Who(), GrpcServerOptions(tls=self_signed_tls())) as server:
            with pytest.raises(OSError):
                await ask(server.port, trusting())
            assert server._supervisor.failures["TLS context"] == 1
            assert (await ask(server.port, trusting()))[0] == b"True 127.0.0.1"
            assert (await ask(server.port, None))[0] == b"False 127.0.0.1"

    asyncio.run(scene())


def test_without_files_in_memory_an_administrator_gives_the_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ConfigError, match=r"tlsCertPath.*tlsKeyPath"):
        self_signed_tls()


def test_the_key_stays_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = set(Path("/proc/self/fd").iterdir())
    context = self_signed.context_of(self_signed.pem_of(["localhost"]))
    assert isinstance(context, ssl.SSLContext)
    assert list(tmp_path.iterdir()) == [] and set(Path("/proc/self/fd").iterdir()) == before


def test_a_client_that_leaves_while_the_certificate_is_made_takes_it_from_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tls_listener, "HANDSHAKE_TIMEOUT_S", 0.0)

    async def scene() -> None:
        async with served(Who(), GrpcServerOptions(tls=self_signed_tls())) as server:
            with pytest.raises(OSError):
                await ask(server.port, trusting())
            monkeypatch.setattr(tls_listener, "HANDSHAKE_TIMEOUT_S", 60.0)
            assert (await ask(server.port, trusting()))[0] == b"True 127.0.0.1"

    asyncio.run(scene())
