"""The RocketMQ for tests, used through RocketMQ's official Python client for gRPC."""

from __future__ import annotations

import contextvars
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rucola.cli.main import main
from rucola.errors import MissingExtraError
from rucola.proxy import beside
from rucola.testing.rocketmq import RocketMQ

_CLIENT = "from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer\n"
_SERVER = """
from rucola.testing.rocketmq import RocketMQ
rocketmq = RocketMQ()
rocketmq.__enter__()
rocketmq.create_topic("orders")
"""
_FIRST_CONNECTION = """
import socket
host, _, port = rocketmq.grpc.rpartition(":")
with socket.create_connection((host, int(port))) as browser:
    browser.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
    assert browser.recv(100).startswith(b"HTTP/1.1 505")
"""
_USE = """
config = ClientConfiguration(rocketmq.grpc, Credentials())
producer = Producer(config, ("orders",))
producer.startup()
message = Message()
message.topic, message.body, message.tag = "orders", b"one espresso", "new"
producer.send(message)
consumer = SimpleConsumer(config, "till")
consumer.startup()
consumer.subscribe("orders", FilterExpression("new"))
(order,) = consumer.receive(1, 15)
consumer.ack(order)
print(order.body, order.tag)
consumer.shutdown()
producer.shutdown()
rocketmq.__exit__()
"""


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The official client. When it is imported, it begins a log in the home directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        return importlib.import_module("rocketmq")


@pytest.fixture
def rocketmq() -> Iterator[RocketMQ]:
    with RocketMQ() as servers:
        servers.create_topic("orders")
        yield servers


@contextmanager
def sending(official: Any, rocketmq: RocketMQ) -> Iterator[Callable[[bytes], None]]:
    """Yields a function that sends a message."""
    producer = official.Producer(official.ClientConfiguration(rocketmq.grpc, official.Credentials()), ("orders",))
    producer.startup()

    def send(body: bytes) -> None:
        message = official.Message()
        message.topic, message.body = "orders", body
        producer.send(message)

    yield send
    producer.shutdown()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "program",
    [_CLIENT + _SERVER + _USE, _SERVER + _FIRST_CONNECTION + _CLIENT + _USE],
    ids=["client is imported first", "server is imported first"],
)
def test_the_official_client_and_the_broker_share_a_process(program: str, tmp_path: Path) -> None:
    """Both have the protocol's messages; with one pool of protobuf, the second import would fail."""
    environment = {**os.environ, "HOME": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert (ran.stdout, ran.returncode) == ("b'one espresso' new\n", 0), ran.stderr


def send_again(send: Callable[[bytes], None], body: bytes) -> None:
    """Sends until it succeeds: the client waits a second and more before it connects again."""
    give_up_s = time.monotonic() + 60
    while True:
        try:
            send(body)
        except Exception:  # noqa: BLE001 - the client passes on gRPC's errors and has its own
            assert time.monotonic() < give_up_s
        else:
            return


def mqadmin(*words: str) -> int:
    """Runs a command with JSON as its output, which stays so in this context only."""
    return contextvars.copy_context().run(main, ["mqadmin", "--json", *words])


def test_the_address_stays_and_clients_connect_again(official: Any, rocketmq: RocketMQ) -> None:
    address = rocketmq.grpc
    with sending(official, rocketmq) as send:
        send(b"one espresso")
        rocketmq.restart()
        send_again(send, b"two espressi")
        rocketmq.kill()
        rocketmq.start()
        send_again(send, b"three espressi")
    assert rocketmq.grpc == address
    bodies = {message.body for message in rocketmq.messages("orders")}
    assert bodies == {b"one espresso", b"two espressi", b"three espressi"}


def test_its_consumers_are_seen_by_the_test_and_by_mqadmin(
    official: Any, rocketmq: RocketMQ, capsys: pytest.CaptureFixture[str]
) -> None:
    with sending(official, rocketmq) as send:
        send(b"one espresso")
        consumer = official.SimpleConsumer(official.ClientConfiguration(rocketmq.grpc, official.Credentials()), "till")
        consumer.startup()
        consumer.subscribe("orders", official.FilterExpression("*"))
        (got,) = consumer.receive(1, 15)
        (client_id,) = rocketmq.consumers("till", count=1)
        consumer.ack(got)
        rocketmq.wait_for_progress("till", "orders")
        assert mqadmin("consumerConnection", "-n", rocketmq.namesrv, "-g", "till") == 0
        shown = json.loads(capsys.readouterr().out.splitlines()[0])
        assert (shown["ClientId"], shown["Language"]) == (client_id, "PYTHON")
        words = ["-n", rocketmq.namesrv, "-g", "orders", "-t", "orders"]
        assert mqadmin("producerConnection", *words) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[0])["Language"] == "PYTHON"
        consumer.shutdown()


def test_a_fault_meets_requests_of_the_official_client(official: Any, rocketmq: RocketMQ) -> None:
    with sending(official, rocketmq) as send:
        with rocketmq.faults.refuse("send") as fault:
            with pytest.raises(Exception, match="refused by a test"):
                send(b"one espresso")
            assert fault.hits > 0
        with rocketmq.faults.delay(0.01, "send", times=1):
            send(b"two espressi")
    (stored,) = rocketmq.messages("orders")
    assert (stored.body, stored.properties["UNIQ_KEY"][:2]) == (b"two espressi", "01")


def test_processes_under_test_find_it_in_their_environment(rocketmq: RocketMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rocketmq.env["ROCKETMQ_ENDPOINTS"] == rocketmq.grpc
    host, _, port = rocketmq.grpc.rpartition(":")
    socket.create_connection((host, int(port)), 60).close()
    assert not os.environ.keys() & {"ROCKETMQ_ENDPOINTS"}

    def missing(_extra: object, user: str) -> None:
        raise MissingExtraError(user, ("google.protobuf",), "grpc")

    monkeypatch.setattr(beside, "require", missing)
    with RocketMQ() as without:
        assert "ROCKETMQ_ENDPOINTS" not in without.env and without.env["NAMESRV_ADDR"] == without.namesrv


def test_the_address_is_known_while_the_broker_is_stopped(official: Any) -> None:
    with RocketMQ() as rocketmq:
        rocketmq.create_topic("orders")
        rocketmq.stop()
        address = rocketmq.grpc
        rocketmq.start()
        assert rocketmq.grpc == address
        with sending(official, rocketmq) as send:
            send(b"one espresso")
        assert [message.body for message in rocketmq.messages("orders")] == [b"one espresso"]
