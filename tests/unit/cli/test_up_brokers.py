"""``rucola up --brokers N``: one name server, N broker processes, a store each."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.brokers import run
from tests.unit.cli.test_cli import FREE_PORTS_OF_BROKERS, TIMEOUT_S, config_file, refused, start

from rucola.cli import server_process
from rucola.cli.broker_processes import BrokerProcess, configs_of
from rucola.cli.exit_codes import ProcessStartError
from rucola.cli.serve import LogOptions
from rucola.client.config import ProducerConfig
from rucola.client.producer import Producer
from rucola.common.message import Message
from rucola.testing.event_loop import advance, run_stepped, settle


@contextlib.contextmanager
def brokers(store: Path, count: int, *grpc: str) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    arguments = [
        "--store",
        str(store),
        "--config",
        str(config_file(store)),
        "--brokers",
        str(count),
        *FREE_PORTS_OF_BROKERS,
        *(grpc or ["--no-grpc"]),
    ]
    process = start("up", *arguments, "--json")
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline()), process
    finally:
        process.kill()
        process.communicate()


def get(facts: dict[str, Any], path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{facts['http']}{path}", timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(entry.name))
    return found


def gone(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


async def spread(namesrv: str, topic: str, count: int) -> set[str]:
    """Returns the brokers that accepted messages of a new topic."""
    async with Producer("pg", namesrv, ProducerConfig()) as producer:
        return {
            (await producer.send(Message(topic, b"%d" % number))).message_queue.broker_name for number in range(count)
        }


def test_a_topic_is_spread_and_all_stop_together(tmp_path):
    store = tmp_path / "store"
    with brokers(store, 2) as (facts, process):
        assert facts["grpc"] is None
        assert len(set(facts["brokers"])) == 2
        assert facts["store"] == str(store)
        assert sorted(path.name for path in store.iterdir()) == ["broker-0", "broker-1"]
        assert run(spread(facts["namesrv"], "T", 20)) == {"broker-0", "broker-1"}
        assert get(facts, "/readyz") == (200, "ok\n")
        figures = get(facts, "/metrics")[1]
        assert 'rucola_broker_up{broker="broker-1"} 1.0' in figures
        assert 'rucola_ready{broker="broker-0"} 1.0' in figures and 'rucola_ready{broker="broker-1"} 1.0' in figures
        put = [
            line for line in figures.splitlines() if line.startswith("rocketmq_messages_in_total{") and '"T"' in line
        ]
        assert sum(float(line.rpartition(" ")[2]) for line in put) == 20 and len(put) == 2
        children = children_of(process.pid)
        assert len(children) == 2
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, output, error) == (0, "", "")
        assert all(map(gone, children))
        assert not list(store.glob("*/abort"))


def test_a_broker_that_dies_is_reported_and_started_again_while_the_others_go_on(tmp_path):
    with brokers(tmp_path / "store", 2) as (facts, process):
        assert get(facts, "/readyz")[0] == 200
        os.kill(children_of(process.pid)[0], signal.SIGKILL)
        assert process.stderr is not None
        line = next(line for line in process.stderr if "ended and is started again" in line)
        assert "exit=-9" in line
        code, text = get(facts, "/readyz")
        assert (code, text.partition(" ")[2]) == (503, "ended with -9; started again\n")
        dead = text.partition(" ")[0]
        assert f'rucola_broker_up{{broker="{dead}"}} 0.0' in get(facts, "/metrics")[1]
        deadline = time.monotonic() + TIMEOUT_S
        while get(facts, "/readyz") != (200, "ok\n"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert f'rucola_broker_up{{broker="{dead}"}} 1.0' in get(facts, "/metrics")[1]
        for address in facts["brokers"]:  # the same addresses as before
            host, port = address.rsplit(":", 1)
            socket.create_connection((host, int(port)), TIMEOUT_S).close()
        assert run(spread(facts["namesrv"], "T", 20)) == {"broker-0", "broker-1"}
        assert len(children_of(process.pid)) == 2
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0


def test_brokers_and_their_proxy_end_with_the_process_that_started_them(tmp_path):
    with brokers(tmp_path / "store", 2, "--grpc-port", "0") as (_, process):
        children = children_of(process.pid)
        assert len(children) == 3
        process.kill()
        process.communicate(timeout=TIMEOUT_S)  # they share this standard error, so it ends when they end
        deadline = time.monotonic() + TIMEOUT_S
        while not all(map(gone, children)):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_broker_that_does_not_start_is_the_commands_error(tmp_path):
    store = tmp_path / "store"
    with brokers(store, 1) as (facts, _):
        port = int(facts["brokers"][0].rpartition(":")[2])
        ports = ["--namesrv-port", "0", "--broker-port", str(port - 10), "--http-port", "0", "--no-grpc"]
        code, error = refused("up", "--store", str(tmp_path / "other"), "--brokers", "2", *ports)
        assert code == 3
        assert str(port) in error
    config = config_file(store, f"storePathCommitLog={tmp_path / 'log'}\n")
    assert refused("up", "--config", str(config), "--brokers", "2", "--no-grpc", *FREE_PORTS_OF_BROKERS)[0] == 2


def test_names_ports_and_directories() -> None:
    configs = configs_of(3, {"flushDiskType": "SYNC_FLUSH"}, "/data", 10911, "127.0.0.1:9876")
    assert list(configs) == ["broker-0", "broker-1", "broker-2"]
    assert configs["broker-2"] == {
        "flushDiskType": "SYNC_FLUSH",
        "brokerName": "broker-2",
        "storePathRootDir": "/data/broker-2",
        "listenPort": "10931",
        "namesrvAddr": "127.0.0.1:9876",
    }
    assert configs_of(2, {"brokerName": "x"}, "/data", 0, "n")["x-1"]["listenPort"] == "0"
    assert "rocketmqHome" not in configs["broker-0"]
    assert "grpcServerPort" not in configs_of(2, {"grpcServerPort": "8081"}, "/data", 0, "n")["broker-0"]
    slaves = configs_of(2, {"haListenPort": "10912"}, "/data", 10911, "n")
    assert [entries["haListenPort"] for entries in slaves.values()] == ["10912", "10922"]
    for text in ("0", "-1"):
        assert configs_of(2, {"haListenPort": text}, "/data", 0, "n")["broker-1"]["haListenPort"] == text
    for text in ("true", " TRUE "):
        guarded = configs_of(2, {"aclEnable": text}, "/data", 0, "n")
        assert {entries.get("rocketmqHome") for entries in guarded.values()} == {"/data"}, (
            "one file of accounts for all"
        )
    elsewhere = configs_of(2, {"aclEnable": "true", "rocketmqHome": "/home"}, "/data", 0, "n")
    assert {entries["rocketmqHome"] for entries in elsewhere.values()} == {"/home"}


class Started:
    """Stands in for a process: ``lives_s`` long; without a line it ends before it serves."""

    def __init__(self, lives_s: float | None, line: bytes) -> None:
        self.pid, self.returncode, self.stdin = 7, None, SimpleNamespace(close=self.end)
        self.stdout = SimpleNamespace(readline=lambda: self._value(line))
        self._ended = asyncio.Event()
        if lives_s is not None:
            asyncio.get_running_loop().call_later(lives_s, self.end)

    def end(self) -> None:
        self.returncode = 5
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    async def _value(self, line: bytes) -> bytes:
        return line


async def pass_by(seconds: float) -> None:
    advance(seconds)
    await settle()


def test_the_pauses_before_the_next_starts_grow_until_one_lasts(monkeypatch):
    served = b'{"brokers":["127.0.0.1:10911"],"http":"127.0.0.1:1"}\n'
    lives = [(0.5, served), (0, b""), (0, b""), (OSError("no memory"), b""), (0, b""), *[(1.0, served)] * 4]
    lives += [(70.0, served), (5.0, served), (None, served)]
    begun: list[float] = []
    pipes: list[int] = []

    async def begin(*command: str, pass_fds: tuple[int], **_options: object) -> Started:
        begun.append(asyncio.get_running_loop().time())
        assert command[command.index("-c") + 1] == f"/dev/fd/{pass_fds[0]}"
        pipes.append(os.dup(pass_fds[0]))
        seconds, line = lives[len(begun) - 1]
        if isinstance(seconds, OSError):
            raise seconds
        return Started(seconds, line)

    async def scene() -> None:
        broker = BrokerProcess("b", {"listenPort": "0"}, LogOptions())
        await broker.start()
        assert (broker.address, broker.ended_with) == ("127.0.0.1:10911", None)
        await pass_by(0.6)
        assert broker.ended_with == 5
        while len(begun) < len(lives):
            await pass_by(0.5)
        await settle()
        assert broker.ended_with is None
        await broker.stop()

    open_before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(server_process.asyncio, "create_subprocess_exec", begin)
    run_stepped(scene())
    configs = [Path(f"/dev/fd/{pipe}").read_text() if number != 3 else "" for number, pipe in enumerate(pipes)]
    assert ["listenPort=0" in config for config in configs] == [True] + [False] * 11, "the address stays the same"
    assert sum("listenPort=10911" in config for config in configs) == 10
    for pipe in pipes:
        os.close(pipe)
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    pauses = [later - earlier for earlier, later in itertools.pairwise(begun)]
    lived = [seconds if isinstance(seconds, float) else 0 for seconds, _ in lives]
    assert [int(pause - life) for pause, life in zip(pauses, lived, strict=False)] == [
        1,
        2,
        4,
        8,
        16,
        32,
        60,
        60,
        60,
        1,
        2,
    ]
    assert len(lives) == len(begun)


def test_a_configuration_that_is_longer_than_a_pipe_holds(monkeypatch):
    read: list[asyncio.Future[bytes]] = []

    async def begin(*_command: str, pass_fds: tuple[int], **_options: object) -> Started:
        pipe = os.dup(pass_fds[0])
        read.append(asyncio.get_running_loop().run_in_executor(None, content_of, pipe))
        return Started(0, b"")

    def content_of(pipe: int) -> bytes:
        with os.fdopen(pipe, "rb") as reading:
            return reading.read()

    async def scene(lines: int) -> bytes:
        broker = BrokerProcess("b", {"key": "x" * lines}, LogOptions())
        with pytest.raises(ProcessStartError):
            await broker.start()
        return await read.pop()

    monkeypatch.setattr(server_process.asyncio, "create_subprocess_exec", begin)
    for size in (0, 300_000):
        assert asyncio.run(scene(size)).count(b"x") == size


def test_a_broker_that_never_served_is_not_started_again(monkeypatch):
    async def begin(*_command: str, **_options: object) -> Started:
        return Started(0, b"")

    monkeypatch.setattr(server_process.asyncio, "create_subprocess_exec", begin)
    broker = BrokerProcess("b", {}, LogOptions())
    with pytest.raises(ProcessStartError):
        run_stepped(broker.start())
    run_stepped(broker.stop())
