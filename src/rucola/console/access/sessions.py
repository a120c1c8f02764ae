"""Sessions of visitors, in memory only: a restart ends all of them. The cookie holds a random name and nothing else."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

IDLE_S: Final = 30 * 60
"""A session ends after so many seconds without a request."""
LIFE_S: Final = 12 * 3600
"""And after so many seconds in any case."""
SESSIONS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class BrokerAccount:
    """An account of brokers, with the secret that signs its requests. ``name`` is empty for a visitor without an
    account, whose requests are not signed.
    """

    name: str = ""
    secret: str = field(default="", repr=False)


@dataclass(slots=True)
class VisitSession:
    """One visitor's session.

    Attributes:
        csrf: word that forms of this session must contain.
        accounts: the account with which the visitor signed in, by name of the cluster.
        is_read_only: whether the visitor chose not to change anything.
    """

    csrf: str
    began_s: float
    seen_s: float
    accounts: dict[str, BrokerAccount] = field(default_factory=dict)
    is_read_only: bool = False

    def account(self, cluster: str) -> BrokerAccount:
        """The visitor's account in a cluster."""
        return self.accounts.get(cluster) or BrokerAccount()


class VisitSessions:
    """All sessions. Event loop only.

    Args:
        monotonic: the time in seconds.
        count_max: largest number of sessions. If there are too many, the one goes that was unused for the longest time,
            visitors without an account first.
    """

    def __init__(self, monotonic: Callable[[], float], count_max: int = SESSIONS_MAX) -> None:
        self._monotonic = monotonic
        self._count_max = count_max
        self._sessions: dict[str, VisitSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self) -> tuple[str, VisitSession]:
        """Begins a session without an account; returns the value of its cookie, too."""
        now_s = self._monotonic()
        self.expire()
        if len(self._sessions) >= self._count_max:
            oldest = min(self._sessions, key=lambda name: (bool(self._sessions[name].accounts), self._seen(name)))
            del self._sessions[oldest]
        name, session = secrets.token_urlsafe(32), VisitSession(secrets.token_urlsafe(32), now_s, now_s)
        self._sessions[name] = session
        return name, session

    def find(self, name: str) -> VisitSession | None:
        """The session of a cookie, which is used now; None if there is none or it has ended."""
        session = self._sessions.get(name)
        if session is None:
            return None
        now_s = self._monotonic()
        if self._has_ended(session, now_s):
            del self._sessions[name]
            return None
        session.seen_s = now_s
        return session

    def __contains__(self, name: str) -> bool:
        """Whether the session of a cookie has not ended. Does not count as a use."""
        session = self._sessions.get(name)
        return session is not None and not self._has_ended(session, self._monotonic())

    def sign_in(self, name: str, cluster: str, account: BrokerAccount, read_only: bool) -> tuple[str, VisitSession]:
        """Begins a session with an account in place of the session ``name``, and keeps what the visitor had in other
        clusters. The old cookie is worth nothing any more, so a cookie that somebody else has planted gains nothing.
        """
        old = self._sessions.pop(name, None)
        new_name, session = self.begin()
        if old is not None:
            session.accounts.update(old.accounts)
        session.accounts[cluster] = account
        session.is_read_only = read_only
        return new_name, session

    def end(self, name: str) -> None:
        """Ends a session and forgets its secrets."""
        self._sessions.pop(name, None)

    def expire(self) -> None:
        """Ends the sessions whose time is over."""
        now_s = self._monotonic()
        for name in [name for name, session in self._sessions.items() if self._has_ended(session, now_s)]:
            del self._sessions[name]

    def accounts(self, cluster: str) -> set[BrokerAccount]:
        """The accounts with which visitors are signed in to a cluster."""
        return {account for session in self._sessions.values() if (account := session.accounts.get(cluster))}

    def _seen(self, name: str) -> float:
        return self._sessions[name].seen_s

    @staticmethod
    def _has_ended(session: VisitSession, now_s: float) -> bool:
        return now_s - session.seen_s >= IDLE_S or now_s - session.began_s >= LIFE_S
