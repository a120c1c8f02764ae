"""``rucola up --brokers N``: one name server, N broker processes, a store each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.brokers import run
from tests.unit.cli.test_cli import FREE_PORTS, TIMEOUT_S, config_file, refused, start

from rucola.cli.broker_processes import configs_of
from rucola.client.config import ProducerConfig
from rucola.client.producer import Producer
from rucola.common.message import Message


@contextlib.contextmanager
def brokers(store: Path, count: int) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    arguments = ["--store", str(store), "--config", str(config_file(store)), "--brokers", str(count), *FREE_PORTS]
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


def test_a_broker_that_dies_is_reported_and_the_others_go_on(tmp_path):
    with brokers(tmp_path / "store", 2) as (facts, process):
        assert get(facts, "/readyz")[0] == 200
        os.kill(children_of(process.pid)[0], signal.SIGKILL)
        assert process.stderr is not None
        line = next(line for line in process.stderr if "broker ended, the other brokers continue" in line)
        assert "exit=-9" in line
        code, text = get(facts, "/readyz")
        assert (code, text.partition(" ")[2]) == (503, "ended with -9\n")
        dead = text.partition(" ")[0]
        assert f'rucola_broker_up{{broker="{dead}"}} 0.0' in get(facts, "/metrics")[1]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0


def test_brokers_end_with_the_process_that_started_them(tmp_path):
    with brokers(tmp_path / "store", 2) as (_, process):
        children = children_of(process.pid)
        process.kill()
        process.communicate(timeout=TIMEOUT_S)  # the brokers share this standard error, so it ends when they end
        deadline = time.monotonic() + TIMEOUT_S
        while not all(map(gone, children)):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_broker_that_does_not_start_is_the_commands_error(tmp_path):
    store = tmp_path / "store"
    with brokers(store, 1) as (facts, _):
        port = int(facts["brokers"][0].rpartition(":")[2])
        ports = ["--namesrv-port", "0", "--broker-port", str(port - 10), "--http-port", "0"]
        code, error = refused("up", "--store", str(tmp_path / "other"), "--brokers", "2", *ports)
        assert code == 3
        assert str(port) in error
    config = config_file(store, f"storePathCommitLog={tmp_path / 'log'}\n")
    assert refused("up", "--config", str(config), "--brokers", "2", *FREE_PORTS)[0] == 2


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
    guarded = configs_of(2, {"aclEnable": "true"}, "/data", 0, "n")
    assert {entries["rocketmqHome"] for entries in guarded.values()} == {"/data"}, "one file of accounts for all"
    elsewhere = configs_of(2, {"aclEnable": "true", "rocketmqHome": "/home"}, "/data", 0, "n")
    assert {entries["rocketmqHome"] for entries in elsewhere.values()} == {"/home"}
