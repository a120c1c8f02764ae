"""SeaweedFS, a real S3 server, built from the Go module proxy into ``build/`` of the repository."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

MODULE = "github.com/seaweedfs/seaweedfs"
VERSION = "v0.0.0-20261109003541-7506e5f91cd6"
_PLACE = Path(__file__).parents[2] / "build" / "seaweedfs"
COMMAND = _PLACE / VERSION / "weed"
_PORTS = ("master.port", "volume.port", "filer.port", "s3.port")
_ENVIRONMENT = {"WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}
"""A bucket begins with one volume instead of seven."""
_PR_SET_PDEATHSIG = 1


def build() -> Path:
    """Builds the server unless it is there; downloads and compiles for minutes.

    Raises:
        SystemExit: Go is missing, or it fails.
    """
    if COMMAND.exists():
        return COMMAND
    if shutil.which("go") is None:
        raise SystemExit("seaweedfs: go not found: install Go 1.26 or newer, or test with moto alone")
    begun = time.monotonic()
    print(f"seaweedfs: downloading {MODULE}@{VERSION}", flush=True)
    found = subprocess.run(
        ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"], stdout=subprocess.PIPE, check=False
    )
    if found.returncode:
        raise SystemExit(f"seaweedfs: {json.loads(found.stdout or '{}').get('Error', 'go mod download failed')}")
    print("seaweedfs: compiling 1,700 packages, about 17 minutes of CPU if none is known yet", flush=True)
    source = json.loads(found.stdout)["Dir"]
    made = COMMAND.with_suffix(".new")
    made.parent.mkdir(parents=True, exist_ok=True)
    options = ["-v", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", str(made)]
    arguments = ["nice", "go", "build", *options, "./weed"]
    environ = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    with subprocess.Popen(arguments, cwd=source, env=environ, stderr=subprocess.PIPE, text=True) as compiler:
        assert compiler.stderr is not None
        last: list[str] = []
        for number, line in enumerate(compiler.stderr, 1):
            last = [*last[-20:], line]
            if number % 100 == 0:
                print(f"seaweedfs: {number} packages, {time.monotonic() - begun:.0f} s", flush=True)
    if compiler.returncode:
        raise SystemExit("seaweedfs: go build failed:\n" + "".join(last))
    made.rename(COMMAND)
    print(f"seaweedfs: built in {time.monotonic() - begun:.0f} s: {COMMAND.stat().st_size >> 20} MB", flush=True)
    return COMMAND


def start(directory: Path, access_key: str, secret: str) -> tuple[subprocess.Popen[bytes], int]:
    """Starts master, volume server, filer and S3 gateway as one process, which ends with this one; returns it with the
    port of S3. Its log goes to standard error.
    """
    config = directory / "s3.json"
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    user = {"name": "test", "credentials": [{"accessKey": access_key, "secretKey": secret}], "actions": actions}
    config.write_text(json.dumps({"identities": [user]}))
    ports = _free_ports(2 * len(_PORTS))
    numbers = {name: ports.pop() for name in _PORTS} | {f"{name}.grpc": ports.pop() for name in _PORTS}
    options = {
        "dir": str(directory),
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.electionTimeout": "1s",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": "64",
        "volume.max": "10000",
        "volume.preStopSeconds": "0",
        "filer.localSocket": str(directory / "filer.sock"),
        "s3.localSocket": str(directory / "s3.sock"),
        "s3.config": str(config),
        "s3.port.iceberg": "0",
        "s3.port.lance": "0",
        "s3.autoCreateBucket": "false",
        **{name: str(number) for name, number in numbers.items()},
    }
    arguments = [
        str(COMMAND),
        "-logtostderr",
        "server",
        "-s3",
        *(f"-{name}={value}" for name, value in options.items()),
    ]
    process = subprocess.Popen(
        arguments,
        cwd=directory,
        env=os.environ | _ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - this process has one thread
    )
    return process, numbers["s3.port"]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills the server, and removes its sockets, which it has in a fixed place."""
    process.kill()
    process.wait()
    for port in re.findall(r"port[.a-z]*=(\d+)", str(process.args)):
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            path.unlink()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
