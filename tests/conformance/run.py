"""Unmodified official clients against our name server and broker: ``python -m tests.conformance.run``.

The clients are fetched as published (Maven Central, npm, Go modules, PyPI). The same scenarios run against the official
servers afterwards: if one fails there, the scenario is wrong. Exit status: 0 if all passed, 1 if a scenario failed, 2
if the set-up failed.

A program of scenarios takes the name server, a prefix for topics and groups, and names of scenarios (none means all),
or ``names``, which lists them. It prints one JSON line for each: name, ok, details. With ``{"restart": true}`` it
requests a SIGKILL and a restart of the servers, and waits for a line on its input.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.conformance.program import ScenarioProgram
from tools.peers.packages import PEERS, PeerError, go_program, java_program, need, node_program, python_packages
from tools.peers.servers import Servers, servers
from tools.peers.wire import make_topic

HERE = Path(__file__).resolve().parent
CLIENT_TIMEOUT_S = 900
CLIENTS_AT_ONCE = 3
KILLING = "crash_"
"""Prefix of the names of scenarios during which the servers are killed."""
TARGETS = ("rucola", "java")
ELSEWHERE = ("cluster_two_brokers",)
"""Scenarios that need other servers: see ``tests.conformance.cluster``."""
FEATURES = (
    *("send", "pull", "lite", "push", "query", "retry", "rpc", "group", "delay", "filter", "transaction", "pop"),
    *("crash", "cluster"),
)
"""The features that scenarios test. The name of a scenario begins with its feature and an underscore."""
SETTINGS = {
    "messageDelayLevel": "1s" + 16 * " 2s" + " 4s",
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "transactionTimeOut": 1000,
    "transactionOpBatchInterval": 300,
    "transactionCheckInterval": 1500,
    "transactionCheckMax": 3,
}
"""Options for our broker and the official one, with times so short that a test can wait for them."""


@dataclass(frozen=True)
class Client:
    """One version of an official client."""

    name: str
    version: str

    def command(self, *arguments: str) -> list[str]:
        """Returns the command line of the program with scenarios, which is compiled at the first use."""
        if self.name == "ali-ons":
            node = need("node", "install Node.js 18 or newer to run the ali-ons client")
            return [node, str(node_program(HERE / "node") / "scenarios.js"), *arguments]
        if self.name == "go":
            return [str(go_program(HERE / "go")), *arguments]
        if self.name == "c++":
            packages = python_packages("conformance-cpp", f"rocketmq=={self.version}")
            return [sys.executable, str(HERE / "cpp" / "scenarios.py"), str(packages), *arguments]
        classpath = java_program(HERE / "java", self.version)
        options = ["-Xmx512m", f"-Duser.home={PEERS}", "-Drocketmq.client.logLevel=ERROR"]
        java = need("java", "install Java 17 to run the official Java client")
        return [java, *options, "-cp", classpath, "scenarios.Scenario", *arguments]

    @property
    def makes_topics(self) -> bool:
        """Whether the runner must create topics, because the client fails if a topic does not exist yet."""
        return self.name == "java"

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


CLIENTS = (
    Client("java", "5.3.3"),
    Client("java", "4.9.8"),
    Client("go", "2.1.2"),
    Client("c++", "0.4.4"),
    Client("ali-ons", "3.12.0"),
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one scenario with one client."""

    client: Client
    name: str
    ok: bool
    details: dict[str, object]

    @property
    def feature(self) -> str:
        """Name of the row in the summary that counts this outcome."""
        return self.name.partition("_")[0]


def main(arguments: list[str]) -> int:
    """Runs the clients, and prints every outcome and the summary."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.run", description=__doc__)
    parser.add_argument(
        "--target", action="append", choices=TARGETS, help="only these servers; java: the official ones"
    )
    parser.add_argument(
        "--client", action="append", choices=[str(client) for client in CLIENTS], help="only this client"
    )
    parser.add_argument("--flush", choices=["sync", "async"], default="sync")
    parser.add_argument("scenario", nargs="*", help="only these scenarios")
    options = parser.parse_args(arguments)
    clients = [client for client in CLIENTS if not options.client or str(client) in options.client]
    console = Console()
    passed = True
    try:
        for name in options.target or TARGETS:
            with servers(name, options.flush, SETTINGS) as target:
                console.print(f"{target.name}: name server {target.namesrv}, broker {target.broker}")
                outcomes = run_clients(clients, target, options.scenario, console)
            console.print(summary(outcomes, clients, target.name))
            passed &= bool(outcomes) and all(outcome.ok for outcome in outcomes)
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    return 0 if passed else 1


def run_clients(clients: list[Client], target: Servers, scenarios: list[str], console: Console) -> list[Outcome]:
    """Runs the scenarios of all clients, several clients concurrently because they mostly wait, and then the scenarios
    that kill the servers. Returns the outcomes.
    """
    chosen = {client: chosen_of(client, scenarios) for client in clients}  # builds the programs one after another

    def run(client: Client, kills: bool) -> list[Outcome]:
        names = [name for name in chosen[client] if name.startswith(KILLING) == kills]
        return list(run_client(client, target, f"c{clients.index(client)}_", names, console))

    with ThreadPoolExecutor(CLIENTS_AT_ONCE) as pool:
        outcomes = list(pool.map(lambda client: run(client, False), clients))
    outcomes += [run(client, True) for client in clients]
    return [outcome for found in outcomes for outcome in found]


def chosen_of(client: Client, scenarios: list[str]) -> list[str]:
    """Returns those of ``scenarios`` that the client has; if none are given, all its scenarios except ``ELSEWHERE``."""
    listed = subprocess.run(client.command("names"), capture_output=True, text=True, check=True, timeout=60)
    return [name for name in listed.stdout.split() if name in scenarios or (not scenarios and name not in ELSEWHERE)]


def run_client(client: Client, target: Servers, prefix: str, chosen: list[str], console: Console) -> Iterator[Outcome]:
    """Yields the outcomes of a client's scenarios as they end; a crash or a time-out counts as one more failure."""
    if not chosen:
        return
    if not client.makes_topics:
        for scenario in chosen:
            make_topic(target.namesrv, target.broker, f"T_{prefix}{scenario}")
    command = client.command(target.namesrv, prefix, *chosen)
    environment = {**os.environ, "HOME": str(PEERS)}  # where clients write their logs and offsets
    count, failures = 0, 0
    with ScenarioProgram(command, target, CLIENT_TIMEOUT_S, environment) as program:
        for line in program.outcomes():
            outcome = Outcome(client, **line)
            count, failures = count + 1, failures + (not outcome.ok)
            show(outcome, console)
            yield outcome
    if count == 0 or (program.code != 0 and not failures):
        outcome = Outcome(client, "send_crash", False, {"exit": program.code, "stderr": program.errors()[-1500:]})
        show(outcome, console)
        yield outcome


def show(outcome: Outcome, console: Console) -> None:
    """Prints one line for an outcome."""
    mark = "[green]ok  [/]" if outcome.ok else "[red]FAIL[/]"
    details = json.dumps(outcome.details, ensure_ascii=False)
    console.print(f"{mark} {outcome.client!s:16} {outcome.name:16} ", end="")
    console.print(details, markup=False, highlight=False, soft_wrap=True)


def summary(outcomes: list[Outcome], clients: list[Client], target: str) -> Table:
    """Prints passed / total for each feature and client."""
    table = Table(title=f"official clients against {target}: passed / total")
    table.add_column("feature")
    for client in clients:
        table.add_column(str(client), justify="right")
    for feature in FEATURES:
        cells = []
        for client in clients:
            mine = [outcome for outcome in outcomes if outcome.client == client and outcome.feature == feature]
            passed = sum(outcome.ok for outcome in mine)
            colour = "green" if passed == len(mine) else "red"
            cells.append(f"[{colour}]{passed} / {len(mine)}[/]" if mine else "-")
        table.add_row(feature, *cells)
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
