"""The port for clients of RocketMQ 5 of ``rucola up --brokers N``: a proxy in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import ssl
import time
from pathlib import Path

import grpc
import pytest
from tests.attack.guarded import ADMIN, ALICE, BOB, write_accounts
from tests.unit.cli.test_cli import TIMEOUT_S
from tests.unit.cli.test_grpc_port import CLIENT, certificate_of, up
from tests.unit.cli.test_up_brokers import brokers, children_of, get, gone
from tests.unit.proxy.clusters import Client

from rucola.broker.config import BrokerConfig
from rucola.cli.broker_processes import BrokerProcess, BrokerProcesses
from rucola.cli.proxy_process import ProxyProcess
from rucola.cli.serve import LogOptions
from rucola.cli.servers import Addresses
from rucola.common.message_queue import MessageQueue
from rucola.common.options import parse_options
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.grpc.self_signed import pem_of
from rucola.proxy import messages
from rucola.proxy.config import MESSAGE_BYTES_MAX, ProxyConfig
from rucola.remoting.admin_api import AdminApi
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.remoting.signer import RequestSigner
from rucola.runtime.clock import SystemClock
from rucola.runtime.tls import pinned_context

NAMES = ["broker-0", "broker-1"]


async def create(
    addresses: list[str],
    tls: ssl.SSLContext | None = None,
    signer: RequestSigner | None = None,
    topic: str = "T",
    group: str = "G",
) -> None:
    """Creates a topic with two queues at each broker, and a group, which begins at the first message."""
    remoting = RemotingClient(ClientOptions(tls=tls, signer=signer))
    api = AdminApi(remoting)
    for name, address in zip(NAMES, addresses, strict=True):
        await api.change_topic(address, TopicConfig(topic, 2, 2))
        await api.change_group(address, SubscriptionGroupConfig(group))
        for queue_id in range(2):
            await api.update_consumer_offset(address, group, MessageQueue(topic, name, queue_id), 0)
    await remoting.close()


def queues_of(route: messages.QueryRouteResponse) -> list[tuple[str, int]]:
    return sorted((queue.broker.name, queue.id) for queue in route.message_queues)


ALL_QUEUES = [(name, queue_id) for name in NAMES for queue_id in range(2)]


def test_clients_use_all_brokers_and_are_told_to_connect_again_before_the_brokers_stop(tmp_path: Path) -> None:
    with brokers(tmp_path / "store", 2, "--grpc-port", "0") as (facts, process):
        children = children_of(process.pid)
        assert len(children) == 3

        async def use() -> None:
            await create(facts["brokers"])
            client = Client()
            await client.connect(facts["grpc"])
            assert queues_of(await client.route("T")) == ALL_QUEUES
            stream = await client.produces("T")
            bodies = [b"%d" % number for number in range(16)]
            for body in bodies:
                assert (await client.sent("T", body)).status.code == messages.OK
            received: list[bytes] = []
            for name in NAMES:
                found = await client.received("G", "T", broker=name)
                assert found, f"{name} has messages"
                assert all(entry.status.code == messages.OK for entry in (await client.ack("G", "T", *found)).entries)
                received += [one.body for one in found]
            assert set(received) <= set(bodies) and len(set(received)) == len(received)
            process.send_signal(signal.SIGTERM)
            assert (await stream.next()).WhichOneof("command") == "reconnect_endpoints_command"
            assert (await stream.next(), stream.status) == (None, 0)
            client.close()

        asyncio.run(use())
        assert process.communicate(timeout=TIMEOUT_S) == ("", "")
        assert process.returncode == 0
        assert all(map(gone, children))
        assert not list((tmp_path / "store").glob("*/abort"))


def test_a_proxy_that_dies_is_reported_and_started_again_at_the_same_address(tmp_path: Path) -> None:
    with brokers(tmp_path / "store", 2, "--grpc-port", "0") as (facts, process):
        assert get(facts, "/readyz") == (200, "ok\n")
        [proxy] = [pid for pid in children_of(process.pid) if b"\0proxy\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(proxy, signal.SIGKILL)
        assert process.stderr is not None
        line = next(line for line in process.stderr if "ended and is started again" in line)
        assert "name=proxy" in line and "exit=-9" in line
        assert get(facts, "/readyz") == (503, "proxy ended with -9; started again\n")
        deadline = time.monotonic() + TIMEOUT_S
        while get(facts, "/readyz") != (200, "ok\n"):
            assert time.monotonic() < deadline
            time.sleep(0.05)

        async def use() -> None:
            await create(facts["brokers"])
            client = Client()
            await client.connect(facts["grpc"])
            assert queues_of(await client.route("T")) == ALL_QUEUES
            client.close()

        asyncio.run(use())
        assert len(children_of(process.pid)) == 3
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0


def test_the_proxy_has_the_certificate_of_the_brokers_and_expects_it_of_them(tmp_path: Path) -> None:
    pem = tmp_path / "both.pem"
    pem.write_bytes(pem_of(["localhost"]))

    async def work(addresses: Addresses) -> None:
        await create(list(addresses.brokers.values()), pinned_context(str(pem)))
        assert addresses.grpc is not None
        certificate = ssl.DER_cert_to_PEM_cert(await asyncio.to_thread(certificate_of, addresses.grpc))
        assert certificate in pem.read_text()
        credentials = grpc.ssl_channel_credentials(certificate.encode())
        target = f"localhost:{addresses.grpc.rpartition(':')[2]}"
        path = "/apache.rocketmq.v2.MessagingService/QueryRoute"
        front = messages.Endpoints(scheme=messages.DOMAIN_NAME, addresses=[messages.Address(host="front", port=1)])
        request = messages.QueryRouteRequest(topic=messages.Resource(name="T"), endpoints=front)

        def ask() -> bytes:
            with grpc.secure_channel(target, credentials) as channel:
                method = channel.unary_unary(path)
                found: bytes = method(request.SerializeToString(), metadata=CLIENT, timeout=60)
                return found

        assert queues_of(messages.QueryRouteResponse.FromString(await asyncio.to_thread(ask))) == ALL_QUEUES

    config = {"tlsMode": "enforcing", "tlsCertPath": str(pem), "tlsKeyPath": str(pem), "brokerName": "broker"}
    up(tmp_path, work, grpc_port=0, brokers=2, config=config)


def test_with_accounts_the_proxy_asks_clients_who_they_are(tmp_path: Path) -> None:
    """It has the accounts of the brokers, and an account of its own that nobody else can see."""
    write_accounts(tmp_path / "home")
    secret = secrets.token_hex(16).encode()
    inner = json.dumps({"accessKey": "inner-account", "secretKey": secret.decode()})
    config = {"aclEnable": "true", "rocketmqHome": f"{tmp_path}/home", "brokerName": "broker"}
    config["innerClientAuthenticationCredentials"] = inner
    config |= {"mappedFileSizeCommitLog": "4194304", "maxHashSlotNum": "1000", "maxIndexNum": "20000"}  # all are read
    signer = RequestSigner(*ADMIN, "", 1, SystemClock().wall_ms)

    async def work(addresses: Addresses) -> None:
        assert addresses.grpc is not None
        await create(list(addresses.brokers.values()), signer=signer, topic="A", group="GA")
        alice, bob = Client("a", ALICE), Client("b", BOB)
        for client in (alice, bob):
            await client.connect(addresses.grpc)
        assert queues_of(await alice.route("A")) == [(name, queue_id) for name in NAMES for queue_id in range(2)]
        assert (await bob.sent("A")).status.code == messages.FORBIDDEN
        for _ in range(4):
            assert (await alice.sent("A")).status.code == messages.OK
        found = [one for name in NAMES for one in await alice.received("GA", "A", broker=name)]
        assert len(found) == 4
        assert (await alice.ack("GA", "A", *found)).status.code == messages.OK
        for client in (alice, bob):
            client.close()
        up = {"rucola_proxy_up 1.0", *(f'rucola_broker_up{{broker="{name}"}} 1.0' for name in NAMES)}
        text = ""
        async with asyncio.timeout(TIMEOUT_S):
            while not up <= set(text.splitlines()):  # on a busy machine, the first answers may come too late
                await asyncio.sleep(0.1 if text else 0)
                _, text = await asyncio.to_thread(get, {"http": addresses.http}, "/metrics")
        assert 'rucola_grpc_outcomes_total{broker="proxy",method="SendMessage",status="FORBIDDEN"} 1.0' in text
        assert 'rucola_broker_up{broker="proxy"}' not in text
        for pid in children_of(os.getpid()):
            for what in ("cmdline", "environ"):
                assert secret not in Path(f"/proc/{pid}/{what}").read_bytes()
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and secret in path.read_bytes()]

    up(tmp_path, work, grpc_port=0, brokers=2, config=config)


def test_users_are_those_of_the_first_broker_which_writes_them_before_the_proxy_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began: list[str] = []

    async def begin(server: BrokerProcess | ProxyProcess) -> None:
        began.append(f"{server.name} begins")
        await asyncio.sleep(0)
        began.append(f"{server.name} serves")

    monkeypatch.setattr(BrokerProcess, "start", begin)
    monkeypatch.setattr(ProxyProcess, "start", begin)
    user = '{"username": "root-user", "password": "a-password-of-a-test"}'
    config = BrokerConfig(
        authentication_enabled=True,
        authorization_enabled=True,
        init_authentication_user=user,
        inner_client_authentication_credentials='{"accessKey": "inner", "secretKey": "a-secret-of-a-test"}',
        acl_require_v2=True,
    )
    proxy = ProxyProcess(config, 1000, 0, LogOptions())
    proxy.lead_to("127.0.0.1:9876", "/stores", "first")
    values = proxy_options(proxy)
    assert (values.rocketmq_home, values.authentication_enabled, values.authorization_enabled) == (
        "/stores/first",
        True,
        True,
    )
    assert values.acl_require_v2
    assert (values.access_key, values.secret_key, values.signature_version) == ("inner", "a-secret-of-a-test", 2)
    asyncio.run(BrokerProcesses({name: {} for name in NAMES}, proxy, LogOptions(), brokers_first=True).start())
    assert began.index("proxy begins") > max(began.index(f"{name} serves") for name in NAMES)


def proxy_options(process: ProxyProcess) -> ProxyConfig:
    return parse_options(ProxyConfig, process._values)


def test_accounts_are_those_of_the_brokers() -> None:
    for home, expected in (("", "/stores"), ("/etc/accounts", "/etc/accounts")):
        proxy = ProxyProcess(BrokerConfig(acl_enable=True, rocketmq_home=home), 1000, 0, LogOptions())
        proxy.lead_to("127.0.0.1:9876", "/stores", "first")
        assert (proxy_options(proxy).acl_enable, proxy_options(proxy).rocketmq_home) == (True, expected)


def test_options_that_the_proxy_shares_with_the_brokers() -> None:
    config = BrokerConfig(
        bind_address="127.0.0.2",
        grpc_advertised_address="front.example:7",
        tls_cert_path="c",
        tls_need_client_auth="none",
    )
    proxy = ProxyProcess(config, 1 << 30, 8081, LogOptions())
    proxy.lead_to("127.0.0.1:9876", "/stores", "first")
    shared = {key: text for key, text in proxy._values.items() if not key.startswith(("tls", "useTLS"))}
    assert shared == {
        "namesrvAddr": "127.0.0.1:9876",
        "bindAddress": "127.0.0.2",
        "insecure": "false",
        "aclEnable": "false",
        "rocketmqHome": "",
        "authenticationEnabled": "false",
        "authorizationEnabled": "false",
        "aclRequireSignatureV2": "false",
        "grpcTlsDir": "",
        "grpcServerPort": "8081",
        "grpcAdvertisedAddress": "front.example:7",
        "maxMessageSize": str(MESSAGE_BYTES_MAX),
        "maxLiteTopicSize": "64",
        "maxSyncLiteSubscriptionRate": "5000",
        "maxLiteRenewNumPerChannel": "100",
    }
    assert proxy._values["tlsCertPath"] == "c"
    assert ProxyProcess(config, 1000, 0, LogOptions())._values["maxMessageSize"] == "1000"


def test_the_proxy_stops_before_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []

    async def stop(server: BrokerProcess | ProxyProcess) -> None:
        await asyncio.sleep(0)
        stopped.append(server.name)

    monkeypatch.setattr(BrokerProcess, "stop", stop)
    monkeypatch.setattr(ProxyProcess, "stop", stop)
    proxy = ProxyProcess(BrokerConfig(), 1000, 0, LogOptions())
    asyncio.run(BrokerProcesses({name: {} for name in NAMES}, proxy, LogOptions()).stop())
    assert stopped == ["proxy", *NAMES]
