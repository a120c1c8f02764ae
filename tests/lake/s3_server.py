"""S3 servers for tests, each in a process of its own on a free port of 127.0.0.1.

``moto`` is the short form for each run of the tests. ``seaweedfs`` is a real server, for ``make lake``;
``python -m tests.lake.s3_server build`` builds it. Both check signatures and refuse the second write of
``If-None-Match: *``.

A server ends with its ``with`` block, and also if the test's process is killed: it watches a pipe that the system then
closes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Self

from tests.lake import seaweedfs
from tests.lake.s3_client import REGION, S3Client

MOTO, SEAWEEDFS = "moto", "seaweedfs"
ACCESS_KEY, SECRET = "AKIARUCOLATEST", "secret/of+the+tests+0123456789"
_ROOT = Path(__file__).parents[2]
_READY_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 10.0
_PAUSE_S = 0.05


class S3Server:
    """A server; use it as ``with``.

    Args:
        directory: for its data and its log; is created.
        kind: ``"moto"`` or ``"seaweedfs"``.
    """

    region = REGION

    def __init__(self, directory: Path, kind: str = MOTO, access_key: str = ACCESS_KEY, secret: str = SECRET) -> None:
        self.kind, self.access_key, self.secret = kind, access_key, secret
        self.endpoint = ""
        self._directory = directory

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._log = self._directory / "server.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.lake.s3_server", "serve", self.kind, str(self._directory)],
                cwd=_ROOT,
                env=os.environ | {"RUCOLA_S3_KEYS": f"{self.access_key} {self.secret}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        timer = threading.Timer(_READY_TIMEOUT_S, self._process.kill)
        timer.start()
        assert self._process.stdout is not None
        port = self._process.stdout.readline().decode().strip()
        timer.cancel()
        timer.join()
        if not port:
            self._end()
            raise RuntimeError(f"{self.kind} did not start:\n{self._log.read_text(errors='replace')[-3000:]}")
        self.endpoint = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end()

    @property
    def pid(self) -> int:
        return self._process.pid

    def client(self) -> S3Client:
        return S3Client(self.endpoint, self.access_key, self.secret)

    def bucket(self) -> str:
        """Creates a bucket under a new name."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        with self.client() as client:
            answer = client.put(f"/{name}")
        assert answer.status == 200, answer
        return name

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def servers() -> list[str]:
    """Kinds of servers that are there."""
    return [MOTO, *([SEAWEEDFS] if seaweedfs.COMMAND.exists() else [])]


def _serve(kind: str, directory: Path) -> None:
    """Serves until standard input ends; writes the port to standard output as soon as objects can be written."""
    access_key, secret = os.environ.pop("RUCOLA_S3_KEYS").split(" ")
    if kind == MOTO:
        from tests.lake.moto_server import make_server

        server = make_server(directory, access_key, secret)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.port, flush=True)
        sys.stdin.read()
        os._exit(0)  # requests that are still served have nobody who waits for them
    process, port = seaweedfs.start(directory, access_key, secret)
    try:
        _wait_for_writes(process, S3Client(f"http://127.0.0.1:{port}", access_key, secret))
        print(port, flush=True)
        sys.stdin.read()
    finally:
        seaweedfs.end(process)


def _wait_for_writes(process: subprocess.Popen[bytes], client: S3Client) -> None:
    """Waits until the server can place an object: it accepts requests before it has volumes."""
    while process.poll() is None:
        try:
            with client:
                client.put("/ready")
                if client.put("/ready/object", b"x" * 10_000).status == 200:
                    return
        except OSError:
            pass
        time.sleep(_PAUSE_S)
    raise SystemExit(f"seaweedfs ended with status {process.returncode}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["build"]:
            seaweedfs.build()
        case ["serve", kind, directory]:
            _serve(kind, Path(directory))
        case _:
            raise SystemExit("usage: python -m tests.lake.s3_server build")
