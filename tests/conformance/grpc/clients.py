"""The official clients of RocketMQ 5, and the programs with scenarios on them."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.grpc.scenarios import ACCOUNT, SCRIPTED
from tools.peers.packages import PEERS, go_program, java_program, need, node_program, rust_program

HERE = Path(__file__).resolve().parent
PYTHON_PATH = os.pathsep.join(str(folder) for folder in (HERE.parents[2], HERE.parents[2] / "src"))


@dataclass(frozen=True)
class Client:
    """One version of an official client."""

    language: str
    version: str

    def command(self) -> list[str]:
        """Returns the command line of the program with scenarios, without arguments. Compiles it if it has changed."""
        if self.language == "python":
            return [sys.executable, str(HERE / "python_client.py")]
        if self.language == "scripted":
            return [sys.executable, "-m", "tests.conformance.grpc.scripted"]
        if self.language == "rust":
            return [str(rust_program(HERE / "rust"))]
        if self.language == "node":
            node = need("node", "install Node.js 18 or newer to run the official Node.js client")
            return [node, str(node_program(HERE / "node") / "scenarios.js")]
        if self.language == "go":
            return [str(go_program(HERE / "go"))]
        java = need("java", "install Java 17 to run the official Java client")
        classpath = java_program(HERE / "java", self.version)
        return [java, "-Xmx512m", f"-Duser.home={PEERS}", "-cp", classpath, "scenarios.Main"]

    def plays(self, scenario: str) -> bool:
        """Whether the program has this scenario."""
        return scenario.startswith(SCRIPTED) == (self.language == "scripted")

    def __str__(self) -> str:
        return f"{self.language} {self.version}"


CLIENTS = (
    Client("rust", "5.0.0"),
    Client("python", "5.1.2"),
    Client("java", "5.2.0"),
    Client("java", "5.0.7"),
    Client("java", "5.0.3"),
    Client("node", "1.0.8"),
    Client("go", "5.1.3"),
    Client("scripted", "1"),
)
"""Rust comes first: its polls take 22 s and cannot be cut short. Java 5.0.3 uses TLS, which it cannot switch off; the
others use plain connections, except in the scenario ``tls``.
"""


def environment(authority: Path | None) -> Mapping[str, str]:
    """Environment of the programs.

    Args:
        authority: PEM file that signs the server's certificate, for clients that verify it (Python, Node.js); None if
            it is not known.
    """
    found = {**os.environ, "HOME": str(PEERS), "PYTHONPATH": PYTHON_PATH}  # at home, clients write their logs
    found |= {"ACCOUNT_NAME": ACCOUNT.name, "ACCOUNT_SECRET": ACCOUNT.secret}
    return found | ({"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority)} if authority else {})
