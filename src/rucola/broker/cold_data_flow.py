"""How much consumer groups read that is not in memory, and which have read enough (RocketMQ 5.3.3,
``ColdDataCgCtrService``). Event loop only.

With ``coldDataFlowControlEnable`` a group that has read more cold bytes in a window of 5 s than its threshold, or any
group when all together have read more than the global one, is slowed down until the window ends. Other pulls are not
counted. The reference's adaptive strategies are not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rucola.broker.config import BrokerConfig
from rucola.broker.subscription.subscription_group_manager import is_system_group

WINDOW_S = 5.0
_FORGOTTEN_MS = 60_000
"""A group that read nothing cold for so long is not listed any more."""


@dataclass(slots=True)
class ColdAccount:
    """What one group has read in this window."""

    bytes_read: int
    created_ms: int
    read_ms: int


class ColdDataFlow:
    """See the module.

    Attributes:
        thresholds: bytes per window of groups that have one of their own.
    """

    def __init__(self, config: BrokerConfig, monotonic: Callable[[], float], wall_ms: Callable[[], int]) -> None:
        self.thresholds: dict[str, int] = {}
        self._config = config
        self._monotonic = monotonic
        self._wall_ms = wall_ms
        self._accounts: dict[str, ColdAccount] = {}
        self._all_bytes = 0
        self._window_end_s = 0.0

    def count(self, group: str, bytes_read: int) -> None:
        """A group has read so many bytes that were not in memory."""
        self._turn()
        if bytes_read <= 0 or is_system_group(group):
            return
        now_ms = self._wall_ms()
        account = self._accounts.get(group)
        if account is None:
            account = self._accounts[group] = ColdAccount(0, now_ms, now_ms)
        account.bytes_read += bytes_read
        account.read_ms = now_ms
        self._all_bytes += bytes_read

    def is_limited(self, group: str) -> bool:
        """Whether the group has read enough in this window."""
        if not self._config.cold_data_flow_control_enable or is_system_group(group):
            return False
        self._turn()
        account = self._accounts.get(group)
        if account is None:
            return False
        threshold = self.thresholds.get(group, self._config.cg_cold_read_threshold)
        return account.bytes_read >= threshold or self._all_bytes >= self._config.global_cold_read_threshold

    def info(self) -> Mapping[str, Any]:
        """Figures of this window and the thresholds, as request 2003 answers them."""
        self._turn()
        accounts = {
            group: {
                "coldAcc": account.bytes_read,
                "createTimeMills": account.created_ms,
                "lastColdReadTimeMills": account.read_ms,
            }
            for group, account in self._accounts.items()
        }
        return {
            "runtimeTable": accounts,
            "configTable": dict(self.thresholds),
            "cgColdReadThreshold": self._config.cg_cold_read_threshold,
            "globalColdReadThreshold": self._config.global_cold_read_threshold,
            "globalAcc": self._all_bytes,
        }

    def _turn(self) -> None:
        """Begin a new window when the one before has ended."""
        now_s = self._monotonic()
        if now_s < self._window_end_s:
            return
        self._window_end_s, self._all_bytes = now_s + WINDOW_S, 0
        oldest_ms = self._wall_ms() - _FORGOTTEN_MS
        self._accounts = {group: account for group, account in self._accounts.items() if account.read_ms > oldest_ms}
        for account in self._accounts.values():
            account.bytes_read = 0
