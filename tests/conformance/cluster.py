"""Our servers and the official ones in one cluster: ``python -m tests.conformance.cluster``.

Our broker under the official name server, the official broker under ours, and a broker of each kind under either; the
official Java client runs scenarios against each. The exit status is the same as for ``tests.conformance.run``.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table
from tests.conformance.run import CLIENTS, SETTINGS, Outcome, run_client
from tools.peers.packages import PeerError
from tools.peers.servers import MixedServers

ONE_BROKER = ["send_sync", "pull_statuses", "push_concurrent", "push_orderly", "query_key", "query_id", "retry_later"]
TWO_BROKERS = ["cluster_two_brokers", "group_broadcast"]
CLUSTERS = (
    ("java", ("rucola",), ONE_BROKER),
    ("rucola", ("java",), ONE_BROKER),
    ("java", ("rucola", "java"), TWO_BROKERS),
    ("rucola", ("java", "rucola"), TWO_BROKERS),
)


def main(arguments: list[str]) -> int:
    """Starts each cluster, runs its scenarios, and prints every outcome and the summary."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.cluster", description=__doc__)
    parser.add_argument(
        "--cluster", type=int, choices=range(len(CLUSTERS)), action="append", help="run only this cluster"
    )
    parser.add_argument("--client", default="java 5.3.3", choices=["java 5.3.3", "java 4.9.8"])
    options = parser.parse_args(arguments)
    client = next(client for client in CLIENTS if str(client) == options.client)
    console = Console()
    table = Table(title=f"{client} against mixed clusters: passed / total")
    table.add_column("brokers and name server")
    table.add_column("passed", justify="right")
    outcomes: list[Outcome] = []
    try:
        for number, (namesrv, brokers, scenarios) in enumerate(CLUSTERS):
            if options.cluster and number not in options.cluster:
                continue
            with MixedServers(namesrv, brokers, SETTINGS) as target:
                console.print(f"{target.name}: name server {target.namesrv}")
                mine = list(run_client(client, target, f"m{number}_", scenarios, console))
            outcomes += mine
            table.add_row(target.name, f"{sum(outcome.ok for outcome in mine)} / {len(mine)}")
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    console.print(table)
    return 0 if all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
