"""What every measurement gets: how long to measure, servers that several share, and where to show progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from tools.peers.servers import Servers, servers


@dataclass
class Context:
    """Settings of one run.

    Attributes:
        quick: shorter and fewer rounds, for a look while working; the ratios shake more.
        stack: ends shared servers with the run.
        show: sets the text of the progress line.
    """

    quick: bool
    stack: ExitStack
    show: Callable[[str], None]
    _servers: dict[tuple[str, str], Servers] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Length of one round."""
        return 1.0 if self.quick else 2.0

    @property
    def rounds(self) -> int:
        """Rounds of each side."""
        return 1 if self.quick else 3

    @property
    def warm_up(self) -> int:
        """Sends that a Java process gets before it is measured, for its compiler."""
        return 20_000 if self.quick else 100_000

    def servers(self, name: str, flush: str = "async") -> Servers:
        """``rucola`` or ``java``, started when first asked for and kept for the rest of the run."""
        key = (name, flush)
        if key not in self._servers:
            self.show(f"starting {name} with {flush} flush")
            self._servers[key] = self.stack.enter_context(servers(name, flush))
        return self._servers[key]

    def both(self, flush: str = "async") -> tuple[Servers, Servers]:
        """Ours and the official pair."""
        return self.servers("rucola", flush), self.servers("java", flush)
