"""The port for clients of RocketMQ 5 of ``rucola up`` and ``rucola broker``: options, TLS, metrics, imports."""

from __future__ import annotations

import asyncio
import hmac
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import grpc
import pytest
from tests.brokers import Cluster
from tests.unit.cli.test_cli import SMALL, refused_here

from rucola.broker.config import BrokerConfig, broker_options
from rucola.cli import proxy_process
from rucola.cli import servers as servers_module
from rucola.cli.servers import Addresses, UpOptions, UpServers
from rucola.errors import AddressInUseError, ConfigError, MissingExtraError
from rucola.grpc.self_signed import pem_of
from rucola.proxy import beside, messages
from rucola.proxy.beside import DoorBeside
from rucola.testing.rocketmq import RocketMQ

CLIENT = (("x-mq-client-id", "c1"),)
HEALTH = "/grpc.health.v1.Health/Check"


def up(tmp_path: Path, work: Callable[[Addresses], Awaitable[None]], **options: object) -> None:
    """Runs ``rucola up``'s servers in this process, and ``work`` meanwhile."""
    config = {line.split("=")[0]: line.split("=")[1] for line in SMALL.split()}
    chosen = UpOptions(store=f"{tmp_path}/store", namesrv_port=0, broker_port=0, http_port=0, config=config)

    async def play() -> None:
        servers = UpServers(chosen._replace(**options))  # type: ignore[arg-type]
        addresses = await servers.start()
        try:
            await work(addresses)
        finally:
            await servers.stop()

    asyncio.run(play())


def call(channel: grpc.Channel, path: str, request: bytes, metadata: Sequence[tuple[str, str]] = CLIENT) -> bytes:
    """Makes one call; returns the bytes of the answer."""
    method = channel.unary_unary(path, request_serializer=None, response_deserializer=None)
    answer: bytes = method(request, metadata=metadata, timeout=60)
    return answer


def missing(_extra: object, user: str) -> None:
    raise MissingExtraError(user, ("google.protobuf",), "grpc")


BROKERS = pytest.mark.parametrize("brokers", [1, 2])


@BROKERS
def test_up_takes_the_usual_port_if_it_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brokers: int) -> None:
    assert servers_module.GRPC_PORT == 8081
    monkeypatch.setattr(servers_module, "GRPC_PORT", 0)

    async def work(addresses: Addresses) -> None:
        assert addresses.grpc is not None and addresses.grpc == addresses.grpc_text
        with grpc.insecure_channel(addresses.grpc) as channel:
            assert await asyncio.to_thread(call, channel, HEALTH, b"") == b"\x08\x01"

    up(tmp_path, work, brokers=brokers)


@pytest.mark.few(1)
@BROKERS
def test_up_does_without_the_usual_port_if_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brokers: int
) -> None:
    async def work(addresses: Addresses) -> None:
        assert (addresses.grpc, addresses.grpc_text) == (None, f"off, port {port} in use")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(servers_module, "GRPC_PORT", port)
        up(tmp_path, work, brokers=brokers)
        with pytest.raises(AddressInUseError, match="--grpc-port"):
            up(tmp_path, work, grpc_port=port, brokers=brokers)


@pytest.mark.few(1)
@BROKERS
def test_up_does_without_the_extra_unless_the_port_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], brokers: int
) -> None:
    for module in (beside, proxy_process):
        monkeypatch.setattr(module, "require", missing)

    async def work(addresses: Addresses) -> None:
        assert addresses.grpc is None and addresses.grpc_text.startswith("off, google.protobuf not installed")

    up(tmp_path, work, brokers=brokers)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{SMALL}storePathRootDir={tmp_path}/broker\nlistenPort=0\n")
    for command in (["up", "--ephemeral", "--brokers", str(brokers), "--json"], ["broker", "-c", str(conf), "--json"]):
        code, error = refused_here(capsys, *command, "--grpc-port", "0")
        assert code == 2 and "--grpc-port" in error and "google.protobuf" in error, command
    assert not (tmp_path / "broker").exists()


@pytest.mark.parametrize(
    "options",
    [{"grpc": False}, {"config": {"grpcServerPort": "-1"}}, {"grpc_port": -1}],
    ids=["flag", "file", "number"],
)
def test_the_port_can_be_turned_off(tmp_path: Path, options: dict[str, object]) -> None:
    async def work(addresses: Addresses) -> None:
        assert (addresses.grpc, addresses.grpc_text) == (None, "off")

    up(tmp_path, work, **options)


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="--no-grpc is given"):
        UpServers(UpOptions(grpc=False, grpc_port=0))
    with pytest.raises(ConfigError, match="grpcAdvertisedAddress"):
        BrokerConfig(grpc_advertised_address="broker.example.com")


_IMPORTS = """
import asyncio, ssl, sys
from rucola.cli.servers import UpOptions, UpServers

LATE = ("google.protobuf", "rucola.http2.connection", "rucola.proxy.door", "cryptography")

async def main():
    servers = UpServers(UpOptions(store=sys.argv[1], namesrv_port=0, broker_port=0, http_port=0, grpc_port=0,
                                  config={"mappedFileSizeCommitLog": "1048576"}))
    addresses = await servers.start()
    print(*(name for name in LATE if name in sys.modules))
    host, port = addresses.grpc.split(":")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET / HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
    print((await reader.readline()).decode().strip())
    writer.close()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    print(writer.get_extra_info("cipher") is not None)
    writer.close()
    print(*(name for name in LATE if name in sys.modules))
    await servers.stop()

asyncio.run(main())
"""


def test_a_broker_without_clients_of_rocketmq_5_does_not_load_what_they_need(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _IMPORTS, f"{tmp_path}/store"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout.splitlines()
    assert shown == [
        "",
        "HTTP/1.1 505 HTTP Version Not Supported",
        "True",
        "google.protobuf rucola.http2.connection rucola.proxy.door",
    ]


def test_metrics_of_the_port_stand_beside_the_broker_s(tmp_path: Path) -> None:
    def metrics(addresses: Addresses) -> list[str]:
        with urllib.request.urlopen(f"http://{addresses.http}/metrics", timeout=60) as response:
            lines: list[str] = response.read().decode().splitlines()
        wanted = ("rucola_grpc_connections ", "rucola_grpc_clients", "rucola_grpc_calls_total", "rucola_grpc_outcomes_")
        return [line for line in lines if line.startswith(wanted)]

    async def work(addresses: Addresses) -> None:
        assert addresses.grpc is not None
        assert await asyncio.to_thread(metrics, addresses) == [
            "rucola_grpc_connections 0.0",
            "rucola_grpc_clients 0.0",
            "rucola_grpc_calls_total 0.0",
        ]
        path = "/apache.rocketmq.v2.MessagingService/QueryRoute"
        request = messages.QueryRouteRequest(topic=messages.Resource(name="none")).SerializeToString()
        with grpc.insecure_channel(addresses.grpc) as first, grpc.insecure_channel(addresses.grpc) as second:
            await asyncio.to_thread(call, first, path, request)
            await asyncio.to_thread(call, first, HEALTH, b"")
            await asyncio.to_thread(call, second, HEALTH, b"")
            shown = await asyncio.to_thread(metrics, addresses)
        assert shown[1:] == [
            "rucola_grpc_clients 1.0",
            "rucola_grpc_calls_total 3.0",
            'rucola_grpc_outcomes_total{method="QueryRoute",status="TOPIC_NOT_FOUND"} 1.0',
        ]

    up(tmp_path, work, grpc_port=0)


def test_calls_of_connections_that_have_ended_count(tmp_path: Path) -> None:
    async def play() -> None:
        servers = UpServers(
            UpOptions(store=f"{tmp_path}/store", namesrv_port=0, broker_port=0, http_port=0, grpc_port=0, config={})
        )
        addresses = await servers.start()
        door = servers._door
        assert door is not None and addresses.grpc is not None
        for _ in range(2):
            with grpc.insecure_channel(addresses.grpc) as channel:
                await asyncio.to_thread(call, channel, HEALTH, b"")
            while door.figures().connections:
                await asyncio.sleep(0)
        assert door.figures().calls == 2
        await servers.stop()

    asyncio.run(play())


def test_the_port_needs_no_watched_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, whose event loop watches none: the door is there before its first client."""

    def unwatched(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(beside, "door_tls", lambda *_: None)
    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_reader", unwatched)
    monkeypatch.setattr(asyncio.SelectorEventLoop, "remove_reader", unwatched)

    async def play() -> None:
        async with Cluster(tmp_path) as cluster:
            door = DoorBeside(cluster.broker.config, 0)
            door.bind()
            door.start(cluster.broker)
            with grpc.insecure_channel(door.address) as channel:
                assert await asyncio.to_thread(call, channel, HEALTH, b"") == b"\x08\x01"
            await door.stop()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(play())


@pytest.mark.parametrize("advertised", ["", "[2001:db8::7]:443"])
def test_routes_name_the_advertised_address_or_the_one_that_the_client_has_used(advertised: str) -> None:
    used = messages.Endpoints(scheme=messages.DOMAIN_NAME, addresses=[messages.Address(host="mq.test", port=18081)])
    request = messages.QueryRouteRequest(topic=messages.Resource(name="flights"), endpoints=used)
    with RocketMQ({"grpcAdvertisedAddress": advertised}) as rocketmq:
        rocketmq.create_topic("flights", queues=1)
        with grpc.insecure_channel(rocketmq.grpc) as channel:
            answer = call(channel, "/apache.rocketmq.v2.MessagingService/QueryRoute", request.SerializeToString())
    (queue,) = messages.QueryRouteResponse.FromString(answer).message_queues
    (address,) = queue.broker.endpoints.addresses
    assert (address.host, address.port) == (("2001:db8::7", 443) if advertised else ("mq.test", 18081))


def test_the_accounts_are_those_of_the_broker(tmp_path: Path) -> None:
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(
        "accounts:\n- {accessKey: flights, secretKey: a-secret-of-a-test, topicPerms: [flights=PUB]}\n"
    )
    date = "20261128T120000Z"

    def code(address: str, topic: str, secret: str) -> int:
        signature = hmac.new(secret.encode(), date.encode(), "sha1").hexdigest()
        signed = f"MQv2-HMAC-SHA1 Credential=flights, SignedHeaders=x-mq-date-time, Signature={signature}"
        metadata = (*CLIENT, ("x-mq-date-time", date), ("authorization", signed))
        request = messages.QueryRouteRequest(topic=messages.Resource(name=topic)).SerializeToString()
        with grpc.insecure_channel(address) as channel:
            found = call(channel, "/apache.rocketmq.v2.MessagingService/QueryRoute", request, metadata)
        return messages.QueryRouteResponse.FromString(found).status.code

    async def work(addresses: Addresses) -> None:
        assert addresses.grpc is not None
        for topic, secret, expected in (
            ("flights", "a-secret-of-a-test", messages.TOPIC_NOT_FOUND),
            ("flights", "another-secret-of-a", messages.UNAUTHORIZED),
            ("trains", "a-secret-of-a-test", messages.FORBIDDEN),
        ):
            assert await asyncio.to_thread(code, addresses.grpc, topic, secret) == expected

    up(tmp_path, work, grpc_port=0, config={"aclEnable": "true", "rocketmqHome": f"{tmp_path}/home"})


def certificate_of(address: str) -> bytes:
    """The certificate that the port shows to a client which verifies nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as plain, context.wrap_socket(plain) as secured:
        assert secured.selected_alpn_protocol() == "h2"
        found = secured.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_on_loopback_the_port_takes_tls_without_any_file(tmp_path: Path) -> None:
    async def work(addresses: Addresses) -> None:
        assert addresses.grpc is not None
        pem = ssl.DER_cert_to_PEM_cert(await asyncio.to_thread(certificate_of, addresses.grpc))
        credentials = grpc.ssl_channel_credentials(pem.encode())
        with (
            grpc.secure_channel(addresses.grpc, credentials) as secured,
            grpc.insecure_channel(addresses.grpc) as plain,
        ):
            for channel in (secured, plain):
                assert await asyncio.to_thread(call, channel, HEALTH, b"") == b"\x08\x01"

    up(tmp_path, work, grpc_port=0)


@pytest.mark.parametrize("mode", ["disabled", "permissive", "enforcing"])
def test_the_port_uses_the_broker_s_certificate(tmp_path: Path, mode: str) -> None:
    pem = tmp_path / "both.pem"
    pem.write_bytes(pem_of(["localhost"]))
    config = BrokerConfig(tls_cert_path=str(pem), tls_key_path=str(pem), tls_mode=mode)
    tls = DoorBeside(config, 0)._tls
    assert tls is not None and isinstance(tls.context, ssl.SSLContext)
    assert tls.permissive is (mode != "enforcing")
    with pytest.raises(ConfigError, match="tlsCertPath"):
        DoorBeside(BrokerConfig(tls_cert_path=f"{tmp_path}/none.pem", tls_key_path=str(pem)), 0)


def test_elsewhere_the_port_takes_plain_connections_unless_there_is_a_certificate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config, _ = broker_options({"bindAddress": "0.0.0.0", "brokerIP1": "192.0.2.1", "insecure": "true"})
    with caplog.at_level("WARNING", "rucola"):
        assert DoorBeside(config, 0)._tls is None
    assert "gRPC port takes plain connections only" in caplog.text
