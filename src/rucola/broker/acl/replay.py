"""Memory of the guard: nonces that were used, in a bounded table. Event loop only."""

from __future__ import annotations

WINDOW_S = 300.0
"""How far a client's clock may be off, and so how long a request stays fresh."""
_NONCES_BEHIND = 1024
"""A client's requests may overtake each other by so many."""
_SESSIONS_MAX = 65_536


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
