"""A client in a process of its own. It prints a line for each thing that happens: a letter, and what it is about. ``R``
says that it has started.
"""

from __future__ import annotations

import os
import subprocess
import threading
from abc import ABC, abstractmethod

from tools.peers.packages import PEERS, PeerError

START_S = 60.0


class ClientProcess(ABC):
    """A client, which may be killed and started again.

    Args:
        name: what it is called in errors.
        command: starts it.
    """

    def __init__(self, name: str, command: list[str]) -> None:
        self.name, self._command = name, command

    def start(self) -> None:
        """Starts the process and waits until it works.

        Raises:
            PeerError: it does not start.
        """
        started = threading.Event()
        process = self._process = subprocess.Popen(
            self._command,
            cwd=PEERS,
            env={**os.environ, "HOME": str(PEERS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

        def read() -> None:
            for line in process.stdout or ():
                kind, _, rest = line.strip().partition(" ")
                if kind == "R":
                    started.set()
                else:
                    self.heard(kind, rest)

        threading.Thread(target=read, daemon=True).start()
        if not started.wait(START_S):
            self.kill()
            raise PeerError(f"the {self.name} did not start")

    @abstractmethod
    def heard(self, kind: str, rest: str) -> None:
        """Takes a line. Called in another thread."""

    def say(self, line: str) -> None:
        """Sends a line to the process."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Kills the process with SIGKILL."""
        self._process.kill()
        self._process.wait()
