"""Processes are started, killed, restarted and ended, with a small script in place of the broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo.flights import processes
from demo.flights.processes import BrokerProcess, DemoError, Processes, end, stderr_to

READY = """
import json, os, sys, time
namesrv, broker = sys.argv[1:3]
print(json.dumps({"pid": os.getpid(), "namesrv": f"127.0.0.1:{namesrv if namesrv != '0' else 7001}",
                  "brokers": [f"127.0.0.1:{broker if broker != '0' else 7002}"]}), flush=True)
time.sleep(60)
"""
FAILS = "import sys; sys.stderr.write('starting\\nstore directory is in use\\n\\n'); sys.exit(4)"
SILENT = "import time; time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(60)"


@pytest.fixture
def children() -> Iterator[Processes]:
    with Processes() as running:
        yield running


def _scripted(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(
        processes, "up_command", lambda store, config, namesrv, broker: [sys.executable, "-c", script, namesrv, broker]
    )


def test_restart_keeps_the_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Processes) -> None:
    _scripted(monkeypatch, READY)
    broker = BrokerProcess(children, tmp_path)
    first = broker.start()
    broker.kill()
    with pytest.raises(DemoError, match="ended by itself with SIGKILL"):
        broker.check()
    second = broker.start()
    assert (first.namesrv, first.broker) == (second.namesrv, second.broker) == ("127.0.0.1:7001", "127.0.0.1:7002")
    assert first.pid != second.pid
    broker.check()


def test_a_broker_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Processes) -> None:
    _scripted(monkeypatch, FAILS)
    with pytest.raises(DemoError, match=r"exit 4: store directory is in use \(all of it: .*broker-1.log\)"):
        BrokerProcess(children, tmp_path).start()


def test_a_broker_that_never_gets_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, children: Processes) -> None:
    _scripted(monkeypatch, SILENT)
    monkeypatch.setattr(processes, "START_TIMEOUT_S", 0.3)
    with pytest.raises(DemoError, match="not ready within"):
        BrokerProcess(children, tmp_path).start()


def test_every_process_is_ended_with_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _scripted(monkeypatch, READY)
    started: list[subprocess.Popen[bytes]] = []
    with pytest.raises(KeyboardInterrupt), Processes() as children:
        for _ in range(2):
            with (tmp_path / "log").open("wb") as log:
                started.append(children.start([sys.executable, "-c", SILENT], log, log, subprocess.DEVNULL))
        raise KeyboardInterrupt
    assert all(process.poll() is not None for process in started)


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        end(process, timeout_s=0.2)
        assert process.returncode == -9


def test_standard_error_of_children_goes_to_the_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "spark.log"
    with stderr_to(log):
        child = subprocess.Popen([sys.executable, "-c", "import sys, time; time.sleep(0.2); sys.stderr.write('late')"])
    sys.stderr.write("mine")
    sys.stderr.flush()
    assert child.wait(30) == 0
    assert log.read_text() == "late"
    assert capfd.readouterr().err == "mine"
