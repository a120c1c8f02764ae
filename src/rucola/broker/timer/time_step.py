"""The messages of one time step of the timer, on their way from the timer log to their consumers."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator

from rucola.common.message import StoreMessage
from rucola.formats.timer import MAGIC_DELETE, MAGIC_MOVED, MAGIC_ROLL, UNIT_COLUMNS
from rucola.store.timer.timer_log import WaitingUnit

_KIND = MAGIC_DELETE | MAGIC_ROLL | MAGIC_MOVED


class TimeStep:
    """The messages of the next time step to deliver, both unread and prepared.

    Args:
        units: a flat array of the fields of all units (see ``WaitingUnit``), newest unit first.
    """

    def __init__(self, time_ms: int, position: int, units: array[int]) -> None:
        self.time_ms = time_ms
        self.position = position
        self.ready: list[tuple[StoreMessage, str, int]] = []
        """The messages to store, each with the topic under which it is counted, and the change of this count."""
        self.ready_bytes = 0
        self.withdrawn: dict[str, dict[str, str]] = {}
        """For topic and unique key of each recalled message: the marks of the accounts that recall it, and the topic of
        the message by which they do.
        """
        self.recalls: Counter[tuple[str, str]] = Counter()
        """Number of messages that recall a key, by key and mark, less the number of recalled messages that were
        found.
        """
        columns = range(0, len(units), UNIT_COLUMNS)
        self.withdrawals = [units[at] for at in columns if units[at + 2] & _KIND == MAGIC_DELETE]
        """Physical offsets of the unread messages that recall others, oldest last."""
        self._units = units
        self._next = len(units) - UNIT_COLUMNS

    def recalled_by(self, key: str, mark: str) -> tuple[str, str] | None:
        """The recall of the message with ``key`` that was sent by the account with ``mark``; None if there is none. A
        recall or a message without a mark comes from a broker without accounts, or from an administrator.
        """
        marks = self.withdrawn.get(key)
        if marks is None:
            return None
        if not mark:
            return key, next(iter(marks))
        return next(((key, one) for one in (mark, "") if one in marks), None)

    @property
    def unread(self) -> bool:
        """Whether there is an unread unit."""
        return self._next >= 0

    def next_unit(self) -> WaitingUnit | None:
        """The oldest unread unit."""
        at = self._next
        return None if at < 0 else WaitingUnit(*self._units[at : at + UNIT_COLUMNS])

    def unread_offsets(self) -> Iterator[int]:
        """Physical offsets of the unread messages, oldest first."""
        return (self._units[at] for at in range(self._next, -1, -UNIT_COLUMNS))

    def read_on(self) -> None:
        """Marks the oldest unread unit as read."""
        self._next -= UNIT_COLUMNS
