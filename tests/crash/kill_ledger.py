"""What a broker that is killed again and again told its clients, and whether it was true.

A killed process leaves what it stored, so whatever was answered counts, also under ASYNC_FLUSH.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Lie(AssertionError):  # noqa: N818 - reads as what was found
    """Something was answered that did not hold."""


class Decision(Enum):
    """What becomes of a transactional message: decided at once, when its producer is asked, or never."""

    COMMIT = 0
    ROLLBACK = 1
    COMMIT_WHEN_ASKED = 2
    ROLLBACK_WHEN_ASKED = 3
    NEVER = 4

    @classmethod
    def of(cls, key: str) -> Decision:
        """Of the message with a key, always the same."""
        return cls(int(key[1:]) % len(cls))

    @property
    def outcome(self) -> int:
        """Value of ``commitOrRollback``."""
        return (8, 12, 8, 12, 0)[self.value]


@dataclass
class Ledger:
    """All answers over all processes, by key of the message.

    Attributes:
        sent: to be popped.
        popped: how often each came.
        hidden_until_ms: before that time, of the broker's clock, a message does not come again.
        acknowledged: in time, and answered.
        maybe_acknowledged: asked for, whatever came of it.
        due_ms: of delayed messages.
        halves: of transactional messages.
        ended: of those whose end was answered, by which process.
        asked_in_vain: of those of them that a later process asked about.
    """

    sent: set[str] = field(default_factory=set)
    popped: Counter[str] = field(default_factory=Counter)
    hidden_until_ms: dict[str, int] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    maybe_acknowledged: set[str] = field(default_factory=set)
    due_ms: dict[str, int] = field(default_factory=dict)
    halves: set[str] = field(default_factory=set)
    ended: dict[str, int] = field(default_factory=dict)
    asked_in_vain: set[str] = field(default_factory=set)

    def came(self, key: str, pop_time_ms: int, invisible_ms: int) -> None:
        """A pop gave a message out.

        Raises:
            Lie: it was acknowledged, or still hidden.
        """
        if key in self.acknowledged:
            raise Lie(f"{key} was acknowledged, that was answered, and it came again at {pop_time_ms}")
        if pop_time_ms < self.hidden_until_ms.get(key, 0):
            raise Lie(f"{key} was hidden until {self.hidden_until_ms[key]} and came at {pop_time_ms}")
        self.popped[key] += 1
        self.hidden_until_ms[key] = pop_time_ms + invisible_ms

    def missing(self) -> list[str]:
        """Messages to be popped that nobody is done with."""
        return sorted(self.sent - self.maybe_acknowledged)

    def check_delayed(self, came_ms: Mapping[str, Sequence[int]], complete: bool) -> bool:
        """Compares with the times at which delayed messages came; whether all of them did.

        Raises:
            Lie: one came early, or is missing although ``complete`` says that there was time enough.
        """
        for key, times_ms in came_ms.items():
            if any(time_ms < self.due_ms.get(key, 0) for time_ms in times_ms):
                raise Lie(f"{key} is due at {self.due_ms[key]} and came at {times_ms}")
        lost = self.due_ms.keys() - came_ms.keys()
        if lost and complete:
            raise Lie(f"delayed messages are lost: {sorted(lost)[:10]}")
        return not lost

    def asked(self, key: str, process: int) -> None:
        """A producer was asked for its decision; the end of a transaction may cross with it in one process only."""
        if self.ended.get(key, process) < process:
            self.asked_in_vain.add(key)

    def check_halves(self, committed: Counter[str], given_up: Counter[str], complete: bool) -> bool:
        """Compares with the messages that consumers see; whether each has come to its end.

        Raises:
            Lie: a message has two ends, or one that its producer did not decide, or none although ``complete``.
        """
        if self.asked_in_vain:
            raise Lie(f"transactions ended, and were asked about: {sorted(self.asked_in_vain)[:10]}")
        waiting = []
        for key in self.halves | committed.keys() | given_up.keys():
            decision = Decision.of(key)
            wanted = (int(decision.outcome == 8), int(decision is Decision.NEVER))
            found = (committed[key], given_up[key])
            if found[0] > wanted[0] or found[1] > wanted[1]:
                raise Lie(f"{key}, {decision.name}: committed {found[0]} times, given up {found[1]} times")
            if found != wanted and key in self.halves:
                waiting.append(key)
        if waiting and complete:
            raise Lie(f"half messages are lost: {sorted(waiting)[:10]}")
        return not waiting
