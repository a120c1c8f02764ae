"""Spark's source and sink against the official servers: ``python -m tests.conformance.spark``.

The tests of ``tests/spark`` run here, too. Where they start, kill or stop a broker, it is an official one with its name
server. Exit status: 0 if all passed, 1 if a test failed, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.spark.conftest import SERVERS_VARIABLE, BrokerProcess
from tools.peers.packages import PeerError, server_classpath
from tools.peers.servers import JavaServers

VERSIONS = ("4.9.7", "5.3.3")
SUITE = Path(__file__).resolve().parents[1] / "spark"
NO_PEER = ("test_flights_tables.py", "test_beside_production.py")
"""Files whose tests do not start a broker, and one for which ``tests.conformance.analytics`` has an official master."""
TEST_TIMEOUT_S = 240


class _Servers(JavaServers):
    """The official servers, which can be started again and again."""

    def start(self) -> None:
        """Starts name server and broker at their earlier addresses."""
        folder = self._temporary / "home" / "conf"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("namesrv", "broker"):  # servers before 5.0 do not start without logging files
            (folder / f"logback_{name}.xml").write_text("<configuration/>\n")
        self._start()

    def end(self, *, kill: bool) -> None:
        """Ends the broker, then the name server."""
        for process in reversed(self._processes):
            process.kill() if kill else process.terminate()
        for process in self._processes:
            process.wait(TEST_TIMEOUT_S)
        self._processes.clear()


class OfficialBroker(BrokerProcess):
    """An official name server and broker, restarted on the same directory."""

    def __init__(self, directory: Path, version: str) -> None:
        super().__init__(directory)
        settings = dict(line.split("=") for line in self._config.read_text().split())
        self._servers = _Servers(store=self.store, version=version, settings=settings)

    def start(self) -> None:
        """Starts name server and broker, and waits until they are ready."""
        self._servers.start()
        self.namesrv = self._servers.namesrv

    def kill(self) -> None:
        """Sends SIGKILL; returns when the processes are gone."""
        self._servers.end(kill=True)

    def stop(self) -> None:
        """Stops both servers cleanly; does nothing if they do not run."""
        self._servers.end(kill=False)


def main(arguments: list[str]) -> int:
    """Runs the suite once for each version."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.spark", description=__doc__)
    parser.add_argument("--version", action="append", choices=VERSIONS, help="only this version; all by default")
    parser.add_argument("-k", default="", metavar="EXPRESSION", help="only the tests that pytest -k selects")
    options = parser.parse_args(arguments)
    tests = [str(path) for path in sorted(SUITE.glob("test_*.py")) if path.name not in NO_PEER]
    chosen = ["-k", options.k] if options.k else []
    passed = True
    for version in options.version or VERSIONS:
        try:
            server_classpath(version)  # downloads before the tests, whose time is limited
        except PeerError as error:
            print(f"conformance: {error}", file=sys.stderr)
            return 2
        print(f"Spark's source and sink against RocketMQ {version}", flush=True)
        limits = ["-q", "-p", "no:xdist", "--timeout", str(TEST_TIMEOUT_S), "--show-capture=no"]
        command = [sys.executable, "-m", "pytest", *limits, *chosen, *tests]
        passed &= subprocess.run(command, env={**os.environ, SERVERS_VARIABLE: version}, check=False).returncode == 0
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
