"""Official gRPC clients against the official proxy and against our server: ``python -m tests.conformance.grpc.run``.

Programs on unmodified published clients play the same scenarios with each peer and print what they saw: statuses,
counts, orders, properties and delivery attempts. With one peer, this is compared with the outcomes of the official
proxy in ``tests/golden/grpc/``; with two peers, the second is compared with the first.

A peer is ``official`` (broker and proxy in one process), ``official-cluster`` (two), ``rucola``, ``rucola-proxy`` (our
proxy before an official broker), or the gRPC address of a running server with the remoting address of its broker,
through which topics are created: ``HOST:PORT/HOST:PORT``. Its broker needs the options in ``scenarios.SETTINGS``.
Differences that are meant are in ``accepted.py``. Exit status: 0 if nothing else differs, 1 if something differs or
broke off, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tests.conformance.grpc.accepted import reason
from tests.conformance.grpc.outcomes import Outcomes, differences, masked, read, write
from tests.conformance.grpc.scenarios import RESTARTING, SCENARIOS, SCRIPTED, SETTINGS, Admin
from tests.conformance.program import ScenarioProgram
from tools.peers.packages import (
    PEERS,
    SERVER_VERSION,
    PeerError,
    go_program,
    java_program,
    need,
    node_program,
    rust_program,
)
from tools.peers.servers import FrontedServers, ProxiedServers, RucolaServers, Servers

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parents[1] / "golden" / "grpc"
CLIENT_TIMEOUT_S = 900
PYTHON_PATH = os.pathsep.join(str(folder) for folder in (HERE.parents[2], HERE.parents[2] / "src"))
OFFICIAL = ("official", "official-cluster")


@dataclass(frozen=True)
class Client:
    """One version of an official client."""

    language: str
    version: str

    def command(self, *arguments: str) -> list[str]:
        """Returns the command line of the program with scenarios, which is compiled at the first use."""
        if self.language == "python":
            return [sys.executable, str(HERE / "python_client.py"), *arguments]
        if self.language == "scripted":
            return [sys.executable, "-m", "tests.conformance.grpc.scripted", *arguments]
        if self.language == "rust":
            return [str(rust_program(HERE / "rust")), *arguments]
        if self.language == "node":
            node = need("node", "install Node.js 18 or newer to run the official Node.js client")
            return [node, str(node_program(HERE / "node") / "scenarios.js"), *arguments]
        if self.language == "go":
            return [str(go_program(HERE / "go")), *arguments]
        java = need("java", "install Java 17 to run the official Java client")
        classpath = java_program(HERE / "java", self.version)
        return [java, "-Xmx512m", f"-Duser.home={PEERS}", "-cp", classpath, "scenarios.Main", *arguments]

    def plays(self, scenario: str) -> bool:
        """Whether the program has this scenario."""
        return scenario.startswith(SCRIPTED) == (self.language == "scripted")

    def __str__(self) -> str:
        return f"{self.language} {self.version}"


CLIENTS = (
    Client("python", "5.1.2"),
    Client("java", "5.2.0"),
    Client("java", "5.0.7"),
    Client("java", "5.0.3"),
    Client("node", "1.0.8"),
    Client("go", "5.1.3"),
    Client("rust", "5.0.0"),
    Client("scripted", "1"),
)
"""Java 5.0.3 uses TLS, which it cannot switch off; the others use plain connections."""
GO_PLAIN = {"rocketmq.client.enableSsl": "false"}


@dataclass(frozen=True)
class Target:
    """A server to run against.

    Attributes:
        name: as in the command line.
        endpoints: gRPC address, ``host:port``.
        broker: remoting address of the broker.
        namesrv: address of the name server; empty if it is not known.
        servers: its processes, for a restart; None if it is not ours to stop.
    """

    name: str
    endpoints: str
    broker: str
    namesrv: str
    servers: Servers | None


@contextmanager
def target_of(name: str, version: str) -> Iterator[Target]:
    """Starts a peer, unless it is an address."""
    if name in OFFICIAL:
        with ProxiedServers(version, SETTINGS, local=name == "official") as official:
            yield Target(name, official.proxy, official.broker, official.namesrv, official)
    elif name == "rucola":
        with RucolaServers(settings=SETTINGS, grpc=True) as ours:
            yield Target(name, ours.proxy, ours.broker, ours.namesrv, ours)
    elif name == FrontedServers.name:
        with FrontedServers(version=version, settings=SETTINGS) as fronted:
            yield Target(name, fronted.proxy, fronted.broker, fronted.namesrv, fronted)
    else:
        endpoints, broker, namesrv, *_ = [*name.split("/"), "", ""]
        if not broker:
            raise PeerError(f"{name}: write HOST:PORT/HOST:PORT, the gRPC address and that of the broker")
        yield Target(name, endpoints, broker, namesrv, None)


def main(arguments: list[str]) -> int:
    """Runs the clients against the peers; prints every outcome and the differences."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.grpc.run", description=__doc__)
    parser.add_argument("--peer", action="append", help="a server; official by default; give two to compare them")
    parser.add_argument("--version", default=SERVER_VERSION, help="version of the official servers")
    parser.add_argument("--clients", nargs="+", default=[], help="only these: a language, or 'java 5.2.0'")
    parser.add_argument("--scenarios", nargs="+", default=[], choices=SCENARIOS, help="only these")
    parser.add_argument("--report", type=Path, help="file for all outcomes, as JSON")
    parser.add_argument("--write-golden", action="store_true", help="keep the outcomes of the official peer")
    options = parser.parse_args(arguments)
    clients = [one for one in CLIENTS if not options.clients or {one.language, str(one)} & {*options.clients}]
    console = Console()
    found: dict[str, Outcomes] = {}
    try:
        for name in options.peer or OFFICIAL[:1]:
            with target_of(name, options.version) as target:
                console.print(f"{name}: gRPC {target.endpoints}, broker {target.broker}")
                for _ in run_clients(clients, target, options.scenarios, found.setdefault(name, {}), console):
                    if options.report:  # after each client, because a run takes long
                        options.report.write_text(json.dumps(found, ensure_ascii=False, indent=1))
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    return judge(found, GOLDEN / f"official-{options.version}.json", options.write_golden, console)


def judge(found: dict[str, Outcomes], golden: Path, keep: bool, console: Console) -> int:
    """Compares the outcomes; returns the exit status."""
    first, last = next(iter(found)), list(found)[-1]
    expected = found[first] if len(found) > 1 else read(golden)
    if keep:
        kept = read(golden)
        for client, saw in found[first].items():
            whole = {name: one for name, one in saw.items() if "broken" not in one}
            kept[client] = kept.get(client, {}) | whole
        write(golden, kept)
    table = Table(title=f"{last}, compared with {first if len(found) > 1 else golden.name}")
    for column in ("client", "scenario", "outcome"):
        table.add_column(column, overflow="fold")
    good = True
    for client, saws in found[last].items():
        for name, saw in saws.items():
            passed, text = verdict(name, saw, expected.get(client, {}).get(name), last in OFFICIAL)
            good &= passed
            table.add_row(client, name, Text(text))
    console.print(table)
    return 0 if good else 1


def verdict(scenario: str, saw: dict[str, Any], wanted: dict[str, Any] | None, official: bool) -> tuple[bool, str]:
    """Whether an outcome is as it must be, and what is said of it. No difference of the official server is meant."""
    if "broken" in saw and (wanted is None or "broken" not in wanted):
        return False, f"broken off: {saw}"
    if wanted is None:
        return True, "nothing to compare with"
    lines, good = [], True
    for difference in differences(wanted, saw):
        why = None if official else reason(scenario, difference)
        good &= why is not None
        lines.append(f"{difference} ({why})" if why else str(difference))
    return good, "\n".join(lines) or "equal"


def run_clients(
    clients: list[Client], target: Target, scenarios: list[str], found: Outcomes, console: Console
) -> Iterator[Client]:
    """Runs the scenarios of all clients, one client after the other; yields each client when it is done, and adds to
    ``found`` what it saw, masked.
    """
    chosen = [name for name in SCENARIOS if name in scenarios or not scenarios]
    if target.servers is None:
        chosen = [name for name in chosen if name != RESTARTING]
    run = f"c{int(time.time()):x}"
    for number, client in enumerate(clients):
        began = time.monotonic()
        saws = found[str(client)] = {}
        names = [name for name in chosen if client.plays(name)]
        for name, saw in run_client(client, target, f"{run}_{number}_", names):
            saws[name] = masked(saw)
            console.print(f"{client!s:14} {name:16} {time.monotonic() - began:5.1f} s ", end="")
            console.print(json.dumps(saw, ensure_ascii=False), markup=False, highlight=False, soft_wrap=True)
            began = time.monotonic()
        yield client


def run_client(client: Client, target: Target, prefix: str, chosen: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields name and outcome of a client's scenarios as they end."""
    if not chosen:
        return
    command = client.command(target.endpoints, prefix, *chosen)
    admin = Admin(target.broker)
    admin.prepare(prefix, chosen)
    environment = {
        **os.environ,
        **GO_PLAIN,
        "HOME": str(PEERS),
        "PYTHONPATH": PYTHON_PATH,
    }  # where clients write their logs
    missing = dict.fromkeys(chosen)
    with ScenarioProgram(command, target.servers, CLIENT_TIMEOUT_S, environment) as program:
        for line in program.outcomes():
            name, saw = line["name"], line["saw"]
            missing.pop(name)
            if SCENARIOS[name].dead and saw.get("supported", True):
                saw["dead_letters"] = admin.dead_letters(prefix, name)
            yield name, saw
    for name in missing:
        yield name, {"broken": "the program ended", "exit": program.code, "text": program.errors()[-1500:]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
