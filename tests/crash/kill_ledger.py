"""The promises that a broker makes to its clients between kills, and whether it keeps them after the next kills.

Everything that a killed process has written stays, so every response counts, also under ASYNC_FLUSH.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum


class Lie(AssertionError):  # noqa: N818 - reads as what was found
    """Raised if a response of the broker turned out to be false."""


class Decision(Enum):
    """The outcome of a transactional message: decided at once, decided after a check, or never decided."""

    COMMIT = 0
    ROLLBACK = 1
    COMMIT_WHEN_ASKED = 2
    ROLLBACK_WHEN_ASKED = 3
    NEVER = 4

    @classmethod
    def of(cls, key: str) -> Decision:
        """Returns the decision about the message with this key, always the same one."""
        return cls(int(key[1:]) % len(cls))

    @property
    def outcome(self) -> int:
        """Value of ``commitOrRollback`` in the request."""
        return (8, 12, 8, 12, 0)[self.value]


@dataclass
class Ledger:
    """The promises that all broker processes made in their responses, by key of the message.

    Attributes:
        sent: messages to be popped.
        popped: how often each message was popped.
        hidden_until_ms: time, by the broker's clock, before which a message must not be delivered again.
        acknowledged: messages whose acknowledgement was in time and got a response.
        maybe_acknowledged: messages whose acknowledgement was requested, with any result.
        due_ms: due times of delayed messages.
        halves: transactional messages.
        ended: messages whose end of transaction got a response, with the number of the process.
        asked_in_vain: messages in ``ended`` about which a later process asked.
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
        """Records that a pop returned a message.

        Raises:
            Lie: the message was acknowledged or still hidden.
        """
        if key in self.acknowledged:
            raise Lie(f"{key} was acknowledged, that was answered, and it came again at {pop_time_ms}")
        if pop_time_ms < self.hidden_until_ms.get(key, 0):
            raise Lie(f"{key} was hidden until {self.hidden_until_ms[key]} and came at {pop_time_ms}")
        self.popped[key] += 1
        self.hidden_until_ms[key] = pop_time_ms + invisible_ms

    def missing(self) -> list[str]:
        """Returns the messages for pop consumers that no consumer has tried to acknowledge."""
        return sorted(self.sent - self.maybe_acknowledged)

    def check_delayed(self, came_ms: Mapping[str, Sequence[int]], complete: bool) -> bool:
        """Compares arrival times with the due times of delayed messages; returns whether all of them have arrived.

        Raises:
            Lie: a message came too early; or ``complete`` says that all messages are due, and a message is missing.
        """
        for key, times_ms in came_ms.items():
            if any(time_ms < self.due_ms.get(key, 0) for time_ms in times_ms):
                raise Lie(f"{key} is due at {self.due_ms[key]} and came at {times_ms}")
        lost = self.due_ms.keys() - came_ms.keys()
        if lost and complete:
            raise Lie(f"delayed messages are lost: {sorted(lost)[:10]}")
        return not lost

    def asked(self, key: str, process: int) -> None:
        """Records that the broker checked a transaction. A broker must not check a transaction that was ended in an
        earlier process; if it was ended in the same process, the check may have been sent before the end.
        """
        if self.ended.get(key, process) < process:
            self.asked_in_vain.add(key)

    def check_halves(self, committed: Counter[str], given_up: Counter[str], complete: bool) -> bool:
        """Compares the outcomes of half messages (``committed``, ``given_up``) with the decisions of their producers;
        returns whether each half message has the outcome that its producer chose.

        Raises:
            Lie: a message has two outcomes, or an outcome that its producer did not choose, or ``complete`` is set and
                a message has no outcome.
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
