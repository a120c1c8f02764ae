"""What a gRPC server costs that stores nothing: ``python -m bench.grpc_floor [--rounds N] [--messages N]``.

The load is the official Java client of RocketMQ 5, 1 KiB, with 1, 16 and 64 threads. The servers are ``rucola.grpc``
with and without signed requests, and grpcio with ``asyncio``; rounds of the servers alternate. The table shows medians
of the server's CPU time per message, and of the rate. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tools.peers.packages import ROOT, PeerError, java_program, need
from tools.peers.servers import cpu_seconds

from bench.program import HEAP, Program, Round, others_stopped

CLIENT_VERSION = "5.0.7"
BODY_BYTES = 1024
THREADS = (1, 16, 64)
KEYS = ("floor", "secret")
SERVERS = {"rucola": ("rucola",), "rucola, signed": ("rucola", *KEYS), "grpcio, asyncio": ("grpcio",)}
WARM_ROUNDS = 2


@dataclass
class FloorServer:
    """A running server, as ``Program`` wants it."""

    name: str
    port: int
    process: subprocess.Popen[str]

    @property
    def pids(self) -> list[int]:
        """The one process."""
        return [self.process.pid]

    def settle(self) -> None:
        """Serves again at once."""

    def cpu_seconds(self) -> float:
        """Its CPU time so far."""
        return cpu_seconds(self.process.pid)


def main(arguments: list[str]) -> int:
    """Measures and prints the table; returns exit status 2 if something is missing."""
    parser = argparse.ArgumentParser(prog="python -m bench.grpc_floor", description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000, help="messages in each round with 16 and 64 threads")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    try:
        with ExitStack() as stack:
            loads = {name: stack.enter_context(_load(name, *words)) for name, words in SERVERS.items()}
            print("| server | threads | server CPU per message, µs | messages/s |\n|---|---:|---:|---:|")
            for threads in THREADS:
                messages = options.messages // (4 if threads == 1 else 1)
                rounds = _rounds(loads, threads, messages, options.rounds)
                for name, of in rounds.items():
                    cost = statistics.median(one.server_us for one in of)
                    rate = statistics.median(one.rate for one in of)
                    print(f"| {name} | {threads} | {cost:.1f} | {rate:,.0f} |", flush=True)
    except PeerError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _rounds(loads: dict[str, Program], threads: int, messages: int, count: int) -> dict[str, list[Round]]:
    rounds: dict[str, list[Round]] = {name: [] for name in loads}
    for number in range(count + WARM_ROUNDS):
        for name, load in loads.items():
            with others_stopped(list(loads.values()), load):
                one = load.round(f"{threads} {messages}")
            if number >= WARM_ROUNDS:
                rounds[name].append(one)
    return rounds


@contextmanager
def _load(name: str, *words: str) -> Iterator[Program]:
    with _server(name, *words) as server:
        classpath = java_program(ROOT / "bench" / "java-grpc", CLIENT_VERSION)
        java = need("java", "install Java 17 to run the official client")
        command = [java, *HEAP, "-cp", classpath, "load.GrpcSendLoad", f"127.0.0.1:{server.port}", "floor"]
        with Program([*command, str(BODY_BYTES), *words[1:]], server) as program:
            yield program


@contextmanager
def _server(name: str, *words: str) -> Iterator[FloorServer]:
    command = [sys.executable, "-m", "bench.grpc_floor_server", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield FloorServer(name, json.loads(process.stdout.readline())["port"], process)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
