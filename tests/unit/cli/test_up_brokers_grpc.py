"""The port for clients of RocketMQ 5 of ``rucola up --brokers N``: a proxy in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from pathlib import Path

import grpc
import pytest
from tests.unit.cli.test_cli import TIMEOUT_S
from tests.unit.cli.test_grpc_port import CLIENT, certificate_of, up
from tests.unit.cli.test_up_brokers import brokers, children_of, get, gone
from tests.unit.proxy.clusters import Client

from rucola.broker.config import BrokerConfig
from rucola.cli.broker_processes import BrokerProcess, BrokerProcesses
from rucola.cli.proxy_process import ProxyProcess
from rucola.cli.serve import LogOptions
from rucola.cli.servers import Addresses, UpOptions, UpServers
from rucola.common.message_queue import MessageQueue
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.errors import ConfigError
from rucola.grpc.self_signed import _pem
from rucola.proxy import messages
from rucola.proxy.config import MESSAGE_BYTES_MAX
from rucola.remoting.admin_api import AdminApi
from rucola.remoting.client import ClientOptions, RemotingClient
from rucola.runtime.tls import pinned_context

NAMES = ["broker-0", "broker-1"]


async def create(addresses: list[str], tls: ssl.SSLContext | None = None) -> None:
    """Creates the topic T with two queues at each broker, and the group G, which begins at the first message."""
    remoting = RemotingClient(ClientOptions(tls=tls))
    api = AdminApi(remoting)
    for name, address in zip(NAMES, addresses, strict=True):
        await api.change_topic(address, TopicConfig("T", 2, 2))
        await api.change_group(address, SubscriptionGroupConfig("G"))
        for queue_id in range(2):
            await api.update_consumer_offset(address, "G", MessageQueue("T", name, queue_id), 0)
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
    pem.write_bytes(_pem(["localhost"]))

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


def test_with_accounts_there_is_no_port(tmp_path: Path) -> None:
    conf = tmp_path / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text("accounts:\n- {accessKey: flights, secretKey: a-secret-of-a-test}\n")
    config = {"aclEnable": "true", "rocketmqHome": f"{tmp_path}/home"}

    async def work(addresses: Addresses) -> None:
        assert (addresses.grpc, addresses.grpc_text) == (None, "off with --brokers and accounts")

    up(tmp_path, work, brokers=2, config=config)
    for asked in ({"grpc_port": 0, "config": config}, {"config": {**config, "grpcServerPort": "8081"}}):
        with pytest.raises(ConfigError, match="--brokers is given"):
            UpServers(UpOptions(brokers=2, **asked))  # type: ignore[arg-type]


def test_options_that_the_proxy_shares_with_the_brokers() -> None:
    config = BrokerConfig(
        bind_address="127.0.0.2",
        grpc_advertised_address="front.example:7",
        tls_cert_path="c",
        tls_need_client_auth="none",
    )
    proxy = ProxyProcess(config, 1 << 30, 8081, LogOptions())
    proxy.lead_to("127.0.0.1:9876")
    shared = {key: text for key, text in proxy._values.items() if not key.startswith(("tls", "useTLS"))}
    assert shared == {
        "namesrvAddr": "127.0.0.1:9876",
        "bindAddress": "127.0.0.2",
        "insecure": "false",
        "grpcServerPort": "8081",
        "grpcAdvertisedAddress": "front.example:7",
        "maxMessageSize": str(MESSAGE_BYTES_MAX),
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
