"""A real etcd as a process: Debian's ``etcd-server``, or what ``PATH`` has.

If it is not installed, its package is fetched with apt and unpacked below ``.peers``; nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from tools.peers.packages import PEERS, PeerError
from tools.peers.servers import free_port, wait_for_port


@cache
def etcd_program() -> str:
    """Path of ``etcd``.

    Raises:
        PeerError: it is not installed, and apt does not give it.
    """
    unpacked = PEERS / "etcd" / "usr" / "bin" / "etcd"
    found = shutil.which("etcd") or (str(unpacked) if unpacked.exists() else None)
    if found:
        return found
    with tempfile.TemporaryDirectory(prefix="rucola-etcd-") as directory:
        command = ["apt-get", "download", "etcd-server"]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        packages = list(Path(directory).glob("etcd-server_*.deb"))
        if done.returncode or not packages:
            raise PeerError(f"no etcd: install etcd-server ({' '.join(command)}: {done.stderr.strip()[-200:]})")
        subprocess.run(["dpkg-deb", "-x", str(packages[0]), str(PEERS / "etcd")], check=True)
    return str(unpacked)


class Etcd:
    """One member on free ports of 127.0.0.1, with a directory of its own; use it as ``with``.

    Args:
        certificates: folder with certificates that ``make_certificates`` has made, for TLS with certificates of both
            sides; None for none.

    Attributes:
        url: where it serves clients.
    """

    def __init__(self, certificates: Path | None = None) -> None:
        self._certificates = certificates
        self._directory = Path(tempfile.mkdtemp(prefix="rucola-etcd-"))
        self._port, self._peer_port = free_port(), free_port()
        self.url = f"{'http' if certificates is None else 'https'}://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        """Starts it, with the data that it has."""
        peer = f"http://127.0.0.1:{self._peer_port}"
        command = [etcd_program(), "--data-dir", str(self._directory / "data"), "--log-level", "error"]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"default={peer}", "--initial-cluster-token", f"t{time.time_ns()}"]
        if self._certificates is not None:
            command += ["--cert-file", str(self._certificates / "server.pem"), "--client-cert-auth"]
            command += ["--key-file", str(self._certificates / "server.key")]
            command += ["--trusted-ca-file", str(self._certificates / "authority.pem")]
        with (self._directory / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory)
        wait_for_port(self._port)

    def kill(self) -> None:
        """Kills it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def forget(self) -> None:
        """Removes its data; it must not run. The next start makes another cluster of the same name."""
        shutil.rmtree(self._directory / "data")

    def stop(self) -> None:
        """Stops it for a while: it answers nothing, and its connections stay."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Ends what ``stop`` began."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def post(self, path: str, body: bytes) -> bytes:
        """Sends one call to its JSON gateway."""
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: bytes = answer.read()
            return found
