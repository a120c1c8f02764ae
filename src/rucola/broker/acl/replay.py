"""The nonces that requests have used, in a bounded table. Event loop only."""

from __future__ import annotations

from collections import OrderedDict

from rucola.broker.shares import Shares

WINDOW_S = 300.0
"""Largest difference in seconds between the time in a signed request and the broker's clock."""
_NONCES_BEHIND = 1024
"""How many numbers of each session the table remembers: the highest one and those just below it. Lower numbers are
refused.
"""
_SESSIONS_MAX, _SESSIONS_SHARE, _SESSIONS_KEPT = 65_536, 8_192, 64
"""Sessions of all accounts, of one account, and those that each account may always have."""


class NonceTable:
    """Accepts each nonce once.

    A nonce is ``session.number``: a random name per client and an ascending number. The highest number of each session
    and those just below it are remembered, so the table grows with clients, not with requests.

    Args:
        shares: limits the sessions of each account; further sessions are refused. A session is forgotten only after
            all its requests have expired.
    """

    def __init__(self, shares: Shares | None = None) -> None:
        self._shares = shares or Shares(_SESSIONS_MAX, _SESSIONS_SHARE, _SESSIONS_KEPT)
        # highest number, bits for the numbers below it, last use
        self._sessions: OrderedDict[tuple[str, str], tuple[int, int, float]] = OrderedDict()

    def take(self, access_key: str, nonce: str, now_s: float) -> bool:
        """Records ``nonce`` and returns True if it is new.

        Returns False if the nonce was used before or has the wrong form, if its number is lower than all numbers that
        the table remembers of the session, or if the table has no room for a new session of the account.

        Args:
            access_key: the account that uses the nonce.
            nonce: ``session.number``: 16 to 48 characters, a dot, up to 18 digits.
            now_s: monotonic time in seconds.
        """
        session, _, digits = nonce.partition(".")
        if not 16 <= len(session) <= 48 or not digits.isascii() or not digits.isdigit() or len(digits) > 18:
            return False
        number, key = int(digits), (access_key, session)
        known = self._sessions.pop(key, None)  # inserted again below: the table is in order of last use
        if known is None:
            self._forget(now_s)
            if not self._shares.take(access_key):
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
        """Removes the sessions whose requests have all expired."""
        while self._sessions:
            key, (_, _, used_s) = next(iter(self._sessions.items()))
            if now_s - used_s <= 2 * WINDOW_S:
                return
            del self._sessions[key]
            self._shares.give_back(key[0])
