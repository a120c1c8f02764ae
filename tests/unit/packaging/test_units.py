"""The systemd units: their programs exist, are started correctly, and report when they are ready."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rucola.broker.config import broker_options
from rucola.cli.config_file import read_broker_conf
from rucola.cli.controller_server import controller_config
from rucola.cli.exit_codes import ExitCode
from rucola.cli.main import command_line, main
from rucola.cli.namesrv_server import namesrv_config

ROOT = Path(__file__).resolve().parents[3]
PACKAGING = ROOT / "packaging"
UNITS = sorted((PACKAGING / "systemd").glob("*.service"))


def directives(unit: Path) -> dict[str, list[str]]:
    """Returns the values of directives by name, over all sections."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit(unit: Path, tmp_path: Path) -> None:
    found = directives(unit)
    assert found["Type"] == ["notify"] and found["Restart"] == ["on-failure"]
    assert found["User"] == found["Group"] == ["rucola"]
    never = {int(code) for code in found["RestartPreventExitStatus"][0].split()}
    expected = {ExitCode.USAGE} if "broker" not in unit.stem else {ExitCode.USAGE, ExitCode.STORE_DAMAGED}
    assert never == expected
    assert found["ProtectSystem"] == ["strict"] and found["NoNewPrivileges"] == ["yes"]
    assert found["CapabilityBoundingSet"] == [""] and int(found["LimitNOFILE"][0]) >= 65536
    assert found["WorkingDirectory"] == [f"/var/lib/{found['StateDirectory'][0]}"]
    [start] = found["ExecStart"]
    program, command, option, config, *_ = start.split()
    assert (program, option) == ("/opt/rucola/bin/rucola", "-c")
    assert main([command, "--help"]) == 0
    assert (PACKAGING / Path(config).name).is_file()
    if shutil.which("systemd-analyze"):
        there = tmp_path / unit.name
        there.write_text(unit.read_text().replace(program, "/usr/bin/env rucola"))
        checked = subprocess.run(
            ["systemd-analyze", "verify", str(there)], capture_output=True, text=True, timeout=60, check=False
        )
        assert (checked.returncode, [line for line in checked.stderr.splitlines() if unit.name in line]) == (0, [])


def test_the_broker_serves_health_and_metrics_on_the_port_of_the_pages() -> None:
    [start] = directives(PACKAGING / "systemd" / "rucola-broker.service")["ExecStart"]
    given = command_line().parse_args(start.split()[1:])
    assert given.http_port == 8088
    assert "on port 8088, as do the unit" in " ".join((ROOT / "docs" / "operations.md").read_text().split())


def test_the_broker_may_lock_memory_and_take_its_time() -> None:
    found = directives(PACKAGING / "systemd" / "rucola-broker.service")
    assert (found["LimitMEMLOCK"], found["TimeoutStartSec"]) == (["infinity"], ["infinity"])


def test_the_configurations_are_good_ones() -> None:
    broker, store = broker_options(read_broker_conf(str(PACKAGING / "broker.conf")))
    assert broker.namesrv_addresses == ["127.0.0.1:9876"]
    assert store.store_path_root_dir == "/var/lib/rucola/store"
    namesrv_config(str(PACKAGING / "namesrv.conf"), None, None)
    controller_config(str(PACKAGING / "controller.conf"), None, None, None, None)


def test_a_server_says_when_it_is_ready_and_when_it_ends(tmp_path: Path) -> None:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name)
        receiver.settimeout(60)
        command = [sys.executable, "-m", "rucola", "namesrv", "--port", "0", "--json"]
        with subprocess.Popen(
            command, env={**os.environ, "NOTIFY_SOCKET": name}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert receiver.recv(100) == b"READY=1"
            assert process.stdout is not None and process.stdout.readline().startswith(b'{"pid"')
            process.send_signal(signal.SIGTERM)
            assert receiver.recv(100) == b"STOPPING=1"
            assert process.wait(60) == 0
