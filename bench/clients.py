"""Compares four clients with the same official broker: ``python -m bench.clients [--messages N] [--rounds N]``.

The clients are ours, the official Java client, PyPI's ``rocketmq`` (C++ inside) and the official Python client, which
speaks gRPC and therefore uses the official proxy. Messages have 1 KiB. Sending keeps 64 messages in flight. Each round
of a push consumer uses a new group. Rounds of the clients alternate. For each client the table shows the median rate
and the median CPU time per message. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack

from tools.peers.packages import PeerError, python_packages
from tools.peers.servers import JavaServers, ProxiedServers

from bench.program import Program, java_load, others_stopped, python_load

CPP, GRPC = "rocketmq==0.4.4", "rocketmq-python-client==5.1.2"
CLIENTS = ("rucola", "java", "cpp", "grpc")
WHAT = ("send", "consume")
IN_FLIGHT, BODY_BYTES = 64, 1024
SLOW = 20
"""Divisor for the number of messages in a round of the gRPC client, which takes longer per message."""


def main(arguments: list[str]) -> int:
    """Measures the clients and prints their figures; returns exit status 2 if a client is not available."""
    parser = argparse.ArgumentParser(prog="python -m bench.clients", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, help="messages in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--client", action="append", choices=CLIENTS, help="only these; all unless given")
    parser.add_argument("--what", action="append", choices=WHAT, help="only this; both unless given")
    options = parser.parse_args(arguments)
    clients = options.client or CLIENTS
    try:
        with ExitStack() as stack:
            servers = stack.enter_context(ProxiedServers() if "grpc" in clients else JavaServers())
            for what in options.what or WHAT:
                _fill(servers, f"bench_clients_{what}", options.messages if what == "consume" else 1)
                with ExitStack() as running:
                    programs = {name: running.enter_context(_program(name, what, servers)) for name in clients}
                    _measure(what, programs, options.messages, options.rounds)
    except PeerError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _program(client: str, what: str, servers: JavaServers) -> Program:
    topic, body = f"bench_clients_{what}", str(BODY_BYTES)
    if client == "rucola":
        return python_load("load_client" if what == "send" else "load_push", what, servers.namesrv, topic, body)
    if client == "java":
        return java_load("SendLoad" if what == "send" else "ConsumeLoad", servers.namesrv, topic, body)
    if client == "cpp":
        packages = python_packages("python-cpp", CPP)
        return python_load("load_others", client, what, servers.namesrv, topic, body, str(packages))
    assert isinstance(servers, ProxiedServers)
    packages = python_packages("python-grpc", GRPC, alone=False)
    return python_load("load_others", client, what, servers.proxy, topic, body, str(packages))


def _fill(servers: JavaServers, topic: str, messages: int) -> None:
    """Sends the messages to consume. This also creates the topic, which the gRPC client does not do."""
    with python_load("load_client", "send", servers.namesrv, topic, str(BODY_BYTES)) as program:
        program.round(f"{IN_FLIGHT} {messages}")


def _lines(client: str, what: str, messages: int) -> Iterator[str]:
    """Returns the input lines for the rounds of a client."""
    wanted = messages // (SLOW if client == "grpc" else 1)
    for number in itertools.count():
        if what == "consume":
            yield f"clients_{client}_{number} {wanted}"
        else:
            yield f"{IN_FLIGHT} {wanted}" + (" 0" if client == "java" else "")


def _measure(what: str, programs: dict[str, Program], messages: int, rounds: int) -> None:
    lines = {name: _lines(name, what, messages) for name in programs}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for number in range(rounds + 1):
        for name, program in programs.items():
            with others_stopped(list(programs.values()), program):
                one = program.round(next(lines[name]))
            if number:  # The first round warms up Java's compiler and the routes.
                taken[name].append((one.rate, one.load_us))
    print(f"{what:8} {'messages/s':>12} {'CPU us/message':>15}")
    for name, figures in taken.items():
        rate, cpu_us = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"{name:8} {rate:12,.0f} {cpu_us:15.1f}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
