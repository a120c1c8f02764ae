"""Records one life of lite topics: official servers, official clients, and relays between them, into
``tests/golden/lite/``: ``python -m tests.conformance.lite.record``.

The broker registers the address of a relay, so the proxy reaches it only through that. Clients know only the gRPC
relay. ``--kind`` is the kind of the consume queues. Exit status: 0 if everything was played.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from tests.conformance.lite.agents import JAVA_CLIENT, PYTHON_CLIENT
from tests.conformance.lite.life import Step, play
from tests.conformance.lite.recording import Recording, write
from tests.conformance.lite.relays import Relays
from tools.peers.packages import PeerError
from tools.peers.servers import ProxiedServers, free_port

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "lite"
VERSION = "5.5.0"
KINDS = {"file": "default", "rocksdb": "defaultRocksDB"}
SETTINGS: dict[str, object] = {
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "brokerIP1": "127.0.0.2",
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "false",
    "minLiteTTl": 10000,
    "liteTtlCheckInterval": 5000,
    "liteLagCountMetricsEnable": "true",
    "liteLagLatencyMetricsEnable": "true",
    "liteLagLatencyCollectEnable": "true",
    "enableLitePopLog": "true",
}
PROXY_SETTINGS = {"useEndpointPortFromRequest": True}


def main(arguments: list[str]) -> int:
    """Records the life with one or both kinds of consume queues."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.lite.record", description=__doc__)
    parser.add_argument("--kind", action="append", choices=KINDS, help="kind of the consume queues; both by default")
    parser.add_argument("--to", type=Path, default=GOLDEN, help="folder of the recordings")
    options = parser.parse_args(arguments)
    try:
        for kind in options.kind or KINDS:
            record(kind, options.to / kind)
    except PeerError as error:
        print(f"lite: {error}", file=sys.stderr)
        return 2
    return 0


def record(kind: str, folder: Path) -> None:
    """Plays the life with one kind of consume queues, and writes a file for each scenario."""
    recording = Recording()
    servers = ProxiedServers(VERSION, {**SETTINGS, "storeType": KINDS[kind]}, proxy_settings=PROXY_SETTINGS)
    port = free_port(neighbour=-2)
    servers.broker = f"127.0.0.1:{port}"
    addresses = {"grpc": f"127.0.0.1:{free_port()}", "tool": f"127.0.0.3:{port}", "hand": f"127.0.0.4:{port}"}
    with Relays(recording) as relays:
        relays.remoting(f"127.0.0.2:{port}", servers.broker, "proxy", "broker")
        relays.remoting(addresses["tool"], servers.broker, "mqadmin", "broker")
        relays.remoting(addresses["hand"], servers.broker, "hand", "broker")
        with servers:
            relays.grpc(addresses["grpc"], servers.proxy)
            recording.take()
            play(servers, relays, recording, addresses, VERSION, partial(_keep, recording, folder, kind))


def _keep(recording: Recording, folder: Path, kind: str, name: str, step: Step) -> None:
    facts = {
        "scenario": name,
        "does": step.__doc__,
        "servers": f"name server, broker and proxy {VERSION}, {kind} queues",
        "clients": f"rocketmq-client-java {JAVA_CLIENT}, rocketmq-python-client {PYTHON_CLIENT}, mqadmin {VERSION}",
        "settings": SETTINGS,
    }
    records = recording.take()
    write(folder / f"{name}.jsonl.xz", records, facts)
    print(f"{kind}: {name}: {len(records)} records", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
