"""What all measurements share: duration of rounds, servers, and the progress display."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tools.peers.servers import RucolaServers, Servers, servers

from bench.program import Program, java_load, python_load


@dataclass
class Context:
    """Settings of one run.

    Attributes:
        quick: whether rounds are few and short, for use during development; the ratios then vary more.
        stack: stops the shared servers when the run ends.
        show: sets the text of the progress line.
        gib: size of the store of ``archive`` in GiB.
        before: working tree of an earlier version, which is measured instead of the official programs.
        rounds_wanted: number of rounds for each side; None for the usual number.
    """

    quick: bool
    stack: ExitStack
    show: Callable[[str], None]
    gib: float = 2.0
    before: Path | None = None
    rounds_wanted: int | None = None
    _servers: dict[tuple[str, str], Servers] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Length of one round in seconds."""
        return 1.0 if self.quick else 2.0

    @property
    def rounds(self) -> int:
        """Number of rounds for each side."""
        return self.rounds_wanted or (1 if self.quick else 3)

    @property
    def warm_up(self) -> int:
        """Number of sends that warm up a Java process before it is measured."""
        return 20_000 if self.quick else 100_000

    def servers(self, name: str, flush: str = "async") -> Servers:
        """Returns the servers of ``rucola``, ``java`` or ``before``; they start at the first call and run until the
        end.
        """
        key = (name, flush)
        if key not in self._servers:
            self.show(f"starting {name} with {flush} flush")
            made = RucolaServers(flush, tree=self.before) if self.before and name == "before" else servers(name, flush)
            self._servers[key] = self.stack.enter_context(made)
        return self._servers[key]

    def ended_servers(self) -> str:
        """Exit codes and the ends of the logs of servers that have ended; empty if all of them run."""
        ended = [(name, known) for (name, _), known in self._servers.items() if known.exit_codes]
        return "".join(f"; {name} ended with {known.exit_codes}, its log:\n{known.log()}" for name, known in ended)

    def both(self, flush: str = "async") -> tuple[Servers, Servers]:
        """Returns our servers and those for comparison: the official ones, or those of an earlier version."""
        return self.servers("rucola", flush), self.servers("before" if self.before else "java", flush)

    def other_store(self, *arguments: str) -> Program:
        """Starts the load program of the store to compare with: the official store, or an earlier version's."""
        if self.before is not None:
            return python_load("load_store", *arguments, tree=self.before)
        return java_load("StoreLoad", *arguments)
