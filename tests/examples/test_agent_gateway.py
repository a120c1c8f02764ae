"""The gateway for agents in examples/, with its gateway and its worker killed while they answer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rucola.testing.rocketmq import RocketMQ

GATEWAY = Path(__file__).resolve().parents[2] / "examples" / "agent_gateway"
WORDS = [f"word-{number}" for number in range(30)]


class Programs:
    """The programs of the example, at one name server."""

    def __init__(self, namesrv: str, running: ExitStack) -> None:
        self._environment = {**os.environ, "NAMESRV_ADDR": namesrv, "AGENT_PAUSE_S": "0.02"}
        self._running = running

    def start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts a program, which is killed at the end of the test."""
        command = [sys.executable, str(GATEWAY / f"{program}.py"), *arguments]
        process = subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE, text=True)
        self._running.callback(self.kill, process)
        return process

    def kill(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def programs() -> Iterator[Programs]:
    with RocketMQ() as servers, ExitStack() as running:
        servers.create_lite_parent("agents", "gateway", ttl_minutes=60, exclusive=True)
        yield Programs(servers.namesrv, running)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_an_answer_is_whole_and_shown_once_although_gateway_and_worker_are_killed(programs: Programs) -> None:
    gateway = programs.start("gateway", "0")
    port = line(gateway).removeprefix("gateway: port ")
    worker = programs.start("worker")
    assert line(worker) == "worker: ready"
    terminal = programs.start("terminal", "session-42", " ".join(WORDS), port)
    shown = [line(terminal) for _ in range(8)]
    programs.kill(gateway)
    gateway = programs.start("gateway", port)
    assert line(gateway) == f"gateway: port {port}"
    shown += [line(terminal) for _ in range(8)]
    programs.kill(worker)
    worker = programs.start("worker")
    assert line(worker) == "worker: ready"
    while text := line(terminal):
        shown.append(text)
    assert shown == [word.upper() for word in WORDS]
    assert terminal.wait() == 0
