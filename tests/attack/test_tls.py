"""Attacks S-46 to S-49: encrypted connections, the identity of the server, and the data that a name server accepts."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.attack.guarded import ADMIN, DENIED, Guarded, certificate, signed, until
from tests.brokers import Cluster, run
from tests.pairs import Pair
from tests.unit.store.stores import message

from rucola import Message, Producer, PullConsumer
from rucola.broker.config import BrokerConfig
from rucola.client.config import ProducerConfig, PullConsumerConfig
from rucola.common.topic_config import TopicConfig
from rucola.errors import ConfigError, RemotingError
from rucola.namesrv import NamesrvConfig
from rucola.protocol.command import RemotingCommand
from rucola.remoting import guarded, tls_listener
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.runtime.tls import client_context, pinned_context, server_context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    certificate(folder, "authority")
    certificate(folder, "server", authority="authority")
    certificate(folder, "elsewhere", authority="authority", host="10.1.1.1")
    certificate(folder, "client", authority="authority")
    certificate(folder, "stranger")
    return folder


def options(certificates: Path, mode: str = "enforcing", name: str = "server", **more: Any) -> dict[str, Any]:
    return {
        "tls_mode": mode,
        "tls_cert_path": str(certificates / f"{name}.pem"),
        "tls_key_path": str(certificates / f"{name}.key"),
        **more,
    }


async def asked(broker: str, context: ssl.SSLContext | None) -> int:
    client = RemotingClient(ClientOptions(tls=context))
    try:
        return (await client.invoke(broker, RemotingCommand(28), 5_000)).code
    finally:
        await client.close()


def test_both_kinds_of_connection_on_one_port(tmp_path: Path, certificates: Path) -> None:
    trusting = client_context(str(certificates / "authority.pem"))

    async def body() -> None:
        async with Cluster(tmp_path, **options(certificates, "permissive")) as cluster:
            assert await asked(cluster.broker.address, trusting) == 0
            assert await asked(cluster.broker.address, None) == 0
            assert await asked(cluster.broker.address, pinned_context(str(certificates / "server.pem"))) == 0
            big = cluster.send_command("T", b"x" * 700_000)
            client = RemotingClient(ClientOptions(tls=trusting))
            assert (await client.invoke(cluster.broker.address, big)).code == 0
            answer = await client.invoke(cluster.broker.address, cluster.pull_command("T"))
            assert len(answer.body) > 700_000
            await client.close()

    run(body())


def test_our_clients_over_tls_with_an_account(tmp_path: Path, certificates: Path) -> None:
    common = {
        "use_tls": True,
        "tls_trust_cert_path": str(certificates / "authority.pem"),
        "access_key": ADMIN[0],
        "secret_key": ADMIN[1],
    }

    async def body() -> None:
        tls = options(certificates, use_tls=True)
        async with Guarded(
            tmp_path, auto_create_topic_enable=True, namesrv_tls=options(certificates), **tls
        ) as cluster:
            for version in (1, 2):
                config = ProducerConfig(signature_version=version, **common)
                async with Producer("pg", cluster.namesrv.address, config) as producer:
                    result = await producer.send(Message("A", b"secret %d" % version))
                    assert result.queue_offset >= 0
                settings = PullConsumerConfig(signature_version=version, **common)
                async with PullConsumer("cg", cluster.namesrv.address, settings) as consumer:
                    found = [await consumer.max_offset(queue) for queue in await consumer.message_queues("A")]
                    assert sum(found) == version

    run(body())


def test_a_slave_asks_its_master_over_tls(tmp_path: Path, certificates: Path) -> None:
    async def body() -> None:
        tls = options(certificates, use_tls=True)
        async with Pair(tmp_path, tls, namesrv_tls=options(certificates), **tls) as pair:
            pair.broker.topics.update(TopicConfig("T"))
            pair.broker.store.put_message(message(1))
            await pair.start_slave()
            await until(lambda: pair.slave.topics.get("T") is not None and pair.same_log(), "the master's tables")

    run(body())


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("case", ["unknown signer", "wrong name", "plain", "old protocol", "weak cipher"])
def test_s47_s48_peers_that_must_not_get_together(tmp_path: Path, certificates: Path, case: str) -> None:
    context: ssl.SSLContext | None = client_context(str(certificates / "authority.pem"))
    assert context is not None
    if case == "unknown signer":
        context = client_context(str(certificates / "stranger.pem"))
    elif case == "plain":
        context = None
    elif case == "old protocol":
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
    elif case == "weak cipher":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("NULL:eNULL:@SECLEVEL=0")

    async def body() -> None:
        name = "elsewhere" if case == "wrong name" else "server"
        async with Cluster(tmp_path, **options(certificates, name=name)) as cluster:
            with pytest.raises(RemotingError):
                await asked(cluster.broker.address, context)

    run(body())


def test_s47_verification_cannot_be_switched_off(certificates: Path) -> None:
    context = client_context(str(certificates / "authority.pem"))
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    server = server_context(str(certificates / "server.pem"), str(certificates / "server.key"), "", "none")
    for one in (context, server, pinned_context(str(certificates / "server.pem"))):
        assert one.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert server.options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.parametrize(("shown", "served"), [("client", True), ("stranger", False), (None, False)])
def test_s47_clients_show_a_certificate(tmp_path: Path, certificates: Path, shown: str | None, served: bool) -> None:
    authority = str(certificates / "authority.pem")
    mine = [str(certificates / f"{shown}.{kind}") for kind in ("pem", "key")] if shown else []
    context = client_context(authority, *mine)

    async def body() -> None:
        needed = options(certificates, tls_need_client_auth="require", tls_trust_cert_path=authority)
        async with Cluster(tmp_path, **needed) as cluster:
            if served:
                assert await asked(cluster.broker.address, context) == 0
            else:
                with pytest.raises(RemotingError):
                    await asked(cluster.broker.address, context)

    run(body())


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_s47_handshakes_that_nobody_finishes(
    tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(tls_listener, "HANDSHAKES_MAX", 4)
    trusting = client_context(str(certificates / "authority.pem"))

    async def body() -> None:
        async with Cluster(tmp_path, **options(certificates, mode)) as cluster:
            host, _, port = cluster.broker.address.rpartition(":")
            started = [await asyncio.open_connection(host, int(port)) for _ in range(4)]
            for _, writer in started:
                writer.write(b"\x16\x03\x01")
            listener = cluster.broker._server._server
            await until(lambda: listener._shaking["127.0.0.1"] == 4, "the handshakes")
            reader, writer = await asyncio.open_connection(host, int(port))
            assert await reader.read() == b""
            writer.close()
            started.pop()[1].close()
            await until(lambda: listener._shaking["127.0.0.1"] == 3, "the end of one")
            assert await asked(cluster.broker.address, trusting) == 0
            for _, writer in started:
                writer.close()

    run(body())


def test_s48_nothing_is_said_to_a_plain_peer(tmp_path: Path, certificates: Path) -> None:
    async def body() -> None:
        async with Cluster(tmp_path, **options(certificates)) as cluster:
            raw = await cluster.connect()
            raw.send(cluster.send_command("T"), 1)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await asyncio.wait_for(raw.receive(), 5)
            raw.close()
            assert cluster.broker.store.stats.put_messages == 0

    run(body())


def test_s46_a_name_server_believes_this_machine_and_certificates_only(
    tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarded, "is_loopback", lambda address: False)
    authority = str(certificates / "authority.pem")
    tls = options(certificates, "permissive", tls_need_client_auth="optional", tls_trust_cert_path=authority)

    async def asks(namesrv: str, code: int, context: ssl.SSLContext | None) -> int:
        client = RemotingClient(ClientOptions(tls=context))
        fields = {"topic": "nothing", "namespace": "n", "key": "k", "value": "v"}
        try:
            return (await client.invoke(namesrv, RemotingCommand(code, ext_fields=fields), 5_000)).code
        finally:
            await client.close()

    async def body() -> None:
        own = client_context(authority, str(certificates / "client.pem"), str(certificates / "client.key"))
        async with Cluster(tmp_path, namesrv_tls=tls) as cluster:
            namesrv = cluster.namesrv.address
            for context in (None, client_context(authority)):
                for code in (100, 102, 103, 104, 205, 216, 217, 318, 322, 327, 904, 9999):
                    assert await asks(namesrv, code, context) == DENIED, code
                assert await asks(namesrv, 105, context) == 17
                assert await asks(namesrv, 101, context) != DENIED
            assert await asks(namesrv, 100, own) == 0
            assert await asks(namesrv, 106, own) == 0
            assert not list(cluster.namesrv.routes.topics())

    run(body())


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({}, "bindAddress"),
        ({"acl_enable": True}, "bindAddress"),
        ({"tls": True}, "bindAddress"),
        ({"acl_enable": True, "tls": True}, None),
        ({"insecure": True}, None),
    ],
)
def test_s49_others_are_let_in_only_with_accounts_and_tls(
    certificates: Path, more: dict[str, Any], key: str | None
) -> None:
    given = {**more, **(options(certificates) if more.get("tls") else {})}
    given.pop("tls", None)
    if key is None:
        assert BrokerConfig(bind_address="10.0.0.1", **given)
    else:
        with pytest.raises(ConfigError) as caught:
            BrokerConfig(bind_address="10.0.0.1", **given)
        assert caught.value.key == key


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"tls_cert_path": ""}, "tlsCertPath"),
        ({"tls_key_path": ""}, "tlsKeyPath"),
        ({"tls_need_client_auth": "require"}, "tlsTrustCertPath"),
        ({"tls_mode": "test"}, "tlsMode"),
    ],
)
def test_settings_that_do_not_fit(certificates: Path, more: dict[str, str], key: str) -> None:
    for config in (BrokerConfig, NamesrvConfig):
        with pytest.raises(ConfigError) as caught:
            config(**{**options(certificates), **more})
        assert caught.value.key == key


def test_files_that_are_no_certificates(certificates: Path, tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    for call in (
        lambda: server_context(str(rubbish), str(certificates / "server.key"), "", "none"),
        lambda: server_context(str(certificates / "server.pem"), str(certificates / "client.key"), "", "none"),
        lambda: client_context(str(rubbish)),
        lambda: client_context(str(tmp_path / "missing.pem")),
        lambda: pinned_context(str(rubbish)),
    ):
        with pytest.raises(ConfigError):
            call()


def test_a_port_in_use_is_told_with_tls_too(tmp_path: Path, certificates: Path) -> None:
    from rucola.errors import AddressInUseError

    async def body() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(AddressInUseError):
                async with Cluster(tmp_path, **options(certificates, listen_port=taken.getsockname()[1])):
                    pass

    run(body())


def test_signed_requests_of_others_over_tls_are_private(
    tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The legacy signature is accepted over TLS, because nobody can overhear it."""
    from rucola.broker.acl import guard as guard_module

    monkeypatch.setattr(guard_module, "is_loopback", lambda address: False)

    async def body() -> None:
        async with Guarded(tmp_path, **options(certificates, "permissive")) as cluster:
            client = RemotingClient(ClientOptions(tls=client_context(str(certificates / "authority.pem"))))
            assert (await client.invoke(cluster.broker.address, signed(RemotingCommand(28), ADMIN))).code == 0
            await client.close()
            assert await cluster.code(ADMIN, RemotingCommand(28)) == DENIED

    run(body())
