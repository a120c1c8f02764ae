"""``rucola console``, and the console that ``rucola up --console`` starts as a child."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from argparse import Namespace
from pathlib import Path

import pytest

from rucola.cli.console import console_config
from rucola.cli.main import command_line, main


def options(*words: str) -> Namespace:
    return command_line().parse_args(["console", *words])


def test_options_become_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "console.conf"
    file.write_text("namesrvAddr=h:1\nbodiesFor=alice\nreadOnly=true\n")
    config = console_config(options("-c", str(file), "-n", "prod=a:1;b:2", "-n", "test/red=c:3", "--port", "0"))
    assert [one.name for one in config.cluster_list] == ["prod", "test"] and config.port == 0
    assert config.bodies_for == "alice" and config.read_only


@pytest.mark.parametrize(
    ("words", "named"),
    [(["-n", "nothing"], "namesrvAddr"), (["--host", "0.0.0.0"], "bindAddress"), (["--public-url", "x"], "publicUrl")],
)
def test_bad_options_are_named(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", *words]) == 2
    assert named in capsys.readouterr().err


def test_a_console_of_brokers_needs_name_servers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "--console", "--console-port", "0"]) == 2
    assert "--console" in capsys.readouterr().err


def test_up_starts_a_console_and_ends_it(tmp_path: Path) -> None:
    words = ["up", "--ephemeral", "--no-grpc", "--json", "--console", "--console-port", "0"]
    words += ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "rucola", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["console"]
        try:
            page = _page(f"http://{address}/cluster/")
            assert "rucola" in page and "broker-a" in page
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=300)
    assert process.returncode == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://{address}/", timeout=10)
    assert list(tmp_path.rglob("history.sqlite")) and list(tmp_path.rglob("lock"))


def _page(address: str) -> str:
    """The page, as soon as the console serves it and has seen a broker."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                text: str = answer.read().decode()
            if "broker-a" in text:
                return text
        except OSError:
            pass
        signal.sigtimedwait([signal.SIGUSR2], 0.1)
    raise AssertionError("no page")
