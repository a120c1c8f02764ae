"""The modules that a server has loaded after start-up, and the options of all commands."""

from __future__ import annotations

import ast
import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

import rucola
from rucola.broker import Broker
from rucola.broker.config import broker_options
from rucola.cli import serve, start
from rucola.cli.broker_server import BrokerServers
from rucola.cli.completion import words
from rucola.cli.main import COMMANDS, command_line, main
from rucola.cli.servers import UpOptions, UpServers
from rucola.errors import ConfigError

OPTION = re.compile(r"(?<![\w-])--[a-z][A-Za-z0-9-]+")
ELSEWHERE = {
    "--archives": ["spark.py"],
    "--descriptor": ["config.py", "decoding.py"],
    "--disable-pip-version-check": ["spark.py"],
    "--include": ["config.py", "decoding.py"],
    "--no-compile": ["spark.py"],
    "--quiet": ["spark.py"],
}
"""Options of other programs, with the files that name them."""


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


def test_servers_of_the_command_line_prepare_sql_filters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[Broker] = []

    def note(broker: Broker) -> None:
        prepared.append(broker)

    monkeypatch.setattr(Broker, "import_filters", note)
    values = {"storePathRootDir": f"{tmp_path}/broker", "bindAddress": "127.0.0.1", "listenPort": "0"}
    alone = BrokerServers(Broker(*broker_options(values)), None)
    together = UpServers(
        UpOptions(store=f"{tmp_path}/up", ephemeral=True, namesrv_port=0, broker_port=0, http_port=0, host="127.0.0.1")
    )

    async def start_and_stop() -> None:
        for servers in (alone, together):
            await servers.start()
            await servers.stop()

    asyncio.run(start_and_stop())
    assert len(prepared) == 2


@pytest.mark.parametrize(("config", "expected"), [(None, True), ({}, False), ({"enableLmq": "true"}, False)])
def test_without_a_file_there_are_lite_topics(config: dict[str, str] | None, expected: bool, tmp_path: Path) -> None:
    options = UpOptions(store=str(tmp_path), grpc=False, config=config, namesrv_port=0, broker_port=0, http_port=0)
    servers = UpServers(options)
    assert servers._store_config.enable_multi_dispatch is expected


def test_a_server_process_returns_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_TRIM_S", 0.0)
    monkeypatch.setattr(serve, "freeze_survivors", gc.enable)  # The original would also freeze objects of other tests.
    monkeypatch.setattr(serve, "trim_heap", lambda: os.kill(os.getpid(), signal.SIGTERM))
    stopped: list[bool] = []
    switched: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", switched.append)  # The interval would stay for other tests.

    async def stop() -> None:
        stopped.append(True)

    async def start() -> serve.Stop:
        return stop

    serve.run_servers(start, serve.LogOptions())
    assert stopped == [True]
    assert switched == [serve.SWITCH_S]


def test_with_nohup_a_server_outlives_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "freeze_survivors", gc.enable)
    monkeypatch.setattr(sys, "setswitchinterval", lambda _interval: None)
    steps: list[str] = []

    async def stop() -> None:
        steps.append("stopped")

    async def end() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
        steps.append("still running")
        os.kill(os.getpid(), signal.SIGTERM)

    async def start() -> serve.Stop:
        tasks.append(asyncio.create_task(end()))
        return stop

    tasks: list[asyncio.Task[None]] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        serve.run_servers(start, serve.LogOptions())
    finally:
        signal.signal(signal.SIGHUP, before)
    assert steps == ["still running", "stopped"]


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rucola ")
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"    {name} " in shown for name in ("up", "namesrv", "broker", "store", "mqadmin"))
    assert main([]) == 2


@pytest.mark.parametrize("arguments", [["up", "--name", "1"], ["up", "--brokers", "0"], ["broker", "--port", "1"]])
def test_errors_of_usage_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("rucola: ") and error.count("\n") == 1


def completed(shell_line: str, script: str) -> list[str]:
    """Returns what bash offers for the last word of a line."""
    line = " ".join(f"'{word}'" for word in shell_line.split(" "))
    program = (
        f'{script}\nCOMP_WORDS=({line})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n_rucola\necho "${{COMPREPLY[@]}}"'
    )
    ended = subprocess.run(["bash", "-c", program], check=True, capture_output=True, text=True)
    return ended.stdout.split()


def test_advice_names_only_options_that_exist() -> None:
    """All options mentioned in errors, log lines and pages exist."""
    package, pages = Path(rucola.__file__).parent, Path(__file__).parents[3] / "docs"
    known = {word.split()[0] for command in words(command_line()).values() for word in command} | {"--under-up"}
    named: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        source = path.read_text()
        if OPTION.search(source) is None:
            continue
        strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
        for text in strings:
            for option in OPTION.findall(text if isinstance(text, str) else ""):
                named.setdefault(option, set()).add(path.name)
    for path in sorted(pages.glob("*.md")):
        for line in re.findall(r"`?rucola (?:up|broker|namesrv|store|sql|mqadmin|lab)\b[^`\n]*", path.read_text()):
            for option in OPTION.findall(line):
                named.setdefault(option, set()).add(path.name)
    assert {option: sorted(places) for option, places in named.items() if option not in known} == ELSEWHERE
    assert {"--quarantine", "--namesrv-port"} <= named.keys()


def test_each_command_has_its_function() -> None:
    """The table of commands names modules and functions as text."""
    for name, command in COMMANDS.items():
        module, _, function = command.run.partition(":")
        assert callable(getattr(import_module(f"rucola.cli.{module}"), function)), name
    assert {name for name, command in COMMANDS.items() if command.hides} == {"sql", "replay"}
    assert {name for name, command in COMMANDS.items() if command.ends_at_once} == {"sql"}


HIDDEN = """
import os, sys
from importlib.util import find_spec
from rucola.cli import main as command
def found(name):
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
def main(words):
    print(found("json"), found("pandas"), os.environ.get("OPENBLAS_NUM_THREADS"))
    return 0
command.main = main
command.run()
"""


@pytest.mark.parametrize("name", ["replay", "sql", "store"])
def test_modules_are_hidden_from_commands_that_do_not_use_them(name: str) -> None:
    plain = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    ended = subprocess.run(
        [sys.executable, "-c", HIDDEN, name], capture_output=True, text=True, env=plain, check=True, timeout=60
    )
    assert ended.stdout == ("True True None\n" if name == "store" else "True False 1\n")


def test_bash_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert completed("rucola st", script) == ["store"]
    assert completed("rucola store c", script) == ["cat", "compare"]
    assert completed("rucola store verify --sp", script) == ["--spark"]
    assert completed("rucola store hexdump re", script) == ["record"]
    assert completed("rucola store hexdump index --sl", script) == ["--slot"]
    assert completed("rucola store hexdump --sl", script) == []
    assert completed("rucola mqadmin topicR", script) == ["topicRoute"]
    assert completed("rucola mqadmin --json topicRoute --to", script) == ["--topic"]
    assert "--namesrv-port" in completed("rucola up --", script)
    assert completed("rucola la", script) == ["lab"] and "run" in completed("rucola lab ", script)
    for shell in ("zsh", "fish"):
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert "updateSubGroup" in script
    lines = script.splitlines()
    (of_hexdump,) = (line for line in lines if "; and not __fish_seen_subcommand_from record queue" in line)
    seen = "__fish_seen_subcommand_from store; and __fish_seen_subcommand_from hexdump; and not "
    assert seen in of_hexdump and '-a "record queue queue-ext index' in of_hexdump
    assert any(f'{seen[:-4]}__fish_seen_subcommand_from index"' in line and "--slot" in line for line in lines)
    assert main(["completion", "tcsh"]) == 2


@pytest.mark.few(1)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
@pytest.mark.parametrize("command", [["up", "--ephemeral"], ["broker"], ["namesrv"]], ids=["up", "broker", "namesrv"])
def test_a_signal_ends_a_command_that_waits_for_its_configuration(tmp_path: Path, command: list[str]) -> None:
    fifo = tmp_path / "conf"
    os.mkfifo(fifo)
    words = [sys.executable, "-m", "rucola", *command, "-c", str(fifo)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        descriptor = None
        while descriptor is None:
            assert process.poll() is None
            try:
                descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # nobody reads yet
                time.sleep(0.02)
        process.terminate()
        try:
            assert process.wait(20) == -signal.SIGTERM
        finally:
            process.kill()
            os.close(descriptor)
