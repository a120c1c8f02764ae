"""Records one life of lite topics: official servers, official clients, and relays between them, into
``tests/golden/lite/``: ``python -m tests.conformance.lite.record``. With ``--peer``, other servers are played:
``rucola-proxy`` is Rucola's proxy before the official broker, ``rucola`` is ``rucola up``. ``compare`` says what
differs.

The broker registers the address of a relay, so the proxy reaches it only through that. Clients know only the gRPC
relay. ``--kind`` is the kind of the consume queues. A scenario that breaks off is not written; the others are played.
Exit status: 0 if everything was played, 1 if something broke off, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.conformance.lite import by_hand, official
from tests.conformance.lite.agents import JAVA_CLIENT, PYTHON_CLIENT, Admin, java_clients, python_clients
from tests.conformance.lite.life import Life
from tests.conformance.lite.recording import Recording, write
from tests.conformance.lite.relays import Relays
from tools.peers.packages import PeerError
from tools.peers.servers import FrontedServers, ProxiedServers, RucolaServers, free_port

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
PROXY_SETTINGS = {
    "useEndpointPortFromRequest": True,
    "grpcClientConsumerMaxLongPollingTimeoutMillis": 6000,
    "defaultInvisibleTimeMills": 20000,
}
"""Shorter polls and leases than by default (20 s, 60 s) shorten the life."""
OURS: dict[str, object] = {
    key: SETTINGS[key]
    for key in ("enableLmq", "enableMultiDispatch", "autoCreateSubscriptionGroup", "minLiteTTl", "liteTtlCheckInterval")
}
"""Options of ``rucola up``; the others are RocketMQ's alone, or its defaults."""
PEER_NAMES = ("official", FrontedServers.name, RucolaServers.name)
PeerServers = ProxiedServers | FrontedServers | RucolaServers
SCENARIOS: dict[str, Callable[[Life], None]] = {
    step.__name__: step
    for step in (
        official.setup, official.send, official.subscribe, official.python, official.dead, by_hand.quota,
        official.exclusive, official.wildcard, official.reconnect, by_hand.ordered, by_hand.suspend, by_hand.admin,
        by_hand.invalid, by_hand.restart, official.expire,
    )
}  # fmt: skip
MORE: dict[str, Callable[[Life], None]] = {step.__name__: step for step in (official.node, official.many)}
"""Scenarios of which only what clients see is kept."""
FIRST = ("setup", "send")
"""Scenarios without which the others have nothing to play with."""


def main(arguments: list[str]) -> int:
    """Records the life with one or both kinds of consume queues."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.lite.record", description=__doc__)
    parser.add_argument("--kind", action="append", choices=KINDS, help="kind of the consume queues; both by default")
    parser.add_argument("--peer", choices=PEER_NAMES, default="official", help="the servers; official by default")
    parser.add_argument(
        "--scenarios", nargs="+", choices=SCENARIOS | MORE, default=[*SCENARIOS, *MORE], help="only these"
    )
    parser.add_argument("--to", type=Path, default=GOLDEN, help="folder of the recordings")
    options = parser.parse_args(arguments)
    if options.peer != "official" and options.to == GOLDEN:
        parser.error(f"--peer {options.peer} needs --to: {GOLDEN} has the recordings of the official servers")
    kinds = options.kind or (["file"] if options.peer == RucolaServers.name else list(KINDS))
    try:
        broken = [record(kind, options.to / kind, options.scenarios, options.peer) for kind in kinds]
    except PeerError as error:
        print(f"lite: {error}", file=sys.stderr)
        return 2
    return int(any(broken))


def record(kind: str, folder: Path, names: Sequence[str], peer: str = "official") -> list[str]:
    """Plays scenarios with one kind of consume queues, and writes a file for each; returns those that broke off."""
    recording = Recording()
    servers = servers_of(peer, kind)
    port = free_port(neighbour=-2)
    servers.broker = f"127.0.0.1:{port}"
    grpc, tool, hand = f"127.0.0.1:{free_port()}", f"127.0.0.3:{port}", f"127.0.0.4:{port}"
    with ExitStack() as stack:
        relays = stack.enter_context(Relays(recording))
        for listen, near in ((f"127.0.0.2:{port}", "proxy"), (tool, "mqadmin"), (hand, "hand")):
            relays.remoting(listen, servers.broker, near, "broker")
        stack.enter_context(servers)
        relays.grpc(grpc, servers.proxy)
        mqadmin = stack.enter_context(Admin(tool, servers.namesrv, VERSION, recording))
        java = stack.enter_context(java_clients(grpc, recording))
        python = stack.enter_context(python_clients(grpc, recording))
        life = Life(servers, relays, recording, grpc, hand, mqadmin, java, python)
        chosen = [name for name in SCENARIOS | MORE if name in (*FIRST, *names)]
        return [name for name in chosen if not _play(life, kind, name, folder)]


def servers_of(peer: str, kind: str) -> PeerServers:
    """The servers that are played, which are not started."""
    settings = {**SETTINGS, "storeType": KINDS[kind]}
    if peer == RucolaServers.name:
        return RucolaServers(settings=OURS, grpc=True)
    if peer == FrontedServers.name:
        return FrontedServers(version=VERSION, settings=settings)
    return ProxiedServers(VERSION, settings, proxy_settings=PROXY_SETTINGS)


def _play(life: Life, kind: str, name: str, folder: Path) -> bool:
    began_s, step = time.monotonic(), (SCENARIOS | MORE)[name]
    life.recording.take()
    try:
        step(life)
    except Exception:  # noqa: BLE001  # whatever it is, the other scenarios are played
        traceback.print_exc()
        return False
    records = [record for record in life.recording.take() if name in SCENARIOS or record["wire"] == "note"]
    write(folder / f"{name}.jsonl.xz", records, _facts(kind, name, step.__doc__))
    print(f"{kind}: {name}: {len(records)} records in {time.monotonic() - began_s:.0f} s", flush=True)
    return True


def _facts(kind: str, name: str, does: str | None) -> dict[str, object]:
    return {
        "scenario": name,
        "does": does,
        "servers": f"name server, broker and proxy {VERSION}, {kind} queues",
        "clients": f"rocketmq-client-java {JAVA_CLIENT}, rocketmq-python-client {PYTHON_CLIENT}, mqadmin {VERSION}",
        "settings": SETTINGS,
        "proxy_settings": PROXY_SETTINGS,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
