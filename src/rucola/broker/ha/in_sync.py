"""How many brokers have the log (SYNC_MASTER), and what follows if there are too few. Event loop only.

Source: RocketMQ 5.3.3, ``CommitLog#asyncPutMessage``; there, ``minInSyncReplicas`` needs a controller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from rucola.runtime.logs import event

logger = logging.getLogger(__name__)


class SyncState(Enum):
    """What the number of brokers in sync means for a send; the value is the text for the log."""

    ENOUGH = "confirmed"
    TOO_FEW = "stored, and answered with SLAVE_NOT_AVAILABLE"
    REFUSED = "refused"


class InSyncReplicas:
    """The brokers that are in sync: this one, and the slaves that can confirm soon. Each change of the state is logged
    once.

    Args:
        confirming: number of brokers that must have a message before its sender is told that it is stored.
        least: number of brokers that must be in sync before a message is stored.
        slaves: returns the number of slaves in sync.
    """

    def __init__(self, confirming: int, least: int, slaves: Callable[[], int]) -> None:
        self._confirming, self._least, self._slaves = confirming, least, slaves
        self._state: SyncState | None = None
        """None from the start until the first look: slaves need a moment to come."""

    @property
    def count(self) -> int:
        """Number of brokers in sync, this one included."""
        return 1 + self._slaves()

    @property
    def trouble(self) -> str:
        """Why sends are refused; empty if they are not."""
        return f"not in sync: {self._text(self._least)}, sends are refused" if self.refuses() else ""

    @property
    def remark(self) -> str:
        """Why sends are stored, but not confirmed; empty if they are."""
        return f"not in sync: {self._text(self._confirming)}" if self.count < self._confirming else ""

    def refuses(self) -> bool:
        """Whether sends must be refused now."""
        if self.count >= self._least:
            return False
        self.look()
        return True

    def look(self) -> None:
        """Logs the state if it has changed."""
        count = self.count
        state = SyncState.ENOUGH
        if count < self._confirming:
            state = SyncState.TOO_FEW
        if count < self._least:
            state = SyncState.REFUSED
        if state is self._state:
            return
        self._state = state
        if state is SyncState.ENOUGH:
            event(logger, logging.INFO, "enough brokers are in sync", in_sync=count)
        else:
            wanted = self._least if state is SyncState.REFUSED else self._confirming
            event(
                logger,
                logging.WARNING,
                "too few brokers are in sync",
                in_sync=count,
                wanted=wanted,
                sends=state.value,
            )

    def changed(self) -> None:
        """Called when a slave came or went."""
        if self._state is not None:
            self.look()

    def acknowledged(self) -> None:
        """Called when a slave has more of the log; cheap while enough brokers are in sync."""
        if self._state is not SyncState.ENOUGH:
            self.changed()

    def close(self) -> None:
        """Logs no more: the slaves leave because the broker stops."""
        self._state = None

    def _text(self, wanted: int) -> str:
        return f"{self.count} of {wanted} brokers have the log"
