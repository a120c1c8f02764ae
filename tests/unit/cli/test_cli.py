"""The command as a process: its output, its exit code, and refusals, which change nothing in the store."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rucola.cli.main import main
from rucola.runtime.files import Files
from rucola.store.recovery.watermark import Watermark, WatermarkFile

SOURCE = Path(__file__).parents[3] / "src"
FREE_PORTS_OF_BROKERS = ["--namesrv-port", "0", "--broker-port", "0", "--http-port", "0"]
FREE_PORTS = [*FREE_PORTS_OF_BROKERS, "--grpc-port", "0"]
SMALL = "mappedFileSizeCommitLog=1048576\nmaxHashSlotNum=1000\nmaxIndexNum=4000\n"
TIMEOUT_S = 60


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Starts the command as a process; ``up`` logs only warnings, unless ``arguments`` say otherwise."""
    if arguments[0] == "up" and "--log-level" not in arguments:
        arguments += ("--log-level", "WARNING")
    return subprocess.Popen(
        [sys.executable, "-m", "rucola", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "100"},
        **({"stderr": subprocess.PIPE} | options),
    )


def refused(*arguments: str, **options: Any) -> tuple[int, str]:
    """Runs a command that must be refused with an error of one line and no output; returns exit code and error."""
    process = start(*arguments, **options)
    output, error = process.communicate(timeout=TIMEOUT_S)
    assert output == ""
    assert error.startswith("rucola: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return process.returncode, error


def refused_here(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Runs a command in this process that is refused before it starts anything; returns exit code and error."""
    code = main(list(arguments))
    output, error = capsys.readouterr()
    assert output == ""
    assert error.startswith("rucola: ")
    assert error.count("\n") == 1
    return code, error


@contextlib.contextmanager
def running(*arguments: str, **options: Any) -> Iterator[dict[str, Any]]:
    process = start(*arguments, "--json", **options)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, output, error) == (0, "", "")
    finally:
        process.kill()
        process.communicate()


def up(store: Path, *more: str) -> contextlib.AbstractContextManager[dict[str, Any]]:
    return running("up", "--store", str(store), "--config", str(config_file(store)), *FREE_PORTS, *more)


def config_file(store: Path, text: str = SMALL) -> Path:
    path = store.parent / "broker.conf"
    path.write_text(text)
    return path


def content(store: Path) -> dict[str, str]:
    """Returns every file below the store with the digest of its bytes."""
    return {
        str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def used_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("used") / "store"
    with up(path):
        pass
    return path


@pytest.fixture
def store(used_store: Path, tmp_path: Path) -> Path:
    """Makes a store that was used once."""
    return shutil.copytree(used_store, tmp_path / "store")


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def test_up_says_where_everything_is_and_stops_on_ctrl_c(tmp_path):
    store = tmp_path / "store"
    with up(store) as facts:
        assert facts.keys() == {"pid", "store", "namesrv", "brokers", "http", "grpc", "ha"}
        assert facts["store"] == str(store)
        assert len(facts["brokers"]) == 1
        for address in (facts["namesrv"], *facts["brokers"], facts["http"], facts["grpc"]):
            host, _, port = address.rpartition(":")
            assert host == "127.0.0.1"
            socket.create_connection((host, int(port)), TIMEOUT_S).close()
        os.kill(facts["pid"], 0)
        assert (store / "abort").exists()
    assert not (store / "abort").exists()


def test_health_and_metrics(tmp_path):
    with up(tmp_path / "store") as facts:
        base = f"http://{facts['http']}"
        assert get(f"{base}/livez") == (200, "ok\n")
        assert get(f"{base}/readyz") == (200, "ok\n")
        status, text = get(f"{base}/metrics")
        assert status == 200
        assert "rucola_ready 1.0" in text.splitlines()
        for work in ("recheck of held pulls", "removal of lost brokers", "look at connections"):
            assert f'rucola_work_failures_total{{work="{work}"}} 0.0' in text.splitlines()
        assert get(f"{base}/nothing")[0] == 404


def test_a_person_gets_one_block_and_ready(tmp_path):
    process = start("up", "--ephemeral", *FREE_PORTS, "--log-level", "INFO")
    assert process.stdout is not None
    lines = []
    while not lines or lines[-1] != "ready\n":
        lines.append(process.stdout.readline())
        assert lines[-1]
    assert any("name server" in line and "127.0.0.1:" in line for line in lines)
    (where,) = [Path(line.split()[2]) for line in lines if "(temporary)" in line]
    assert (where / "abort").exists()
    process.send_signal(signal.SIGHUP)
    output, log = process.communicate(timeout=TIMEOUT_S)
    assert (output, process.returncode) == ("", 0)
    assert not where.exists()
    # On a busy machine, any step may take long.
    events = [line.split(" ", 3)[3] for line in log.splitlines() if "long turn" not in line]
    assert [event.split("=")[0] for event in events] == [
        '"store loaded" path',
        '"timers loaded" read_time_ms',
        '"broker registered" broker',
        '"broker serves" name',
        "stopping signal",
        '"broker unregistered" broker',
        "stopped",
    ]
    assert all(line.split()[1] == "INFO" for line in log.splitlines())


@pytest.mark.few(1)
@pytest.mark.parametrize("command", ["up", "namesrv", "broker"])
def test_other_signals_do_not_end_a_server(command, tmp_path):
    """SIGQUIT writes the stacks, also when the event loop hangs; SIGUSR1 and SIGUSR2 do nothing."""
    conf = config_file(tmp_path / "store", f"{SMALL}storePathRootDir={tmp_path}/store\nlistenPort=0\n")
    arguments = {"up": ["--config", str(conf), *FREE_PORTS], "namesrv": ["--port", "0"], "broker": ["-c", str(conf)]}
    process = start(command, *arguments[command], "--json")
    assert process.stdout is not None and process.stderr is not None and process.stdout.readline()
    try:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
            process.send_signal(number)
        assert next(line for line in process.stderr if "most recent call first" in line)
        assert next(line for line in process.stderr if "asyncio/runners.py" in line)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
    assert not (tmp_path / "store" / "abort").exists()


def test_stacks_asked_for_while_the_server_imports_do_not_end_it(tmp_path):
    """Before the fix, most servers ended with a segmentation fault: the stack of a thread was read while it ran."""
    conf = config_file(tmp_path / "store", f"{SMALL}storePathRootDir={tmp_path}/store\nlistenPort=0\n")
    for _ in range(3):
        with (tmp_path / "stacks").open("w") as stacks:
            process = start("broker", "-c", str(conf), "--json", stderr=stacks)
        assert process.stdout is not None and process.stdout.readline()
        try:
            for _ in range(100):
                process.send_signal(signal.SIGQUIT)
                time.sleep(0.002)  # a signal that waits already is not sent twice
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
            process.stdout.close()


def test_the_log_can_be_json_and_quieter(tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{SMALL}haFlowControlEnable=true\n")
    common = ("up", "--ephemeral", "--config", str(conf), *FREE_PORTS, "--json", "--log-format", "json")
    process = start(*common)
    assert process.stdout is not None and process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=TIMEOUT_S)
    (line,) = log.splitlines()
    assert json.loads(line)["event"] == "options of RocketMQ without effect here"


def test_the_parts_alone(tmp_path):
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{SMALL}storePathRootDir={tmp_path}/store\nlistenPort=0\nbrokerName=b1\n")
    names = start("namesrv", "--port", "0", "--json")
    assert names.stdout is not None
    facts = json.loads(names.stdout.readline())
    broker = start("broker", "-c", str(conf), "-n", facts["namesrv"], "--json", "--grpc-port", "0")
    assert broker.stdout is not None
    told = json.loads(broker.stdout.readline())
    assert told["http"] is None and re.fullmatch(r"127\.0\.0\.1:\d+", told["grpc"])
    assert (told["store"], told["namesrv"]) == (f"{tmp_path}/store", facts["namesrv"])
    for process in (broker, names):
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
        assert "broker=b1" in log or "name=b1" in log


SLAVE = f"{SMALL}brokerRole=SLAVE\nbrokerId=2\nlistenPort=0\nhaListenPort=0\n"
BOTH = "haMasterAddress=127.0.0.1:1\nmasterBrokerAddress=127.0.0.1:1\n"


def test_a_slave_starts_without_its_master_and_is_not_in_sync(tmp_path: Path) -> None:
    conf = config_file(tmp_path / "store", f"{SLAVE}storePathRootDir={tmp_path}/store\n")
    with running(
        "broker", "-c", str(conf), "-n", "127.0.0.1:1", "--http-port", "0", "--log-level", "CRITICAL"
    ) as facts:
        assert facts["slave"] == "2 of a master not found yet" and facts["grpc"] is None and facts["ha"]
        with pytest.raises(urllib.error.HTTPError) as answer:
            urllib.request.urlopen(f"http://{facts['http']}/readyz", timeout=TIMEOUT_S)
        with answer.value as error:
            assert (error.code, error.read()) == (503, b"not in sync: not connected to the master\n")
        metrics = get(f"http://{facts['http']}/metrics")[1]
        assert 'rucola_broker_role{role="SLAVE"} 1.0' in metrics and "rucola_in_sync 0.0" in metrics
        assert "rucola_behind_master_bytes 0.0" in metrics


def test_up_runs_a_slave_whose_master_is_configured(tmp_path: Path) -> None:
    conf = config_file(tmp_path / "store", SLAVE + BOTH)
    options = ("--store", f"{tmp_path}/store", "--config", str(conf), *FREE_PORTS_OF_BROKERS)
    with running("up", *options, "--log-level", "CRITICAL") as facts:
        assert facts["slave"] == "2 of 127.0.0.1:1" and facts["grpc"] is None
    process = start("up", *options, "--log-level", "CRITICAL")
    assert process.stdout is not None
    shown = [process.stdout.readline() for _ in range(10)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)
    assert any("2 of 127.0.0.1:1" in line for line in shown)
    assert any("off, a slave serves no POP" in line for line in shown)


@pytest.mark.parametrize(
    ("more", "arguments", "words"),
    [
        ("namesrvAddr=127.0.0.1:1\n", (), ("brokerRole", "knows no master", "rucola broker")),
        ("", (), ("namesrvAddr", "masterBrokerAddress")),
        (
            "haMasterAddress=h:1\nmasterBrokerAddress=h:1\n",
            ("--brokers", "2"),
            ("--brokers", "1 with brokerRole=SLAVE"),
        ),
        ("haMasterAddress=h:1\nmasterBrokerAddress=h:1\n", ("--grpc-port", "0"), ("grpcServerPort", "serves no POP")),
    ],
)
def test_slaves_that_up_cannot_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    conf = config_file(tmp_path / "store", SLAVE + more)
    code, error = refused_here(
        capsys, "up", "--store", f"{tmp_path}/store", "--config", str(conf), *FREE_PORTS_OF_BROKERS, *arguments
    )
    assert code == 2 and all(word in error for word in words), error
    assert not (tmp_path / "store").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "problem"), [("", "is a directory"), ("nope.conf", "no such file")])
def test_a_configuration_that_cannot_be_read(tmp_path, name, problem):
    for command in (("broker", "-c"), ("namesrv", "-c"), ("up", "--config")):
        code, error = refused(*command, str(tmp_path / name))
        assert (code, error) == (2, f"rucola: option --config: {tmp_path / name}: {problem}\n")


@pytest.mark.few(2)
@pytest.mark.parametrize("which", ["--namesrv-port", "--broker-port", "--http-port", "--grpc-port"])
def test_a_port_in_use(store, which):
    before = content(store)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, error = refused("up", "--store", str(store), *FREE_PORTS, which, str(port))
    assert code == 3
    assert error == f"rucola: address 127.0.0.1:{port} is already in use; choose another port with {which}\n"
    assert content(store) == before


def test_all_ports_in_use_are_named_at_once(store):
    """As when ``rucola up`` already runs."""
    before = content(store)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        http, names, broker, grpc = (server.getsockname()[1] for server in servers)
        ports = ["--http-port", str(http), "--namesrv-port", str(names), "--broker-port", str(broker)]
        code, error = refused("up", "--store", str(store), *ports, "--grpc-port", str(grpc))
        two = refused("up", "--store", str(store), *FREE_PORTS, *ports[2:])
        of_two = refused("up", "--store", str(store), *FREE_PORTS_OF_BROKERS, *ports[2:], "--brokers", "2", "--no-grpc")
    assert code == 3
    assert error == (
        f"rucola: addresses are already in use: 127.0.0.1:{http} (--http-port), 127.0.0.1:{names} (--namesrv-port), "
        f"127.0.0.1:{broker} (--broker-port), 127.0.0.1:{grpc} (--grpc-port); choose other ports with these options\n"
    )
    named = f"127.0.0.1:{names} (--namesrv-port), 127.0.0.1:{broker} (--broker-port); choose"
    assert two[0] == of_two[0] == 3 and named in two[1] and named in of_two[1]
    assert content(store) == before


def test_a_store_held_by_another_process(store):
    with up(store) as facts:
        before = content(store)
        code, error = refused("up", "--store", str(store), *FREE_PORTS)
        assert code == 4
        assert str(store) in error
        assert "in use by another process" in error
        assert content(store) == before
        os.kill(facts["pid"], 0)


def test_a_segment_of_the_wrong_size(store):
    (segment,) = (store / "commitlog").glob("0*")
    os.truncate(segment, 1000)
    before = content(store)
    code, error = refused("up", "--store", str(store), "--config", str(config_file(store)), *FREE_PORTS)
    assert code == 5
    assert str(segment) in error
    assert content(store) == before


def test_a_damaged_table(store):
    (store / "config").mkdir(exist_ok=True)
    (store / "config/topics.json").write_text("{damaged")
    code, error = refused("up", "--store", str(store), "--config", str(config_file(store)), *FREE_PORTS)
    assert code == 5
    assert "topics.json" in error
    assert (store / "config/topics.json").read_text() == "{damaged"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["up", "--bogus"], "--bogus"),
        (["down"], "down"),
        (["up", "--flush", "never"], "never"),
        (["up", "--broker-port", "many"], "--broker-port"),
        (["up", "--broker-port", "70000"], "listenPort"),
        (["up", "--host", "0.0.0.0"], "0.0.0.0"),
        (["up", "--config", "/nowhere/broker.conf"], "/nowhere/broker.conf"),
        (["up", "-c", "/nowhere/broker.conf"], "/nowhere/broker.conf"),
        (["broker", "-c", "/nowhere/broker.conf"], "/nowhere/broker.conf"),
        (["up", "--ephemeral", "--store", "x"], "--store"),
        (["broker", "-n", "nonsense"], "nonsense"),
        (["namesrv", "--port", "-1"], "-1"),
    ],
)
def test_a_command_line_that_is_not_understood(tmp_path, monkeypatch, capsys, arguments, word):
    monkeypatch.chdir(tmp_path)
    code, error = refused_here(capsys, *arguments)
    assert code == 2
    assert word in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--json"], []])
def test_it_serves_also_when_nobody_reads_that_it_is_ready(tmp_path, monkeypatch, capfd, arguments):
    """Standard output is closed. The command still serves and stops cleanly, without an error from buffered output."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    output = os.fdopen(write_end, "w")
    monkeypatch.setattr(sys, "stdout", output)

    served: list[bool] = []

    def serve_and_stop(start_servers: Any, *_: object) -> None:
        asyncio.run(start_servers())
        served.append(True)

    class Server:
        address = "127.0.0.1:1"

        def __init__(self, *_: object) -> None:
            self.server = self.stop = self

        async def start(self) -> None:
            pass

    monkeypatch.setattr("rucola.cli.start.NamesrvServer", Server)
    monkeypatch.setattr("rucola.cli.start.run_servers", serve_and_stop)
    assert (main(["namesrv", *arguments]), served) == (0, [True])
    output.close()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("flushDiskTyp=SYNC_FLUSH", "flushDiskTyp"),
        ("flushDiskType=LAZY", "LAZY"),
        ("brokerRole=SLAVE", "SLAVE"),
        ("a=\\u00g", "\\u"),
    ],
)
def test_a_configuration_that_is_not_allowed(store, capsys, text, word):
    before = content(store)
    code, error = refused_here(
        capsys, "up", "--store", str(store), "--config", str(config_file(store, text)), *FREE_PORTS
    )
    assert code == 2
    assert word in error
    assert content(store) == before


def test_a_full_disk(tmp_path):
    """Files may not grow beyond 100 kB. For a new store, which must create its first segment, the disk seems full."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    store = tmp_path / "store"
    code, error = refused("up", "--store", str(store), *FREE_PORTS, preexec_fn=limit)
    assert code == 6
    assert str(store / "commitlog") in error
    # No marker, no checkpoint, no part of a segment; the files of lite topics are whole, and of none.
    assert set(content(store)) <= {"lock", "rucola-lite/names", "rucola-lite/synced", "rucola-lite/table"}
    with up(store):  # no file of the failed start is in the way
        pass


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    code, error = refused("up", "--store", str(tmp_path / "file/store"), *FREE_PORTS)
    assert code == 6
    assert str(tmp_path / "file") in error


def test_a_file_given_beside_flush_is_obeyed_where_flush_is_silent():
    from rucola.cli.servers import UpOptions, _flush_type

    assert _flush_type(UpOptions()) == "SYNC_FLUSH"
    assert _flush_type(UpOptions(config={})) is None
    assert _flush_type(UpOptions(config={}, flush="async")) == "ASYNC_FLUSH"
    assert _flush_type(UpOptions(flush="SYNC_FLUSH")) == "SYNC_FLUSH"


def test_damage_is_refused_and_with_quarantine_served_around(store: Path) -> None:
    with up(store) as ready:
        assert ready["store"] == str(store)
    watermark = WatermarkFile(Files(), str(store))
    watermark.read()
    # The checkpoint says that records were synced that no longer exist.
    watermark.write(Watermark(5000, 0))
    before = content(store)
    arguments = ("up", "--store", str(store), "--config", str(config_file(store)), *FREE_PORTS)
    code, error = refused(*arguments)
    assert code == 5
    assert f"{store}/commitlog" in error and "position 0" in error and "--quarantine" in error
    assert content(store) == before
    process = start(*arguments, "--quarantine", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["store"] == str(store)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert "store is served without a part of the log" in error
    assert json.loads((store / "quarantine" / "gaps.json").read_text()) == [[0, 1048576]]
    with up(store) as ready, urllib.request.urlopen(f"http://{ready['http']}/metrics") as answer:
        assert b"rucola_commitlog_gaps 1.0" in answer.read()
