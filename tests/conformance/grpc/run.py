"""Official gRPC clients against the official proxy and against our server: ``python -m tests.conformance.grpc.run``.

Programs on unmodified published clients play the same scenarios with each peer and print what they saw: statuses,
counts, orders, properties and delivery attempts. With one peer, this is compared with the outcomes of the official
proxy in ``tests/golden/grpc/``; with several peers, each is compared with the first if that is official.

A peer is ``official`` (broker and proxy in one process), ``official-cluster`` (two), ``rucola``, ``rucola-proxy`` (our
proxy before an official broker), or the gRPC address of a running server with the remoting address of its broker,
through which topics are created: ``HOST:PORT/HOST:PORT``. Its broker needs the options in ``scenarios.SETTINGS``.
Several programs run at the same time. ``--resume`` keeps what ``--report`` has, and plays the rest. Differences that
are meant are in ``accepted.py``. Exit status: 0 if nothing else differs, 1 if something differs or broke off, 2 if the
set-up failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tests.conformance.grpc.clients import CLIENTS, HERE, Client
from tests.conformance.grpc.judge import CANNOT, Verdict, verdicts
from tests.conformance.grpc.outcomes import Outcomes, read, write
from tests.conformance.grpc.play import Play
from tests.conformance.grpc.scenarios import GUARDED, SCENARIOS, SINCE
from tests.conformance.grpc.targets import NAMES, OFFICIAL, target_of
from tools.peers.packages import SERVER_VERSION, PeerError

GOLDEN = HERE.parents[1] / "golden" / "grpc"
AT_ONCE = 4


def main(arguments: list[str]) -> int:
    """Runs the clients against the peers; prints every outcome and the differences."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.grpc.run", description=__doc__)
    parser.add_argument("--peer", action="append", help="a server; official by default; give several to compare them")
    parser.add_argument("--version", default=SERVER_VERSION, help="version of the official servers")
    parser.add_argument("--clients", nargs="+", default=[], help="only these: a language, or 'java 5.2.0'")
    parser.add_argument("--scenarios", nargs="+", default=[], choices=SCENARIOS, help="only these")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="programs that run at the same time")
    parser.add_argument("--report", type=Path, help="file for all outcomes, as JSON")
    parser.add_argument("--resume", action="store_true", help="play only what the report does not have")
    parser.add_argument("--write-golden", action="store_true", help="keep the outcomes of the official peer")
    options = parser.parse_args(arguments)
    if options.resume and options.report is None:
        parser.error("--resume needs --report")
    clients = [one for one in CLIENTS if not options.clients or {one.language, str(one)} & {*options.clients}]
    peers = options.peer or [*OFFICIAL[:1]]
    begun = json.loads(options.report.read_text()) if options.resume and options.report.exists() else {}
    found: dict[str, Outcomes] = {name: begun.get(name, {}) for name in peers}
    console = Console()
    try:
        for name in peers:
            play_all(name, options, clients, found, console)
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    golden = GOLDEN / f"official-{options.version}.json"
    if options.write_golden:
        write_golden(golden, found[peers[0]])
    return 0 if judge(found, golden, clients, console) else 1


def _keep(report: Path | None, found: dict[str, Outcomes]) -> None:
    if report is not None:
        report.write_text(json.dumps(found, ensure_ascii=False, indent=1))


def play_all(
    name: str, options: argparse.Namespace, clients: Sequence[Client], found: dict[str, Outcomes], console: Console
) -> None:
    """Plays the scenarios against one peer: first without accounts, then those that need accounts."""
    chosen = [one for one in SCENARIOS if one in options.scenarios or not options.scenarios]
    for guarded in (False, True):
        names = [one for one in chosen if (one in GUARDED) == guarded]
        if not names or (guarded and name not in NAMES):
            continue
        began_s = time.monotonic()
        with target_of(name, options.version, guarded) as target:
            console.print(f"{name}: gRPC {target.endpoints}, broker {target.broker}{', accounts' if guarded else ''}")
            play = Play(target, found[name], console, partial(_keep, options.report, found), options.at_once)
            play.play(clients, names)
        console.print(f"{name}: {len(clients)} clients in {time.monotonic() - began_s:.0f} s")


def write_golden(path: Path, found: Outcomes) -> None:
    """Adds to a file what was played to its end."""
    outcomes = read(path)
    for client, saws in found.items():
        outcomes[client] = outcomes.get(client, {}) | {name: saw for name, saw in saws.items() if "broken" not in saw}
    write(path, outcomes)


def judge(found: dict[str, Outcomes], golden: Path, clients: Sequence[Client], console: Console) -> bool:
    """Compares and prints the outcomes; returns whether all are as they must be."""
    first, *others = found
    good = True
    for name in others if others and first in OFFICIAL else found:
        against, expected = (first, found[first]) if others and first in OFFICIAL else (golden.name, kept(golden))
        judged = verdicts(found[name], expected, name in OFFICIAL)
        console.print(summary(judged, clients, f"{name}, compared with {against}"))
        for (client, scenario), verdict in judged.items():
            for line in verdict.lines:
                console.print(Text(f"{name}: {client}: {scenario}: {line}"), soft_wrap=True)
        good &= bool(judged) and all(verdict.good for verdict in judged.values())
    return good


def kept(golden: Path) -> Outcomes:
    """The outcomes of an official server; those of features that a later one has are that one's."""
    outcomes = read(golden)
    for scenario, version in SINCE.items():
        for client, saws in read(GOLDEN / f"official-{version}.json").items():
            if scenario in saws:
                outcomes.setdefault(client, {})[scenario] = saws[scenario]
    return outcomes


def summary(judged: dict[tuple[str, str], Verdict], clients: Sequence[Client], title: str) -> Table:
    """A row for each scenario of official clients, a column for each client."""
    table = Table(title=title, box=None)
    table.add_column("scenario", no_wrap=True)
    for client in clients:
        table.add_column(f"{client.language}\n{client.version}", no_wrap=True)
    for scenario in SCENARIOS:
        row = [judged.get((str(client), scenario)) for client in clients]
        if any(row):
            table.add_row(scenario, *(verdict.word if verdict else "" for verdict in row))
    equal = sum(verdict.word == "equal" for verdict in judged.values())
    able = sum(verdict.word != CANNOT for verdict in judged.values())
    table.caption = f"{equal} of {able} equal"
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
