"""Limits how fast an account makes lite topics (security.md S-28).

Each costs memory until its messages expire with the log. Lite topics come and go, unlike topics and groups, so what
counts is how many an account makes in an hour: its allowance grows evenly up to that number.
"""

from __future__ import annotations

from collections.abc import Callable

from rucola.broker.config import BrokerConfig
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode

_HOUR_S = 3600


class LiteNameQuota:
    """The allowances of all accounts. Event loop only.

    Args:
        monotonic: returns a time in seconds that never goes back.
    """

    def __init__(self, config: BrokerConfig, monotonic: Callable[[], float]) -> None:
        self._config = config
        self._monotonic = monotonic
        self._left: dict[str, tuple[float, float]] = {}
        """Of each account: its allowance, and when it was that."""

    def take(self, account: str) -> None:
        """Counts a lite topic that ``account`` is about to make; no account, no limit.

        Raises:
            BrokerError: LMQ_QUOTA_EXCEEDED.
        """
        if not account:
            return
        most, now_s = self._config.new_lite_topics_per_account_max, self._monotonic()
        left, at_s = self._left.get(account, (float(most), now_s))
        left = min(left + (now_s - at_s) * most / _HOUR_S, most)
        if left < 1:
            raise BrokerError(
                ResponseCode.LMQ_QUOTA_EXCEEDED,
                f"the lite topic does not exist, and the account has reached its limit of {most} new ones in an hour",
            )
        self._left[account] = left - 1, now_s
