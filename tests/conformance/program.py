"""A running program that plays scenarios."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from tools.peers.packages import PEERS, PeerError
from tools.peers.servers import Servers


class ScenarioProgram:
    """A program that prints one JSON line for each scenario, and may request a restart of the servers. Use this class
    in a ``with`` statement.

    Attributes:
        code: exit code once all outcomes are read; negative after a time-out.
    """

    def __init__(
        self, command: list[str], target: Servers | None, timeout_s: float, environment: Mapping[str, str]
    ) -> None:
        """Args:
        target: the servers that a scenario may restart; None if it cannot.
        timeout_s: seconds after which the program is ended.
        """
        self.code = 0
        self._command, self._target, self._timeout_s, self._environment = command, target, timeout_s, environment
        self._errors: list[str] = []

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            cwd=PEERS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            text=True,
        )
        self._timer = threading.Timer(self._timeout_s, self._process.kill)
        self._timer.start()
        self._drain = threading.Thread(target=lambda: self._errors.extend(self._process.stderr or ()), daemon=True)
        self._drain.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        self.code = self._process.wait()
        self._timer.cancel()
        self._drain.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def outcomes(self) -> Iterator[dict[str, Any]]:
        """Yields the outcomes of scenarios as they end. When the program requests it, kills the servers with SIGKILL
        and restarts them.
        """
        assert self._process.stdin is not None
        for line in self._process.stdout or ():
            if line.startswith('{"restart"'):
                if self._target is None:
                    raise PeerError("a scenario wants to restart servers that are not ours")
                self._target.restart()
                self._process.stdin.write("\n")
                self._process.stdin.flush()
            elif line.startswith("{"):
                outcome: dict[str, Any] = json.loads(line)
                yield outcome

    def errors(self) -> str:
        """Returns what the program wrote to its error stream."""
        return "".join(self._errors)
