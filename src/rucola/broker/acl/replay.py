"""Memory of the guard: nonces that were used, and peers that keep failing. Both tables are bounded. Event loop only."""

from __future__ import annotations

WINDOW_S = 300.0
"""How far a client's clock may be off, and so how long a request stays fresh."""
_NONCES_BEHIND = 1024
"""A client's requests may overtake each other by so many."""
_SESSIONS_MAX = 65_536
_FREE_FAILURES = 10
_LOCK_S_MAX = 60.0
_FORGET_S = 600.0
_FAILING_MAX = 10_000


class NonceTable:
    """Takes each nonce once.

    A nonce is ``session.number``: a random name per client and a number that grows. Of each session the highest number
    and the ones just below it are remembered, so the table grows with clients, not with requests.

    Args:
        sessions_max: beyond it new sessions are refused, never forgotten early.
    """

    def __init__(self, sessions_max: int = _SESSIONS_MAX) -> None:
        self._sessions_max = sessions_max
        self._sessions: dict[tuple[str, str], tuple[int, int, float]] = {}  # highest number, bits below it, last use

    def take(self, access_key: str, nonce: str, now_s: float) -> bool:
        """Whether ``nonce`` is new; it is not afterwards.

        Args:
            access_key: whose nonce.
            nonce: 16 to 48 characters, a dot, up to 18 digits.
            now_s: monotonic.
        """
        session, _, digits = nonce.partition(".")
        if not 16 <= len(session) <= 48 or not digits.isascii() or not digits.isdigit() or len(digits) > 18:
            return False
        number, key = int(digits), (access_key, session)
        known = self._sessions.pop(key, None)  # put back at the end: the table is in the order of last use
        if known is None:
            self._forget(now_s)
            if len(self._sessions) >= self._sessions_max:
                return False
            self._sessions[key] = (number, 1, now_s)
            return True
        highest, bits, _ = known
        ahead = number - highest
        fresh = ahead > 0 or (-ahead < _NONCES_BEHIND and not bits >> -ahead & 1)
        if ahead > 0:
            bits = (bits << ahead | 1) & ((1 << _NONCES_BEHIND) - 1) if ahead < _NONCES_BEHIND else 1
            highest = number
        elif fresh:
            bits |= 1 << -ahead
        self._sessions[key] = (highest, bits, now_s)
        return fresh

    def _forget(self, now_s: float) -> None:
        """Sessions whose requests are all too old by now."""
        while self._sessions:
            key, (_, _, used_s) = next(iter(self._sessions.items()))
            if now_s - used_s <= 2 * WINDOW_S:
                return
            del self._sessions[key]


class FailureTable:
    """Counts failed attempts by peer and account; each beyond the first few locks their connections for longer."""

    def __init__(self) -> None:
        self._failing: dict[tuple[str, str], tuple[int, float]] = {}  # failures, last one

    def failed(self, host: str, access_key: str, now_s: float) -> None:
        """One more attempt failed."""
        key = (host, access_key[:64])
        count, last_s = self._failing.pop(key, (0, now_s))
        if len(self._failing) >= _FAILING_MAX:
            del self._failing[next(iter(self._failing))]
        self._failing[key] = (1 if now_s - last_s > _FORGET_S else count + 1, now_s)

    def locked(self, host: str, access_key: str, now_s: float) -> bool:
        """Whether so many failed lately that the connection of one more is closed."""
        if not self._failing:
            return False
        count, last_s = self._failing.get((host, access_key[:64]), (0, 0.0))
        over = count - _FREE_FAILURES
        return over >= 0 and now_s - last_s < min(2.0 ** min(over, 10), _LOCK_S_MAX)

    def succeeded(self, host: str, access_key: str) -> None:
        """The account is in the right hands: forget what failed."""
        if self._failing:
            self._failing.pop((host, access_key[:64]), None)
