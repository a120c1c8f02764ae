"""Plays the scenarios of several clients at the same time against one server.

Clients mostly wait: for a message that becomes visible again, or for a poll that ends. Each scenario has its own topic
and group, so scenarios do not meet. Afterwards, each scenario that kills the server is played alone, and each that
broke off is played once more, alone: the first call of a client on a busy machine may take longer than the client
waits.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from tests.conformance.grpc.clients import CLIENTS, Client, environment
from tests.conformance.grpc.outcomes import Outcomes, masked
from tests.conformance.grpc.scenarios import RESTARTING, SCENARIOS
from tests.conformance.grpc.targets import Target
from tests.conformance.program import ScenarioProgram

CLIENT_TIMEOUT_S = 900
PARTS = 2
"""Programs that share the scenarios of a client."""


@dataclass(frozen=True)
class Part:
    """Scenarios that one program plays, one after the other.

    Attributes:
        prefix: of the names of topics and groups.
    """

    client: Client
    prefix: str
    names: tuple[str, ...]


class Play:
    """One run of clients against a server.

    Args:
        target: the server.
        found: gets what the clients saw, masked.
        keep: called after each scenario.
        at_once: how many programs run at the same time.
    """

    def __init__(
        self, target: Target, found: Outcomes, console: Console, keep: Callable[[], None], at_once: int
    ) -> None:
        self._target, self._found, self._console, self._keep, self._at_once = target, found, console, keep, at_once
        self._lock = threading.Lock()
        self._run = f"c{int(time.time()):x}"
        self._commands: dict[Client, list[str]] = {}

    def play(self, clients: Sequence[Client], chosen: Sequence[str]) -> None:
        """Plays the chosen scenarios of all clients, except those that are in ``found`` already."""
        wanted = {client: self._missing(client, chosen) for client in clients}
        self._commands = {client: client.command() for client in clients if wanted[client]}  # compiles one by one
        together = [part for client in clients for part in self._parts(client, wanted[client])]
        with ThreadPoolExecutor(self._at_once) as pool:
            list(pool.map(self._play, together))
        for client in clients:
            for name in self._missing(client, chosen):
                self._play(self._part(client, (name,), 1))

    def _missing(self, client: Client, chosen: Sequence[str]) -> list[str]:
        saws = self._found.setdefault(str(client), {})
        whole = {name for name, saw in saws.items() if "broken" not in saw}
        return [name for name in chosen if client.plays(name) and self._target.serves(name) and name not in whole]

    def _parts(self, client: Client, names: Sequence[str]) -> list[Part]:
        rest = [name for name in names if name != RESTARTING]
        shares = [tuple(rest[first::PARTS]) for first in range(PARTS)]
        return [self._part(client, share, 0) for share in shares if share]

    def _part(self, client: Client, names: tuple[str, ...], turn: int) -> Part:
        return Part(client, f"{self._run}_{turn * len(CLIENTS) + CLIENTS.index(client)}_", names)

    def _play(self, part: Part) -> None:
        """Plays one part; a program that ends too early leaves its other scenarios broken off."""
        command = [*self._commands[part.client], self._target.endpoints, part.prefix, *part.names]
        admin = self._target.admin()
        admin.prepare(part.prefix, part.names)
        missing, began_s = dict.fromkeys(part.names), time.monotonic()
        variables = environment(self._target.authority)
        with ScenarioProgram(command, self._target.servers, CLIENT_TIMEOUT_S, variables) as program:
            for line in program.outcomes():
                name, saw = line["name"], line["saw"]
                missing.pop(name)
                if SCENARIOS[name].dead and saw.get("supported", True):
                    saw["dead_letters"] = admin.dead_letters(part.prefix, name)
                self._note(part.client, name, saw, time.monotonic() - began_s)
                began_s = time.monotonic()
        for name in missing:
            saw = {"broken": "the program ended", "exit": program.code, "text": program.errors()[-1500:]}
            self._note(part.client, name, saw, time.monotonic() - began_s)

    def _note(self, client: Client, name: str, saw: dict[str, Any], took_s: float) -> None:
        line = f"{client!s:12} {name:18} {took_s:5.1f} s {json.dumps(saw, ensure_ascii=False)}"
        with self._lock:
            self._found[str(client)][name] = masked(saw)
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
            self._keep()
