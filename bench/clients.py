"""Four clients against the official broker in one run: ``python -m bench.clients [--messages N] [--rounds N]``.

Ours, the official Java client, PyPI's ``rocketmq`` (C++ inside) and the official Python client, which speaks gRPC and
so goes through the official proxy. 1 KiB, 64 sends under way, rounds in turns; of each the median rate and the median
CPU time of the client for a message. Meant for a quiet machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from contextlib import ExitStack

from tools.peers.packages import PeerError, python_packages
from tools.peers.servers import JavaServers, ProxiedServers

from bench.program import Program, java_load, others_stopped, python_load
from rucola import Message
from rucola.sync import Producer

CPP, GRPC = "rocketmq==0.4.4", "rocketmq-python-client==5.1.2"
CLIENTS = ("rucola", "java", "cpp", "grpc")
IN_FLIGHT, BODY_BYTES = 64, 1024
SLOW = 20
"""The gRPC client sends so many times fewer messages in a round: it takes long enough."""


def main(arguments: list[str]) -> int:
    """Measure and print; 2 when a peer cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m bench.clients", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--client", action="append", choices=CLIENTS, help="only these; all unless given")
    options = parser.parse_args(arguments)
    clients = options.client or CLIENTS
    try:
        with ExitStack() as stack:
            servers = stack.enter_context(ProxiedServers() if "grpc" in clients else JavaServers())
            programs = {name: stack.enter_context(_program(name, servers)) for name in clients}
            _measure(programs, options.messages, options.rounds)
    except PeerError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _program(client: str, servers: JavaServers) -> Program:
    topic, body = "bench_clients", str(BODY_BYTES)
    if client == "rucola":
        return python_load("load_client", "send", servers.namesrv, topic, body)
    if client == "java":
        return java_load("SendLoad", servers.namesrv, topic, body)
    if client == "cpp":
        return python_load("load_others", client, servers.namesrv, topic, body, str(python_packages("python-cpp", CPP)))
    assert isinstance(servers, ProxiedServers)
    with Producer("bench_clients", servers.namesrv) as producer:
        producer.send(Message(topic, b"makes the topic, which this client does not"))
    packages = str(python_packages("python-grpc", GRPC, alone=False))
    return python_load("load_others", client, servers.proxy, topic, body, packages)


def _measure(programs: dict[str, Program], messages: int, rounds: int) -> None:
    lines = {name: f"{IN_FLIGHT} {messages // (SLOW if name == 'grpc' else 1)}" for name in programs}
    if "java" in lines:
        lines["java"] += " 0"
    for name, program in programs.items():  # Java's compiler, and routes
        program.round(lines[name])
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            with others_stopped(list(programs.values()), program):
                one = program.round(lines[name])
            taken[name].append((one.rate, one.load_cpu_s / one.messages * 1e6))
    print(f"{'client':8} {'messages/s':>12} {'CPU us/message':>15}")
    for name, figures in taken.items():
        rate, cpu_us = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"{name:8} {rate:12,.0f} {cpu_us:15.1f}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
