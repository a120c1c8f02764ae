"""Options of the controller, and its command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rucola.cli.controller_server import ControllerServer, controller_config
from rucola.cli.main import main
from rucola.common.options import options_of
from rucola.controller import ControllerConfig
from rucola.controller.config import REMOTE_KEYS
from rucola.errors import ConfigError

ETCD = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"etcd_endpoints": ""}, "etcdEndpoints"),
        ({"etcd_prefix": "rucola"}, "etcdPrefix"),
        ({"etcd_prefix": "/rucola/"}, "etcdPrefix"),
        ({"etcd_prefix": "/r\u00fccola"}, "etcdPrefix"),
        ({"etcd_user": "me"}, "etcdPassword"),
        ({"etcd_password": "x"}, "etcdUser"),
        ({"etcd_endpoints": "http://far:1", "etcd_user": "me", "etcd_password": "x"}, "https, because etcdUser is set"),
        ({"etcd_key_path": "k"}, "etcdCertPath"),
        ({"bind_address": "10.0.0.1"}, "bindAddress"),
        ({"bind_address": "0.0.0.0", "insecure": True}, "advertisedAddress"),
        ({"advertised_address": "here"}, "advertisedAddress"),
        ({"acl_enable": True}, "rocketmqHome"),
        ({"use_tls": True}, "tlsClientTrustCertPath"),
        ({"listen_port": 65536}, "listenPort"),
    ],
)
def test_values_that_are_not_allowed(options: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        ControllerConfig(**{"etcd_endpoints": ETCD, **options})  # type: ignore[arg-type]


def test_keys_that_a_request_may_change_exist() -> None:
    assert {entry.key for entry in options_of(ControllerConfig)} >= REMOTE_KEYS


def test_the_command_line_replaces_the_file(tmp_path: Path) -> None:
    conf = tmp_path / "controller.conf"
    conf.write_text(f"etcdEndpoints={ETCD}\nlistenPort=5\nenableElectUncleanMaster=true\n")
    found = controller_config(str(conf), None, "/p", "127.0.0.2:7", "far:8")
    assert (found.bind_address, found.listen_port, found.etcd_prefix) == ("127.0.0.2", 7, "/p")
    assert (found.advertised_address, found.enable_elect_unclean_master) == ("far:8", True)
    with pytest.raises(ConfigError, match="--listen"):
        controller_config(str(conf), None, None, "7", None)


def test_an_account_for_brokers_that_is_none() -> None:
    with pytest.raises(ConfigError, match="innerClientAuthenticationCredentials") as caught:
        ControllerServer(ControllerConfig(etcd_endpoints=ETCD, inner_client_authentication_credentials="secret"))
    assert "secret" not in str(caught.value).replace("secretKey", "")


def test_errors_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["controller"]) == 2
    assert "etcdEndpoints" in capsys.readouterr().err
    assert main(["controller", "--etcd", "127.0.0.1:2379"]) == 2
    assert "http://host:port" in capsys.readouterr().err


def test_the_command_starts_without_etcd_and_stops(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rucola", "controller", "--etcd", ETCD, "--listen", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, cwd=tmp_path)
    assert process.stdout is not None
    facts = json.loads(process.stdout.readline())
    assert facts["controller"].startswith("127.0.0.1:") and (facts["prefix"], facts["http"]) == (
        "/rucola/controller",
        None,
    )
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert b"Traceback" not in errors
