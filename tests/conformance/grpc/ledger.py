"""What a run of several clients must have seen: which messages were confirmed, who got them, and when again."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict

ORDERED = "ordered-"
"""What the names of ordered messages begin with; they end with a number."""


class GroupLedger:
    """The deliveries to one group. Any thread.

    Attributes:
        seen: deliveries by body.
        copies: further first attempts: the client has sent the message twice, because it did not get the answer.
        repeated: messages whose invisible time was changed twice, because the first answer was lost. To acknowledge the
            second handle does not end the first one.
        late_s: for each message that was left until its invisible time was over, how long it stayed hidden beyond it.
        history: what happened to each message, with times.
        first_s: for each message that no check has decided, how long after its send it was first delivered.
        overtaken: messages of an ordered group that were delivered before the one that was sent before them.

    Args:
        name: its name.
        in_order: whether it gets the ordered messages; if not, all others.
    """

    def __init__(self, name: str, in_order: bool = False) -> None:
        self.name, self._in_order = name, in_order
        self.seen: Counter[str] = Counter()
        self.copies: list[str] = []
        self.repeated: set[str] = set()
        self.late_s: list[float] = []
        self.first_s: list[float] = []
        self.history: defaultdict[str, list[str]] = defaultdict(list)
        self.overtaken: list[str] = []
        self._acked: set[str] = set()
        self._after_ack: list[str] = []
        self._due: dict[str, float] = {}
        self._lock = threading.Lock()

    def delivered(self, body: str, attempt: int, sent_s: float | None) -> bool:
        """Notes a delivery; returns whether it is the first one."""
        now_s = time.monotonic()
        with self._lock:
            self.seen[body] += 1
            if attempt == 1 and self.seen[body] > 1:
                self.copies.append(body)
            elif body in self._acked:
                self._after_ack.append(body)
            elif (due_s := self._due.pop(body, None)) is not None:
                self.late_s.append(now_s - due_s)
            if self.seen[body] == 1 and self._in_order and not self._is_next(body):
                self.overtaken.append(body)
            if self.seen[body] == 1 and sent_s is not None and not body.endswith("later"):
                self.first_s.append(now_s - sent_s)
            return self.seen[body] == 1

    def wants(self, body: str) -> bool:
        """Whether the group must get a message, if it is not rolled back."""
        return body.startswith(ORDERED) == self._in_order

    def _is_next(self, body: str) -> bool:
        group, _, number = body.rpartition("-")
        return number == "0" or f"{group}-{int(number) - 1}" in self.seen

    def note(self, body: str, what: str) -> None:
        """Notes what happened to a message."""
        with self._lock:
            self.history[body].append(f"{time.monotonic():.2f} {what}")

    def hidden(self, body: str, seconds: float) -> None:
        """Notes that a message must come again in so many seconds."""
        with self._lock:
            self._due[body] = time.monotonic() + seconds

    def acked(self, body: str) -> None:
        """Notes that an acknowledgement was confirmed."""
        with self._lock:
            self._acked.add(body)
            self._due.pop(body, None)

    def after_ack(self) -> list[str]:
        """Messages that came again after a confirmed acknowledgement, and were neither sent nor changed twice."""
        with self._lock:
            return [body for body in self._after_ack if body not in {*self.copies, *self.repeated}]

    def still_hidden(self) -> list[str]:
        """Messages that must come again and did not."""
        with self._lock:
            return list(self._due)


class Ledger:
    """The messages. Any thread.

    Attributes:
        groups: those that receive all messages.
        confirmed: when each send was confirmed.
        ended: transactions whose end was confirmed.
        asked: how often a client was asked about a transaction.
        failures: failed calls by kind.
    """

    def __init__(self, *groups: GroupLedger) -> None:
        self.groups = {group.name: group for group in groups}
        self.confirmed: dict[str, float] = {}
        self.ended: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._lock = threading.Lock()

    def sent(self, body: str) -> None:
        """Notes a confirmed send; of a transaction, that of its half message."""
        with self._lock:
            self.confirmed[body] = time.monotonic()

    def failed(self, what: str, error: Exception) -> None:
        """Counts a failed call."""
        with self._lock:
            self.failures[f"{what}: {type(error).__name__}"] += 1

    def delivered(self, group: str, body: str, attempt: int) -> bool:
        """See ``GroupLedger.delivered``."""
        return self.groups[group].delivered(body, attempt, self.confirmed.get(body))

    def missing(self, group: str) -> list[str]:
        """Confirmed messages that a group must get and did not."""
        ledger = self.groups[group]
        wanted = [body for body in list(self.confirmed) if ledger.wants(body) and not rolls_back(body)]
        return [body for body in wanted if body not in ledger.seen]

    def wrong(self, group: str) -> list[str]:
        """Messages that were rolled back and delivered."""
        return [body for body in list(self.groups[group].seen) if rolls_back(body)]


def rolls_back(body: str) -> bool:
    """Whether a message must never arrive; the name says its fate."""
    return "rollback" in body


def spread(seconds: list[float]) -> str:
    """Median, 99th percentile and maximum of some times."""
    if not seconds:
        return "none"
    ordered = sorted(seconds)
    return " / ".join(f"{ordered[int(share * (len(ordered) - 1))]:.1f}" for share in (0.5, 0.99, 1)) + " s"
