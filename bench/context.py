"""What all measurements share: duration of rounds, servers, and the progress display."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from tools.peers.servers import Servers, servers


@dataclass
class Context:
    """Settings of one run.

    Attributes:
        quick: whether rounds are few and short, for a look during development; the ratios vary more.
        stack: ends shared servers with the run.
        show: sets the text of the progress line.
        gib: size of the store of ``archive`` in GiB.
    """

    quick: bool
    stack: ExitStack
    show: Callable[[str], None]
    gib: float = 2.0
    _servers: dict[tuple[str, str], Servers] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Length of one round in seconds."""
        return 1.0 if self.quick else 2.0

    @property
    def rounds(self) -> int:
        """Number of rounds for each side."""
        return 1 if self.quick else 3

    @property
    def warm_up(self) -> int:
        """Number of sends that warm up a Java process before it is measured."""
        return 20_000 if self.quick else 100_000

    def servers(self, name: str, flush: str = "async") -> Servers:
        """Returns the servers of ``rucola`` or ``java``; they start at the first call and run until the end."""
        key = (name, flush)
        if key not in self._servers:
            self.show(f"starting {name} with {flush} flush")
            self._servers[key] = self.stack.enter_context(servers(name, flush))
        return self._servers[key]

    def both(self, flush: str = "async") -> tuple[Servers, Servers]:
        """Returns our servers and the official ones."""
        return self.servers("rucola", flush), self.servers("java", flush)
