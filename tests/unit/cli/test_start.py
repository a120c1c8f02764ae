"""What a server has loaded after its start."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from rucola.cli import start
from rucola.cli.main import main
from rucola.errors import ConfigError


def test_a_server_carries_no_libraries_of_the_tools() -> None:
    script = "import sys, rucola.cli.main, rucola.cli.start; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "rucola.broker.broker" in loaded
    assert not {
        "typer",
        "click",
        "pydantic",
        "rich",
        "prometheus_client",
        "starlette",
        "uvicorn",
        "yaml",
        "lark",
        "rucola.filter.sql.program",
        "rucola.formats.pop",
        "rucola.namesrv.admin_processor",
        "rucola.remoting.signer",
    } & set(loaded)


def test_the_collector_rests_until_everything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def serve(_options: object) -> int:
        seen.append(gc.isenabled())
        raise ConfigError("port", "none", "a number")

    monkeypatch.setattr(start, "namesrv", serve)
    assert main(["namesrv"]) == 2
    assert seen == [False] and gc.isenabled()


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rucola ")
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"    {name} " in shown for name in ("up", "namesrv", "broker", "store", "mqadmin"))
    assert main([]) == 2


@pytest.mark.parametrize("arguments", [["up", "--name", "1"], ["up", "--brokers", "0"], ["broker", "--port", "1"]])
def test_what_is_not_understood_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("rucola: ") and error.count("\n") == 1


def completed(shell_line: str, script: str) -> list[str]:
    """What bash offers for the last word of a line."""
    line = " ".join(f"'{word}'" for word in shell_line.split(" "))
    program = (
        f'{script}\nCOMP_WORDS=({line})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n_rucola\necho "${{COMPREPLY[@]}}"'
    )
    ended = subprocess.run(["bash", "-c", program], check=True, capture_output=True, text=True)
    return ended.stdout.split()


def test_bash_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert completed("rucola st", script) == ["store"]
    assert completed("rucola store c", script) == ["cat"]
    assert completed("rucola mqadmin topicR", script) == ["topicRoute"]
    assert completed("rucola mqadmin --json topicRoute --to", script) == ["--topic"]
    assert "--namesrv-port" in completed("rucola up --", script)
    assert completed("rucola la", script) == ["lab"] and "run" in completed("rucola lab ", script)
    for shell in ("zsh", "fish"):
        assert main(["completion", shell]) == 0
        assert "updateSubGroup" in capsys.readouterr().out
    assert main(["completion", "tcsh"]) == 2
