"""The container file and the compose example: the files that they name exist, and their commands are valid; no
container runs.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from rucola.broker.config import BrokerConfig, broker_options
from rucola.cli.config_file import read_broker_conf
from rucola.cli.main import command_line
from rucola.cli.namesrv_server import namesrv_config
from rucola.cli.servers import GRPC_PORT

ROOT = Path(__file__).resolve().parents[3]
CONTAINER = ROOT / "packaging" / "container"
INSTRUCTIONS = {"FROM", "RUN", "COPY", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}


@pytest.fixture
def instructions() -> list[tuple[str, str]]:
    """Returns the instructions of the container file, each with its arguments."""
    text = (CONTAINER / "Containerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


@pytest.fixture
def compose() -> dict[str, Any]:
    """Returns the compose example with its references resolved."""
    found: dict[str, Any] = yaml.safe_load((CONTAINER / "compose.yaml").read_text())
    return found


def test_the_container_file(instructions: list[tuple[str, str]]) -> None:
    assert {name for name, _ in instructions} <= INSTRUCTIONS
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for name, rest in instructions:
        if name == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists() and f"!{source}" in ignored
    last = [rest for name, rest in instructions if name == "USER"][-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last), (
        "a user that is not root, by number, for platforms that forbid root"
    )
    started = {name: json.loads(rest) for name, rest in instructions if name in ("ENTRYPOINT", "CMD")}
    assert started["ENTRYPOINT"] == ["rucola"], "the server is process 1, so signals reach it"
    parsed = command_line().parse_args(started["CMD"])
    [volume] = [rest for name, rest in instructions if name == "VOLUME"]
    assert Path(parsed.store).parent == Path(volume)
    assert ("STOPSIGNAL", "SIGTERM") in instructions
    [ports] = [rest for name, rest in instructions if name == "EXPOSE"]
    assert {int(port) for port in ports.split()} == {
        parsed.namesrv_port,
        BrokerConfig().listen_port,
        GRPC_PORT,
        parsed.http_port,
    }


def test_the_image_serves_clients_of_rocketmq_5(instructions: list[tuple[str, str]]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert all("[all]" in rest for name, rest in instructions if name == "RUN" and "rucola-mq" in rest)
    [everything] = project["optional-dependencies"]["all"]
    assert "grpc" in everything.partition("[")[2].rstrip("]").split(",")


def test_the_compose_example(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {"namesrv", "broker"}
    for name, service in compose["services"].items():
        build = service["build"]
        assert (CONTAINER / build["context"]).resolve() == ROOT and (ROOT / build["dockerfile"]).is_file()
        assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
        assert service["network_mode"] == "host" and "ports" not in service, (
            "ports are bound to the host's loopback address, none to all addresses"
        )
        parsed = command_line().parse_args(service["command"])
        mounts = dict(volume.split(":")[:2][::-1] for volume in service["volumes"])
        assert parsed.config in mounts, f"{name} reads a file that is mounted"
        assert (CONTAINER / mounts[parsed.config]).is_file()
        assert mounts["/var/lib/rucola"] in compose["volumes"]
        [kind, program, option, script] = service["healthcheck"]["test"]
        assert (kind, program, option) == ("CMD", "python", "-c")
        compile(script, name, "exec")
    broker = compose["services"]["broker"]
    assert broker["depends_on"] == {"namesrv": {"condition": "service_healthy"}}
    parsed = command_line().parse_args(broker["command"])
    assert f"http://127.0.0.1:{parsed.http_port}/readyz" in broker["healthcheck"]["test"][-1]
    assert parsed.grpc_port == GRPC_PORT
    assert broker["ulimits"]["nofile"] >= 65536


def test_the_configurations_are_good_ones(compose: dict[str, Any]) -> None:
    broker, store = broker_options(read_broker_conf(str(CONTAINER / "broker.conf")))
    namesrv = namesrv_config(str(CONTAINER / "namesrv.conf"), None, None)
    assert broker.namesrv_addresses == [f"127.0.0.1:{namesrv.listen_port}"]
    assert str(namesrv.listen_port) in compose["services"]["namesrv"]["healthcheck"]["test"][-1]
    for path in (store.store_path_root_dir, namesrv.kv_config_path):
        assert Path(path).is_relative_to("/var/lib/rucola")
