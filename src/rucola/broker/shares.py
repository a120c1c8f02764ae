"""Divides a table that clients fill among those who fill it, so that nobody can lock out the others.

Without accounts, a table has one owner, or one for each consumer group. Whoever may do everything needs no share.
"""

from __future__ import annotations

from collections import Counter


class Shares:
    """Counts the entries of each owner of a table. Event loop only.

    Args:
        total: maximum number of entries of all owners together.
        share: maximum number of entries of one owner.
        kept: number of entries that each owner may have even if the table is full. The table may thus grow beyond
            ``total``, by ``kept`` entries for each owner. Owners are accounts, which only administrators make, or
            groups.
    """

    def __init__(self, total: int, share: int, kept: int) -> None:
        self._total, self._share, self._kept = total, share, kept
        self._of: Counter[str] = Counter()
        self.count = 0
        """Number of entries of all owners."""

    def take(self, owner: str, entries: int = 1) -> bool:
        """Counts more entries of ``owner``; returns False, and counts nothing, if there is no room for them."""
        own = self._of.get(owner, 0) + entries
        if own > self._share or (own > self._kept and self.count + entries > self._total):
            return False
        self._of[owner] = own
        self.count += entries
        return True

    def give_back(self, owner: str, entries: int = 1) -> None:
        """Counts fewer entries of ``owner``."""
        self._of[owner] -= entries
        self.count -= entries
        if not self._of[owner]:
            del self._of[owner]

    def of(self, owner: str) -> int:
        """Number of entries of ``owner``."""
        return self._of.get(owner, 0)
