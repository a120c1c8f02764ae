"""``rucola proxy`` as a process, and its options."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.test_cli import SMALL, TIMEOUT_S, refused, start
from tests.unit.cli.test_up_brokers import get
from tests.unit.proxy.doors import DoorClient

from rucola.cli import start as commands
from rucola.cli.main import main
from rucola.cli.proxy_server import proxy_config
from rucola.common.hosts import split_address
from rucola.common.topic_config import TopicConfig
from rucola.errors import ConfigError
from rucola.proxy import messages
from rucola.remoting.admin_api import AdminApi
from rucola.remoting.client import RemotingClient


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Ends a server; returns its exit code and its log."""
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, log


def facts_of(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_a_proxy_serves_clients_and_ends_what_they_have_begun(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{SMALL}storePathRootDir={tmp_path}/store\nlistenPort=0\n")
    names = start("namesrv", "--port", "0", "--json")
    namesrv = facts_of(names)["namesrv"]
    broker = start("broker", "-c", str(conf), "-n", namesrv, "--json")
    ports = ("--port", "0", "--http-port", "0")
    proxy = start("proxy", "-n", namesrv, *ports, "--grpc-advertised-address", "front.example:7", "--json")
    told = facts_of(proxy)
    assert told.keys() == {"pid", "namesrv", "grpc", "http"} and told["namesrv"] == namesrv

    async def use(broker_address: str) -> None:
        remoting = RemotingClient()
        await AdminApi(remoting).change_topic(broker_address, TopicConfig("T", 1, 1))
        await remoting.close()
        client = await DoorClient().connect(told["grpc"])
        route = await client.call("QueryRoute", messages.QueryRouteRequest(topic=messages.Resource(name="T")))
        (address,) = route.message_queues[0].broker.endpoints.addresses
        assert (address.host, address.port) == ("front.example", 7)
        stream = await client.produces("T")
        assert (await client.sent("T")).status.code == messages.OK
        assert await asyncio.to_thread(get, told, "/readyz") == (200, "ok\n")
        _, text = await asyncio.to_thread(get, told, "/metrics")
        assert {
            "rucola_grpc_clients 1.0",
            'rucola_grpc_outcomes_total{method="SendMessage",status="OK"} 1.0',
            "rucola_proxy_brokers 1.0",
            "rucola_proxy_links 1.0",
        } <= set(text.splitlines())
        assert "rucola_acl_" not in text
        proxy.send_signal(signal.SIGTERM)
        assert (await stream.next()).WhichOneof("command") == "reconnect_endpoints_command"
        assert (await stream.next(), stream.status) == (None, 0)
        client.close()

    asyncio.run(use(facts_of(broker)["brokers"][0]))
    _, log = proxy.communicate(timeout=TIMEOUT_S)
    assert (proxy.returncode, "stopped" in log) == (0, True)
    assert [ended(process)[0] for process in (broker, names)] == [0, 0]


def test_a_proxy_starts_before_its_name_server(tmp_path: Path) -> None:
    proxy = start("proxy", "-n", "127.0.0.1:1", "--port", "0")
    assert proxy.stdout is not None
    lines = []
    while not lines or lines[-1] != "ready\n":
        lines.append(proxy.stdout.readline())
        assert lines[-1]
    assert any("grpc" in line and "127.0.0.1:" in line for line in lines)
    assert ended(proxy)[0] == 0


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    first = start("proxy", "-n", "127.0.0.1:1", "--port", "0", "--json")
    address = facts_of(first)["grpc"]
    code, error = refused("proxy", "-n", "127.0.0.1:1", "--port", str(split_address(address)[1]))
    assert code == 3 and address in error and "--port" in error
    assert ended(first)[0] == 0


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"namesrvAddr": ""}, "namesrvAddr"),
        ({"namesrvAddr": "http://h:1"}, "namesrvAddr"),
        ({"bindAddress": "0.0.0.0"}, "bindAddress"),
        ({"bindAddress": "nobody"}, "bindAddress"),
        ({"grpcServerPort": "70000"}, "grpcServerPort"),
        ({"grpcAdvertisedAddress": "front"}, "grpcAdvertisedAddress"),
        ({"accessKey": "a"}, "accessKey"),
        ({"tlsMode": "enforcing"}, "tlsCertPath"),
        ({"listenPort": "1"}, "listenPort"),
        ({"aclEnable": "true"}, "rocketmqHome"),
        ({"authenticationEnabled": "true"}, "rocketmqHome"),
        ({"aclEnable": "true", "authenticationEnabled": "true"}, "authenticationEnabled"),
        ({"authorizationEnabled": "true"}, "authorizationEnabled"),
        ({"aclEnable": "true", "rocketmqHome": "/nowhere"}, "aclEnable"),
        ({"authenticationEnabled": "true", "rocketmqHome": "/nowhere"}, "authenticationEnabled"),
        ({"bindAddress": "0.0.0.0", "aclEnable": "true", "rocketmqHome": "/nowhere"}, "bindAddress"),
        ({"signatureVersion": "3"}, "signatureVersion"),
    ],
)
def test_wrong_options(tmp_path: Path, capsys: pytest.CaptureFixture[str], values: dict[str, str], key: str) -> None:
    conf = tmp_path / "proxy.conf"
    given = {"namesrvAddr": "127.0.0.1:1", "grpcServerPort": "0"} | values
    conf.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    assert main(["proxy", "-c", str(conf)]) == 2
    assert f"{key}" in capsys.readouterr().err


def test_options_of_the_command_line_win(tmp_path: Path) -> None:
    conf = tmp_path / "proxy.conf"
    conf.write_text("namesrvAddr=a:1\nbindAddress=0.0.0.0\ninsecure=true\ngrpcServerPort=5\n")
    config = proxy_config(str(conf), "b:2", None, 6, "c:3")
    assert (config.namesrv_addr, config.bind_address, config.grpc_server_port) == ("b:2", "0.0.0.0", 6)
    assert config.grpc_advertised_address == "c:3"
    with pytest.raises(ConfigError):
        proxy_config(None, None, None, None, None)


def test_the_help_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "proxy" in capsys.readouterr().out
    assert callable(commands.proxy)
