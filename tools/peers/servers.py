"""Name server and broker as processes: ours (``python -m rucola up``) and the official Java pair, with one interface.
Both pairs listen on free ports of 127.0.0.1, keep their store in a directory of their own and end with the ``with``
block. CPU time and memory are read from ``/proc``, so the figures come from the operating system and not from the
servers.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tools.peers.packages import ROOT, SERVER_VERSION, PeerError, need, proxy_classpath, server_classpath
from tools.peers.wire import wait_for_route

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_TIMEOUT_S = float(os.environ.get("RUCOLA_PEERS_START_S", "90"))
"""The environment can set it, for a machine that has much else to do."""
STOP_TIMEOUT_S = 30.0

# Options of the official start scripts (runserver.sh, runbroker.sh) on Java 17, apart from the heap sizes.
JAVA_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:-OmitStackTraceInFastThrow",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)

BROKER_HEAP = ("-Xms1g", "-Xmx1g", "-Xmn512m")


class Servers(ABC):
    """A name server and a broker that run as long as the ``with`` block."""

    name: str
    namesrv: str = ""
    """``host:port`` of the name server."""
    broker: str = ""
    """``host:port`` of the broker."""

    def __init__(
        self, flush: str = "async", store: Path | None = None, settings: Mapping[str, object] | None = None
    ) -> None:
        """Args:
        flush: ``sync`` or ``async``.
        store: where the broker keeps its files; None for a temporary directory, removed at the end.
        settings: further lines of ``broker.conf``.
        """
        self.flush = flush
        self.settings = dict(settings or {})
        self._temporary = Path(tempfile.mkdtemp(prefix="rucola-peers-"))
        self.store = store or self._temporary / "store"
        self._processes: list[subprocess.Popen[bytes]] = []

    @abstractmethod
    def _start(self) -> None:
        """Starts the processes and returns when the broker's route is known to the name server."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clean_up()

    def settle(self) -> None:  # noqa: B027 - most serve again at once
        """Returns when the servers serve again after they were stopped for a while (SIGSTOP)."""

    def restart(self) -> None:
        """Kills all processes with SIGKILL, then starts them on the same ports and files."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._processes.clear()
        self._start()

    @property
    def pids(self) -> list[int]:
        """Process ids of the name server and broker, for measurements from outside."""
        return [process.pid for process in self._processes]

    @property
    def exit_codes(self) -> list[int]:
        """Exit codes of the processes that have ended."""
        return [process.returncode for process in self._processes if process.poll() is not None]

    def cpu_seconds(self) -> float:
        """User plus system time, in seconds, that all these processes have used so far."""
        return sum(cpu_seconds(pid) for pid in self.pids)

    def resident_bytes(self) -> int:
        """Resident memory of all these processes, in bytes."""
        return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids) * os.sysconf(
            "SC_PAGE_SIZE"
        )

    def log(self) -> str:
        """The end of the processes' output, for messages about a failure."""
        texts = [path.read_text(errors="replace") for path in sorted(self._temporary.glob("*.log"))]
        return "\n".join(text[-2000:] for text in texts)

    def _spawn(
        self, command: list[str], log: str, environment: dict[str, str], capture: bool = False
    ) -> subprocess.Popen[bytes]:
        with (self._temporary / log).open("ab") as out:
            process = subprocess.Popen(
                command,
                cwd=self._temporary,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if capture else out,
                stderr=out,
            )
        self._processes.append(process)
        return process

    def _configure(self, name: str, **values: object) -> None:
        (self._temporary / name).write_text("".join(f"{key}={value}\n" for key, value in values.items()))

    def _clean_up(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(self._temporary, ignore_errors=True)


def environment_of(tree: Path) -> dict[str, str]:
    """Environment of our servers from a working tree. Python writes bytecode files, as for an installed package, even
    if the calling process has switched this off.
    """
    return {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": ""}


OURS = environment_of(ROOT)


def python_of(tree: Path) -> str:
    """The interpreter of a working tree, which has the tree's compiled kernels.

    Raises:
        PeerError: the tree has no ``.venv``.
    """
    if tree == ROOT:
        return sys.executable
    python = tree / ".venv" / "bin" / "python"
    if not python.exists():
        raise PeerError(f"{python} does not exist: run make lint in {tree}")
    return str(python)


class RucolaServers(Servers):
    """``rucola up``.

    Attributes: http: address of its metrics, ``host:port``. proxy: address for clients of RocketMQ 5; empty without
    one. ready_at: time at which it was ready, by ``time.perf_counter``.
    """

    name = "rucola"
    http = ""
    proxy = ""
    ready_at = 0.0

    def __init__(
        self,
        flush: str = "async",
        store: Path | None = None,
        settings: Mapping[str, object] | None = None,
        tree: Path = ROOT,
        grpc: bool = False,
    ) -> None:
        """``tree`` is the working tree whose servers run, ``grpc`` whether they serve clients of RocketMQ 5."""
        super().__init__(flush, store, settings)
        self._tree = tree
        self._grpc = grpc

    def _start(self) -> None:
        command = [python_of(self._tree), "-m", "rucola", "up", "--json", "--store", str(self.store)]
        command += ["--namesrv-port", str(port_of(self.namesrv)), "--broker-port", str(port_of(self.broker))]
        command += ["--http-port", "0", "--flush", self.flush]
        if self._grpc:
            command += ["--grpc-port", str(port_of(self.proxy))]
        if self.settings:
            self._configure("broker.conf", **self.settings)
            command += ["--config", "broker.conf"]
        process = self._spawn(command, "rucola.log", environment_of(self._tree), capture=True)
        facts = facts_of(process, self)
        self.ready_at = time.perf_counter()
        self.namesrv, self.broker, self.http = facts["namesrv"], facts["brokers"][0], facts["http"]
        self.proxy = facts.get("grpc") or ""


class JavaServers(Servers):
    """The official name server and broker, published on Maven Central, as two processes.

    Attributes:
        ha: address of the broker's port for slaves, ``host:port``.
    """

    name = "java"
    ha = ""

    def __init__(
        self,
        flush: str = "async",
        store: Path | None = None,
        version: str = SERVER_VERSION,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(flush, store, settings)
        self._classpath = server_classpath(version)

    def _start(self) -> None:
        self.namesrv = self._start_namesrv()
        self.broker = self._start_broker("broker-a")
        # Clients create other topics with this topic's settings.
        wait_for_route(self.namesrv, "TBW102", START_TIMEOUT_S)

    def _start_namesrv(self) -> str:
        port = port_of(self.namesrv) or free_port()
        self._configure("namesrv.conf", listenPort=port, bindAddress="127.0.0.1")
        self._java("org.apache.rocketmq.namesrv.NamesrvStartup", "namesrv", "-Xms256m", "-Xmx256m")
        _wait_for_port(port, self._processes[-1], self)
        return f"127.0.0.1:{port}"

    def _start_broker(self, broker_name: str) -> str:
        broker_port = port_of(self.broker) or free_port(neighbour=-2)  # the broker's fast port is listenPort - 2
        self.ha = self.ha or f"127.0.0.1:{free_port()}"
        self._configure(
            "broker.conf",
            brokerClusterName="DefaultCluster",
            brokerName=broker_name,
            brokerId=0,
            brokerIP2="127.0.0.1",
            bindAddress="127.0.0.1",
            listenPort=broker_port,
            haListenPort=port_of(self.ha),
            namesrvAddr=self.namesrv,
            flushDiskType="SYNC_FLUSH" if self.flush == "sync" else "ASYNC_FLUSH",
            transientStorePoolEnable="false",
            storePathRootDir=self.store,
            storePathCommitLog=self.store / "commitlog",
            **{"brokerRole": "ASYNC_MASTER", "brokerIP1": "127.0.0.1", **self.settings},
        )
        self._run_broker()
        _wait_for_port(broker_port, self._processes[-1], self)
        return f"127.0.0.1:{broker_port}"

    def _run_broker(self) -> None:
        """Starts the process of the broker, whose options are in ``broker.conf``."""
        self._java("org.apache.rocketmq.broker.BrokerStartup", "broker", *BROKER_HEAP)

    def _java(self, main: str, name: str, *heap: str, arguments: Sequence[str] = (), classpath: str = "") -> None:
        home = self._temporary / "home"
        home.mkdir(exist_ok=True)
        java = need("java", "install Java 17 to run the official broker")
        command = [
            java,
            *JAVA_OPTIONS,
            *heap,
            f"-Duser.home={home}",
            "-cp",
            classpath or self._classpath,
            main,
            *(arguments or ("-c", f"{name}.conf")),
        ]
        self._spawn(command, f"{name}.log", {"ROCKETMQ_HOME": str(home)})


class ProxiedServers(JavaServers):
    """The official name server and broker, together with the official proxy.

    Attributes:
        proxy: its gRPC address, ``host:port``.
    """

    proxy = ""

    def __init__(
        self,
        version: str = SERVER_VERSION,
        settings: Mapping[str, object] | None = None,
        local: bool = False,
        proxy_settings: Mapping[str, object] | None = None,
    ) -> None:
        """Args:
        version: version of all official packages.
        settings: further lines of ``broker.conf``.
        local: whether broker and proxy are one process (the proxy's mode LOCAL), not two (CLUSTER).
        proxy_settings: further options of the proxy.
        """
        super().__init__(version=version, settings=settings)
        self._proxy_classpath = proxy_classpath(version)
        self._local = local
        self._proxy_settings = dict(proxy_settings or {})

    def _start(self) -> None:
        port = port_of(self.proxy) or free_port()
        self.proxy = f"127.0.0.1:{port}"
        super()._start()
        if not self._local:
            self._run_proxy("CLUSTER", "-Xms512m", "-Xmx512m")
        _wait_for_port(port, self._processes[-1], self)

    def _run_broker(self) -> None:
        if self._local:
            self._run_proxy("LOCAL", *BROKER_HEAP, arguments=("-bc", str(self._temporary / "broker.conf")))
        else:
            super()._run_broker()

    def _run_proxy(self, mode: str, *heap: str, arguments: tuple[str, ...] = ()) -> None:
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": self.namesrv,
            "grpcServerPort": port_of(self.proxy),
            "remotingListenPort": free_port(),
            **self._proxy_settings,
        }
        path = self._temporary / "proxy.json"
        path.write_text(json.dumps(settings))
        words = ("-n", self.namesrv, "-pm", mode, "-pc", str(path), *arguments)
        main = "org.apache.rocketmq.proxy.ProxyStartup"
        self._java(main, "proxy", *heap, arguments=words, classpath=self._proxy_classpath)


class FrontedServers(JavaServers):
    """The official name server and broker, with ``rucola proxy`` in front of them.

    Attributes:
        proxy: its gRPC address, ``host:port``.
    """

    name = "rucola-proxy"
    proxy = ""

    def __init__(
        self,
        version: str = SERVER_VERSION,
        settings: Mapping[str, object] | None = None,
        proxy_settings: Mapping[str, object] | None = None,
    ) -> None:
        """Args:
        version: version of the official packages.
        settings: further lines of ``broker.conf``.
        proxy_settings: options of the proxy.
        """
        super().__init__(version=version, settings=settings)
        self._proxy_settings = dict(proxy_settings or {})

    def _start(self) -> None:
        super()._start()
        self._configure("rucola-proxy.conf", **self._proxy_settings)
        command = [sys.executable, "-m", "rucola", "proxy", "-n", self.namesrv, "--port", str(port_of(self.proxy))]
        command += ["--config", "rucola-proxy.conf", "--json"]
        process = self._spawn(command, "rucola-proxy.log", OURS, capture=True)
        self.proxy = facts_of(process, self)["grpc"]


class MixedServers(JavaServers):
    """A cluster with a name server of one kind and brokers of the requested kinds; each broker has its own store."""

    def __init__(self, namesrv: str, brokers: tuple[str, ...], settings: Mapping[str, object] | None = None) -> None:
        """Args:
        namesrv: kind of the name server, ``rucola`` or ``java``.
        brokers: kinds of the brokers, one or both.
        """
        super().__init__(settings=settings)
        self.name = f"{' and '.join(brokers)} under {namesrv}"
        self._kinds = (namesrv, brokers)

    def _start(self) -> None:
        namesrv, brokers = self._kinds
        ours = self._rucola("namesrv", "--port", "0") if namesrv == "rucola" else None
        self.namesrv = ours["namesrv"] if ours else self._start_namesrv()
        for kind in brokers:
            broker_name, self.broker = f"broker-{kind}", ""
            self.broker = self._start_broker(broker_name) if kind == "java" else self._rucola_broker(broker_name)
            wait_for_route(self.namesrv, broker_name)  # every broker has a topic with its own name

    def _rucola_broker(self, broker_name: str) -> str:
        values: dict[str, object] = {
            "brokerName": broker_name,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "listenPort": 0,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": self._temporary / "store-rucola",
        }
        self._configure("rucola.conf", **values, **self.settings)
        return str(self._rucola("broker", "--config", "rucola.conf")["brokers"][0])

    def _rucola(self, *command: str) -> dict[str, Any]:
        whole = [sys.executable, "-m", "rucola", *command, "--json"]
        process = self._spawn(whole, f"rucola-{command[0]}.log", OURS, capture=True)
        return facts_of(process, self)


def servers(
    name: str, flush: str = "async", settings: Mapping[str, object] | None = None, store: Path | None = None
) -> Servers:
    """Makes the servers of kind ``rucola`` or ``java``; ``settings`` are further lines of ``broker.conf``, ``store`` is
    where the broker keeps its files.
    """
    kind = RucolaServers if name == "rucola" else JavaServers
    return kind(flush, store, settings=settings)


def cpu_seconds(pid: int) -> float:
    """User plus system time of a process, including ended threads; the resolution is one clock tick (10 ms)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S


def free_port(neighbour: int = 0) -> int:
    """A free port of 127.0.0.1; with ``neighbour``, port + ``neighbour`` is free, too."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            if not neighbour:
                return port
            with socket.socket() as second:
                try:
                    second.bind(("127.0.0.1", port + neighbour))
                except OSError:
                    continue
                return port


def port_of(address: str) -> int:
    """The port in ``host:port``; 0, which means any free port, if there is no address yet."""
    return int(address.rpartition(":")[2] or 0)


def facts_of(process: subprocess.Popen[bytes], owner: Servers) -> dict[str, Any]:
    """Waits until a ``rucola`` command with ``--json`` is ready; returns its JSON output."""
    line = _first_line(process)
    if not line.startswith("{"):
        raise PeerError(f"rucola did not start: {line or 'no output'}\n{owner.log()}")
    facts: dict[str, Any] = json.loads(line)
    return facts


def _first_line(process: subprocess.Popen[bytes]) -> str:
    """Returns the first line of the process's output; empty if the process ended or took too long."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return process.stdout.readline().decode().strip() if selector.select(START_TIMEOUT_S) else ""


def wait_for_port(port: int, seconds: float = START_TIMEOUT_S, is_alive: Callable[[], object] = lambda: True) -> bool:
    """Waits until somebody listens on a port of this machine.

    Args:
        port: the port.
        seconds: how long to wait.
        is_alive: whether the process that shall listen still runs; the wait ends as soon as it does not.

    Returns:
        Whether somebody listens.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and is_alive():
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return True
    return False


def _wait_for_port(port: int, process: subprocess.Popen[bytes], owner: Servers) -> None:
    if wait_for_port(port, is_alive=lambda: process.poll() is None):
        return
    if process.poll() is not None:
        raise PeerError(f"{owner.name} ended with {process.returncode}\n{owner.log()}")
    raise PeerError(f"{owner.name} does not listen on {port}\n{owner.log()}")
