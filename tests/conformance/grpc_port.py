"""Our gRPC server judged by programs of others: ``python -m tests.conformance.grpc_port``.

h2spec (RFC 7540 and 7541, strict) must pass all of its cases. grpcurl, which is made with grpc-go, must find the
services by reflection, and the health service must answer it and grpcio. Exit status: 0 if all is well, 1 if not, 2 if
a program cannot be had.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from tools.peers.packages import PeerError, go_tool

from rucola.grpc.health import HEALTH_V1, HealthService
from rucola.grpc.reflection import REFLECTION_V1, ReflectionService
from rucola.grpc.server import GrpcServer
from rucola.proxy.schema import V2

H2SPEC = ("github.com/summerwind/h2spec/cmd/h2spec", "v2.2.1+incompatible")
GRPCURL = ("github.com/fullstorydev/grpcurl/cmd/grpcurl", "v1.9.4")
CASES = 146
"""Cases of this version of h2spec."""
TIMEOUT_S = 120


def main() -> int:
    """Runs everything; prints a line for each check."""
    try:
        h2spec, grpcurl = str(go_tool(*H2SPEC)), str(go_tool(*GRPCURL))
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    with _served() as port:
        return 0 if all([_h2spec(h2spec, port), _grpcurl(grpcurl, port), _grpcio(port)]) else 1


@contextmanager
def _served() -> Iterator[int]:
    """Serves health and reflection in a thread; yields the port."""
    loop = asyncio.new_event_loop()
    methods = {**HealthService(V2.service).methods(), **ReflectionService([V2, HEALTH_V1]).methods()}
    server = GrpcServer(methods, "127.0.0.1", 0, time.monotonic)
    loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.port
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(1), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _h2spec(program: str, port: int) -> bool:
    output = _output([program, "--strict", "-h", "127.0.0.1", "-p", str(port)])
    found = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", output)
    counts = tuple(map(int, found.groups())) if found else ()
    passed = counts == (CASES, CASES, 0, 0)
    print(f"h2spec: {found[0] if found else output[-2000:]}" if passed or not found else output)
    return passed


def _grpcurl(program: str, port: int) -> bool:
    """Whether grpcurl learns by reflection what is offered."""
    address = f"127.0.0.1:{port}"
    services = _output([program, "-plaintext", address, "list"]).split()
    text = _output([program, "-plaintext", address, "describe", V2.service])
    methods = re.findall(r"rpc (\w+) ", text)
    health = _output([program, "-plaintext", address, f"{HEALTH_V1.service}/Check"])
    passed = (
        services == sorted([V2.service, HEALTH_V1.service, REFLECTION_V1.service])
        and sorted(methods) == sorted(rpc.name for rpc in V2.rpcs)
        and json.loads(health) == {"status": "SERVING"}
    )
    print(f"grpcurl: {len(services)} services, {len(methods)} methods, health {json.loads(health)['status']}")
    return passed


def _grpcio(port: int) -> bool:
    """Whether grpcio's client gets the health of the server."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = channel.unary_unary(HEALTH_V1.path("Check").decode())(b"", timeout=TIMEOUT_S)
    response = HEALTH_V1.message_class("HealthCheckResponse").FromString(answer)
    print(f"grpcio: health {response.status}")
    return bool(response.status == 1)


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
