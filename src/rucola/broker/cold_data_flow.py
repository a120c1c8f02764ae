"""Limits how much consumer groups read from the disk (RocketMQ 5.3.3, ``ColdDataCgCtrService``). Event loop only.

With ``coldDataFlowControlEnable`` a group is slowed down until the end of a 5 s window in two cases: its cold reads
reach its threshold in bytes, or the cold reads of all groups together reach the global threshold. A cold read is a pull
that waited for the disk; other pulls are not counted. RocketMQ's adaptive strategies are not implemented.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rucola.broker.config import BrokerConfig
from rucola.broker.subscription.subscription_group_manager import is_system_group

WINDOW_S = 5.0
_FORGOTTEN_MS = 60_000
"""A group is no longer listed after this many milliseconds without cold reads."""


@dataclass(slots=True)
class ColdAccount:
    """One group's cold reads: their bytes in the current window, and the times of the first and the last one."""

    bytes_read: int
    created_ms: int
    read_ms: int


class ColdDataFlow:
    """Counts cold reads per group.

    Attributes:
        thresholds: bytes per window for groups with a threshold of their own.
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
        """Counts the bytes of a cold read of a group."""
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
        """Whether the group has reached its limit in this window."""
        if not self._config.cold_data_flow_control_enable or is_system_group(group):
            return False
        self._turn()
        account = self._accounts.get(group)
        if account is None:
            return False
        threshold = self.thresholds.get(group, self._config.cg_cold_read_threshold)
        return account.bytes_read >= threshold or self._all_bytes >= self._config.global_cold_read_threshold

    def info(self) -> Mapping[str, Any]:
        """Figures of this window and the thresholds: the body of the response to request 2003."""
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
        """Begins a new window if the last one has ended."""
        now_s = self._monotonic()
        if now_s < self._window_end_s:
            return
        self._window_end_s, self._all_bytes = now_s + WINDOW_S, 0
        oldest_ms = self._wall_ms() - _FORGOTTEN_MS
        self._accounts = {group: account for group, account in self._accounts.items() if account.read_ms > oldest_ms}
        for account in self._accounts.values():
            account.bytes_read = 0
