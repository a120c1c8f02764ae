"""One request of a visitor, as views see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from rucola.console.access.sessions import BrokerAccount, VisitSession
from rucola.console.cluster.watches import Watch
from rucola.console.config import ConsoleConfig
from rucola.console.desks import Desks

COUNT_MAX = 1_000


class NotFoundError(Exception):
    """There is no such object. ``args[0]`` says which one; the page says that, not that it is empty."""


class NotPermittedError(Exception):
    """The visitor may not see it; ``args[0]`` says what he needs."""


class BadQueryError(Exception):
    """A parameter of an address has a value that is not allowed.

    Args:
        name: the parameter.
        value: what was given.
        allowed: what is allowed.
    """

    def __init__(self, name: str, value: str, allowed: str) -> None:
        super().__init__(name, value, allowed)
        self.name, self.value, self.allowed = name, value, allowed

    def __str__(self) -> str:
        return f"{self.name}={self.value[:100]!r} is not allowed; allowed: {self.allowed}"


@dataclass(frozen=True, slots=True)
class Visit:
    """A visitor's request for a cluster.

    Attributes:
        watch: the cluster, as the visitor's account sees it.
        session: the visitor's session; None for scripts.
        peer: address of the visitor.
        config: options of the console.
        audited: returns the newest changes of the audit log, at most so many.
        now_ms: returns the time, in ms since 1970.
        desks: what works for all visitors.
    """

    watch: Watch
    session: VisitSession | None
    peer: str
    config: ConsoleConfig
    audited: Callable[[int], Awaitable[list[dict[str, Any]]]]
    now_ms: Callable[[], int]
    desks: Desks

    @property
    def cluster(self) -> str:
        """Name of the cluster in addresses."""
        return self.watch.at.name

    @property
    def account(self) -> BrokerAccount:
        """The account that signs the visitor's requests."""
        return self.watch.account

    @property
    def may_see_bodies(self) -> bool:
        """Whether the visitor may see the content of messages."""
        return self.config.may_see_bodies(self.account.name)

    @property
    def may_change(self) -> bool:
        """Whether the console makes changes for this visitor; the brokers decide as well."""
        return not self.config.read_only and not (self.session is not None and self.session.is_read_only)
